"""Export a checkpoint's model into a folder of its own, without the state that only resuming needs.

As it was saved, in another dtype, in files of another size, or with its adapter merged into the weights; and checked
by loading it. Imports no torch until a model has to be changed or checked.

Invariant: the target is there whole or not at all, and nothing that was there before is touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ByteSize, TypeAdapter, ValidationError

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model.hub import Log
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import (
    DamagedFileError,
    SavedStep,
    check_model_files,
    find_checkpoints,
    read_best,
)
from workbench.system.files import sync_folder
from workbench.system.folders import expanded

T = TypeVar("T")

DTYPES = ("bf16", "fp16", "fp32")
"""The values of `--dtype`."""


@dataclass(frozen=True)
class Exported:
    """A model that was exported. `checked`: how it was found to be right, a sentence."""

    path: Path
    step: int
    bytes: int
    checked: str = ""


@dataclass(frozen=True)
class ExportOptions:
    """`dtype`: of the weights, one of `DTYPES`; None leaves it, and for a merged adapter takes the run's own.
    `merge`: the adapter into the weights of its base. `largest_file_bytes`: None leaves the files as they are.
    `check`: load the result and compare its logits."""

    dtype: str | None = None
    merge: bool = False
    largest_file_bytes: int | None = None
    check: bool = False

    @property
    def is_copy(self) -> bool:
        """Return True where the files are copied as they are."""
        return self.dtype is None and not self.merge and self.largest_file_bytes is None


def export(
    run: RunDirectory,
    target: Path,
    *,
    step: int | None = None,
    options: ExportOptions | None = None,
    log: Log = lambda _: None,
) -> Exported:
    """Write the model of a checkpoint of `run`, the newest whole one or that of `step`, into the new folder `target`.

    `log` gets a warning for each checkpoint that is skipped, and the progress.

    Raises:
        ConfigurationError: the run has no such checkpoint, the options do not fit it, or `target` is there already and
            not an empty folder.
        WorkbenchError: the checkpoint is damaged, the model could not be written, or is not what the run has;
            nothing is left of it.
    """
    options = options or ExportOptions()
    target = expanded(target, "export").absolute()
    if options.dtype is not None and options.dtype not in DTYPES:
        raise ConfigurationError(f"--dtype {options.dtype}: expected one of {', '.join(DTYPES)}")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigurationError(f"export: {target} already exists; name a new or an empty folder")

    def write(saved: SavedStep) -> Exported:
        with _new_folder(target) as working:
            checked = _write(run, saved, working, options, log)
            size = sum(path.stat().st_size for path in working.iterdir())
        return Exported(target, saved.step, size, checked)

    return with_whole_checkpoint(run, step, "export", write, log)


def with_whole_checkpoint(
    run: RunDirectory, step: int | None, command: str, use: Callable[[SavedStep], T], log: Log
) -> T:
    """Return what `use` makes of the newest checkpoint of `run` that is whole, or of that of `step`.

    One that is damaged, or that `use` finds to be so (DamagedFileError), is skipped with a warning to `log`.

    Raises:
        ConfigurationError: there is none.
        WorkbenchError: none of them is whole.
    """
    damaged: list[str] = []

    def skip(message: str) -> None:
        damaged.append(message)
        log(f"warning: {message}")

    others = []
    found = False
    for saved in find_checkpoints(run.checkpoints, skip):
        if step is not None and saved.step != step:
            others.append(f"{saved.step:,}")
            continue
        found = True
        try:
            check_model_files(saved)
            return use(saved)
        except DamagedFileError as error:
            skip(f"checkpoint {saved.path.name} is skipped: {error}")
    what = "no checkpoint" if step is None else f"no checkpoint of step {step:,}"
    there = f"; there are those of step {', '.join(others)}" if others else ""
    kind = WorkbenchError if found else ConfigurationError
    raise kind(
        "; ".join([f"{command}: {run.name} has {what}{' that is undamaged' * found}{there}", *damaged])
    )


def wanted_step(run: RunDirectory, step: int | None, *, best: bool, command: str) -> int | None:
    """Return the step of the checkpoint that is asked for; None for the newest.

    `best`: the checkpoint with the lowest validation loss.

    Raises:
        ConfigurationError: both are asked for, or the run has kept no best one.
    """
    if not best:
        return step
    if step is not None:
        raise ConfigurationError(f"{command}: --best and --step {step} name a checkpoint each; leave one out")
    found = read_best(run.checkpoints)
    if found is None:
        raise ConfigurationError(
            f"{command}: {run.name} has kept no best checkpoint; it does with checkpoint.keep_best = true"
        )
    return found.step


def parse_size(text: str) -> int:
    """Return the bytes of "5GB", "512 MiB" or a plain number.

    Raises:
        ConfigurationError: it is neither, or less than a megabyte.
    """
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise ConfigurationError(f"--max-shard-size {text}: expected a size such as 5GB or 500MB") from None
    if size < 10**6:
        raise ConfigurationError(f"--max-shard-size {text}: expected at least 1MB")
    return size


def _write(run: RunDirectory, saved: SavedStep, working: Path, options: ExportOptions, log: Log) -> str:
    """Fill `working`; return how it was found to be right.

    Raises:
        DamagedFileError: a file of the checkpoint is not what was saved.
    """
    sizes = saved.manifest.model_files
    if options.merge and "adapter_config.json" not in sizes:
        raise ConfigurationError(f"export: {run.name} trained no adapter; leave --merge out")

    def check_room(size: int) -> None:
        free = shutil.disk_usage(working).free
        if free < size:
            raise WorkbenchError(
                f"export: {working.parent} has no room: the model takes {size / 2**20:,.0f} MiB and "
                f"{free / 2**20:,.0f} MiB are free"
            )

    if options.is_copy:
        check_room(sum(sizes.values()))
        for name in sizes:
            shutil.copyfile(saved.path / name, working / name)
    else:
        from workbench.export.weights import write_changed

        write_changed(
            run,
            saved,
            working,
            to=options.dtype,
            merge=options.merge,
            largest_file_bytes=options.largest_file_bytes,
            check_room=check_room,
            log=log,
        )
    if not options.check:
        return "not checked"
    from workbench.export.check import check_export

    return check_export(run, saved, working, to=options.dtype, merge=options.merge, log=log)


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target` that takes its place when it is full, and is gone where that fails."""
    working = target.with_name(f".{target.name}-{secrets.token_hex(4)}.partial")
    try:
        working.mkdir(parents=True)
        yield working
        for path in working.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(working)
        if target.exists():
            target.rmdir()
        working.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise WorkbenchError(f"export: {target} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
