"""What comes out of a run: a checkpoint's model as a folder of its own, without the state that only resuming needs.

No torch: a checkpoint holds its model as `from_pretrained` loads it, so exporting is copying. Invariant: the target is
there whole or not at all, and nothing that was there before is touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import SavedStep, find_checkpoints


@dataclass(frozen=True)
class Exported:
    """A model that was exported."""

    path: Path
    step: int
    bytes: int


def export(run: RunDirectory, target: Path, *, step: int | None = None) -> Exported:
    """Copy the model of a checkpoint of `run`, the newest whole one or that of `step`, into the new folder `target`.

    Raises:
        ConfigurationError: the run has no such checkpoint, or `target` is there already and not an empty folder.
        WorkbenchError: it could not be written; nothing is left of it.
    """
    target = target.expanduser().absolute()
    saved = _checkpoint(run, step)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigurationError(f"export: {target} is there already; name a new or an empty folder")
    names = list(saved.manifest["model_files"])
    size = sum(saved.manifest["model_files"].values())
    working = target.with_name(f".{target.name}-{secrets.token_hex(4)}.partial")
    try:
        working.mkdir(parents=True)
        free = shutil.disk_usage(working).free
        if free < size:
            raise WorkbenchError(
                f"export: {target.parent} has no room: the model takes {size / 2**20:,.0f} MiB and "
                f"{free / 2**20:,.0f} MiB are free"
            )
        for name in names:
            shutil.copyfile(saved.path / name, working / name)
            _sync(working / name)
        _sync(working)
        if target.exists():
            target.rmdir()
        working.rename(target)
    except OSError as error:
        raise WorkbenchError(f"export: {target} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return Exported(target, saved.step, size)


def _checkpoint(run: RunDirectory, step: int | None) -> SavedStep:
    problems: list[str] = []
    steps = []
    for saved in find_checkpoints(run.checkpoints, problems.append):
        if step is None or saved.step == step:
            return saved
        steps.append(f"{saved.step:,}")
    what = "no checkpoint" if step is None else f"no checkpoint of step {step:,}"
    there = f"; there are those of step {', '.join(steps)}" if steps else ""
    raise ConfigurationError("; ".join([f"export: {run.name} has {what}{there}", *problems]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
