"""Delete a run's folder: everything is checked first, then it vanishes at one instant, then it is taken apart.

Invariant: nothing outside the folder is touched but the `latest` link that named it, and no trainer loses the ground
it stands on: the run is held while it goes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.status import liveness, read_status
from workbench.runs.summary import LIVING
from workbench.runs.writing import cannot_write

_GRAVE = ".deleting-"
"""How a folder's name begins while it is taken apart; what a crash leaves of one, the next deletion removes."""


@dataclass(frozen=True)
class Deletion:
    """What deleting a run would take away."""

    run: RunDirectory
    files: int
    bytes: int
    """Freed on the disk: a file that has a name elsewhere, too, frees nothing."""
    checkpoints: int
    """Saved models among it."""


def plan_deletion(run: RunDirectory) -> Deletion:
    """What deleting `run` would take away; nothing is changed.

    Raises:
        ConfigurationError: the folder is no run, is a link or a mount point, or a link in it leads out of it.
        WorkbenchError: the run has, or may have, a trainer.
    """
    path = run.path.absolute()
    if path.is_symlink():
        raise ConfigurationError(f"run {path}: is a link to {path.readlink()}; delete that folder itself")
    RunDirectory.open(path)
    if path.is_mount():
        raise ConfigurationError(f"run {path}: is a mount point; unmount it first")
    status = read_status(run)
    state = liveness(status)
    if state in LIVING:
        where = f" on {status.host}" if state == "stale" and status.host else ""
        raise WorkbenchError(f"run {run.name} is {state}{where}: stop it first (workbench stop {run.name})")
    files, size = _count(path)
    checkpoints = sum(1 for mark in path.glob("checkpoints/*/DONE"))
    return Deletion(run, files, size, checkpoints)


def delete_run(run: RunDirectory) -> Deletion:
    """Delete the folder of `run`, and the `latest` link where it named it; gives what went.

    Raises what `plan_deletion` raises, and WorkbenchError where a trainer holds the run or the folder cannot go.
    """
    deletion = plan_deletion(run)
    root = run.path.absolute().parent
    held = RunDirectory(run.path)
    held.acquire()
    try:
        # A status that was written since.
        if liveness(read_status(run)) in LIVING:
            raise WorkbenchError(
                f"run {run.name} has been started: stop it first (workbench stop {run.name})"
            )
        grave = root / f"{_GRAVE}{run.name}-{secrets.token_hex(4)}"
        try:
            run.path.rename(grave)
        except OSError as error:
            raise WorkbenchError(f"run {run.path} cannot be deleted: {error.strerror or error}") from error
        _forget_latest(root, run.name)
    finally:
        held.release()
    for left in [grave, *root.glob(f"{_GRAVE}*")]:
        _remove(left)
    if grave.exists():
        raise WorkbenchError(
            f"run {run.name} is deleted, but {grave} could not be removed whole; remove it by hand"
        )
    return deletion


def _count(path: Path) -> tuple[int, int]:
    """Files, and bytes that the disk gets back. Raises ConfigurationError for a link that leads out of `path`."""
    files = size = 0
    inside = path.resolve()
    linked: dict[tuple[int, int], int] = {}
    for folder, folders, names in os.walk(path):
        for name in folders + names:
            entry = Path(folder, name)
            try:
                there = entry.lstat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise cannot_write(entry, error) from error
            if stat.S_ISLNK(there.st_mode):
                if not entry.resolve().is_relative_to(inside):
                    raise ConfigurationError(
                        f"run {path}: {entry.relative_to(path)} is a link that leads out of it, to {entry.readlink()}; "
                        "remove the link, and what it points to, by hand first"
                    )
                continue
            if stat.S_ISDIR(there.st_mode):
                continue
            files += 1
            if there.st_nlink > 1:
                key = there.st_dev, there.st_ino
                linked[key] = linked.get(key, 0) + 1
                if linked[key] < there.st_nlink:
                    continue
            size += (
                there.st_blocks * 512
            )  # POSIX stat: blocks are of 512 bytes whatever the file system's own
    return files, size


def _forget_latest(root: Path, name: str) -> None:
    """Remove `latest` where it names the run; the newest one is found without it."""
    latest = root / "latest"
    with contextlib.suppress(OSError, ValueError):
        named = str(latest.readlink()) if latest.is_symlink() else latest.read_text().strip()
        if Path(named).name == name:
            latest.unlink()


def _remove(folder: Path) -> None:
    """Remove a whole folder; links in it are removed and not followed."""
    shutil.rmtree(folder, ignore_errors=True)
