"""What comes out of a run: a checkpoint's model as a folder of its own, without the state that only resuming needs.

As it was saved, in another dtype, in files of another size, or with its adapter merged into the weights; and looked at
by loading it. No torch when imported (`workbench.export` has what needs it).

Invariant: the target is there whole or not at all, and nothing that was there before is touched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import (
    DamagedFileError,
    SavedStep,
    check_model_files,
    find_checkpoints,
    read_best,
)
from workbench.system.folders import expanded

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""What `dtype` may be, and torch's name for it."""
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A model that was exported. `looked_at`: how it was found to be right, a sentence."""

    path: Path
    step: int
    bytes: int
    looked_at: str = ""


@dataclass(frozen=True)
class Wish:
    """What is to come of a checkpoint. `dtype`: of the weights, a key of `DTYPES`; None leaves it, and for a merged
    adapter takes the run's own. `merge`: the adapter into the weights of its base. `largest_file_bytes`: None leaves
    the files as they are. `check`: load what was written and compare its logits."""

    dtype: str | None = None
    merge: bool = False
    largest_file_bytes: int | None = None
    check: bool = False

    @property
    def is_copy(self) -> bool:
        return self.dtype is None and not self.merge and self.largest_file_bytes is None


def export(
    run: RunDirectory,
    target: Path,
    *,
    step: int | None = None,
    wish: Wish | None = None,
    tell: Tell = lambda _: None,
) -> Exported:
    """Write the model of a checkpoint of `run`, the newest whole one or that of `step`, into the new folder `target`.

    `tell` hears of checkpoints that are passed over, and of what takes a while.

    Raises:
        ConfigurationError: the run has no such checkpoint, it cannot be had as wished, or `target` is there already and
            not an empty folder.
        WorkbenchError: it could not be written, or is not what the run has; nothing is left of it.
    """
    wish = wish or Wish()
    target = expanded(target, "export").absolute()
    _check_wish(wish)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigurationError(f"export: {target} is there already; name a new or an empty folder")
    damaged: list[str] = []

    def passed_over(message: str) -> None:
        damaged.append(message)
        tell(f"warning: {message}")

    for saved in checkpoints(run, step, "export", damaged, passed_over):
        try:
            check_model_files(saved)
            with _new_folder(target) as working:
                looked_at = _write(run, saved, working, wish, tell)
                size = sum(path.stat().st_size for path in working.iterdir())
            return Exported(target, saved.step, size, looked_at)
        except DamagedFileError as error:
            passed_over(f"checkpoint {saved.path.name} is passed over: {error}")
    raise ConfigurationError("; ".join([f"export: {run.name} has no checkpoint that is whole", *damaged]))


def checkpoints(
    run: RunDirectory, step: int | None, verb: str, damaged: list[str], warn: Tell
) -> Iterator[SavedStep]:
    """The checkpoints of `run` that look whole, the newest first; only that of `step` where one is named.

    Raises:
        ConfigurationError: there is none; `damaged` are the sentences about others.
    """
    others = []
    found = False
    for saved in find_checkpoints(run.checkpoints, warn):
        if step is None or saved.step == step:
            found = True
            yield saved
        else:
            others.append(f"{saved.step:,}")
    if not found:
        what = "no checkpoint" if step is None else f"no checkpoint of step {step:,}"
        there = f"; there are those of step {', '.join(others)}" if others else ""
        raise ConfigurationError("; ".join([f"{verb}: {run.name} has {what}{there}", *damaged]))


def wanted_step(run: RunDirectory, step: int | None, *, best: bool, verb: str) -> int | None:
    """The step of the checkpoint that is asked for; None for the newest. `best`: with the lowest validation loss.

    Raises:
        ConfigurationError: both are asked for, or the run has kept no best one.
    """
    if not best:
        return step
    if step is not None:
        raise ConfigurationError(f"{verb}: --best and --step {step} name a checkpoint each; leave one out")
    found = read_best(run.checkpoints)
    if found is None:
        raise ConfigurationError(
            f"{verb}: {run.name} has kept no best checkpoint; it does with checkpoint.keep_best = true"
        )
    return found.step


def parse_size(text: str) -> int:
    """Bytes from "5GB", "512 MiB" or a plain number.

    Raises:
        ConfigurationError: it is neither, or less than a megabyte.
    """
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(parts[2].upper().removesuffix("YTES") if parts else "?")
    if parts is None or unit is None:
        raise ConfigurationError(f"--max-shard-size {text}: expected a size such as 5GB or 500MB")
    size = int(float(parts[1]) * unit)
    if size < 10**6:
        raise ConfigurationError(f"--max-shard-size {text}: expected at least 1MB")
    return size


def _check_wish(wish: Wish) -> None:
    if wish.dtype is not None and wish.dtype not in DTYPES:
        raise ConfigurationError(f"--dtype {wish.dtype}: expected one of {', '.join(DTYPES)}")


def _write(run: RunDirectory, saved: SavedStep, working: Path, wish: Wish, tell: Tell) -> str:
    """Fill `working`; how it was found to be right.

    Raises:
        DamagedFileError: a file of the checkpoint is not what was saved.
    """
    names = list(saved.manifest["model_files"])
    adapter = "adapter_config.json" in names
    if wish.merge and not adapter:
        raise ConfigurationError(f"export: {run.name} trained no adapter; leave --merge out")
    if wish.is_copy:
        _check_room(working, sum(saved.manifest["model_files"].values()))
        for name in names:
            shutil.copyfile(saved.path / name, working / name)
    else:
        from workbench.export.writing import write_changed

        write_changed(run, saved, working, wish, lambda size: _check_room(working, size), tell)
    if not wish.check:
        return "not looked at"
    from workbench.export.checking import check_export

    return check_export(run, saved, working, wish, tell)


def _check_room(working: Path, size: int) -> None:
    free = shutil.disk_usage(working).free
    if free < size:
        raise WorkbenchError(
            f"export: {working.parent} has no room: the model takes {size / 2**20:,.0f} MiB and "
            f"{free / 2**20:,.0f} MiB are free"
        )


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its place when it is full, and is gone where that fails."""
    working = target.with_name(f".{target.name}-{secrets.token_hex(4)}.partial")
    try:
        working.mkdir(parents=True)
        yield working
        for path in working.iterdir():
            _sync(path)
        _sync(working)
        if target.exists():
            target.rmdir()
        working.rename(target)
    except OSError as error:
        raise WorkbenchError(f"export: {target} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
