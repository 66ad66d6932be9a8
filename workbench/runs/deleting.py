"""Delete a run's folder: everything is checked, then it vanishes at one instant, then its files are removed.

Invariant: nothing outside the folder is touched but the `latest` link that named it, and no trainer loses its folder:
the run is locked while it goes.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.records import cannot_write
from workbench.runs.status import ACTIVE, liveness, read_status

_PREFIX = ".deleting-"
"""The beginning of a folder's name while its files are removed. The next deletion removes what a crash leaves."""
_BLOCK = 512
"""POSIX stat counts blocks of 512 bytes, whatever the file system's own."""


@dataclass(frozen=True)
class Deletion:
    """The files that deleting a run takes away."""

    run: RunDirectory
    files: int
    bytes: int
    """On the disk."""
    checkpoints: int
    """Saved models."""


def plan_deletion(run: RunDirectory) -> Deletion:
    """Return what deleting `run` would take away; nothing is changed.

    Raises:
        ConfigurationError: the folder is not a run, or a link to one.
        WorkbenchError: the run has, or may have, a trainer, or cannot be read.
    """
    path = run.path.absolute()
    if path.is_symlink():
        raise ConfigurationError(f"run {path}: is a link to {path.readlink()}; delete that folder itself")
    RunDirectory.open(path)
    status = read_status(run)
    state = liveness(status)
    if state in ACTIVE:
        where = f" on {status.host}" if state == "stale" and status.host else ""
        raise WorkbenchError(f"run {run.name} is {state}{where}: stop it first (workbench stop {run.name})")
    try:
        stats = [entry.lstat() for entry in path.rglob("*") if entry.is_symlink() or not entry.is_dir()]
    except OSError as error:
        raise cannot_write(path, error) from error
    size = sum(_BLOCK * stat.st_blocks for stat in stats)
    return Deletion(run, len(stats), size, checkpoints=len(list(path.glob("checkpoints/*/DONE"))))


def delete_run(run: RunDirectory) -> Deletion:
    """Delete the folder of `run`, and the `latest` link where it named it; return what went.

    Raises what `plan_deletion` raises, and WorkbenchError where a trainer holds the run or the folder cannot go.
    """
    deletion = plan_deletion(run)
    root = run.path.absolute().parent
    lock = RunDirectory(run.path)
    lock.acquire()
    try:
        if liveness(read_status(run)) in ACTIVE:  # written since the plan
            raise WorkbenchError(
                f"run {run.name} has been started: stop it first (workbench stop {run.name})"
            )
        hidden = root / f"{_PREFIX}{run.name}-{secrets.token_hex(4)}"
        try:
            run.path.rename(hidden)
        except OSError as error:
            raise WorkbenchError(f"run {run.path} cannot be deleted: {error.strerror or error}") from error
        _remove_latest(root, run.name)
    finally:
        lock.release()
    for folder in root.glob(f"{_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)  # links in it are removed and not followed
    if hidden.exists():
        raise WorkbenchError(
            f"run {run.name} is deleted, but {hidden} could not be removed completely; remove it by hand"
        )
    return deletion


def _remove_latest(root: Path, name: str) -> None:
    """Remove `latest` where it names the run; the newest one is found without it."""
    latest = root / "latest"
    with contextlib.suppress(OSError):
        if latest.is_symlink() and latest.readlink().name == name:
            latest.unlink()
