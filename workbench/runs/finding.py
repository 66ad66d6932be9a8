"""Find the run that a word of the user means: a path, a name, a label, a part of a name, or no word at all.

Invariant: a word that means more than one run is refused with their names; none is taken by chance.
"""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import ConfigurationError
from workbench.runs.directory import RunDirectory, is_run, latest_run, why_empty
from workbench.runs.status import Status, liveness, read_status

_NEWEST_RUNS = 20
"""A run that is still trained stands among so many, and a folder of thousands is not read for it."""


def find_run(root: Path, name: str | None) -> RunDirectory:
    """Return the run that `name` means: a path, a full name, one of its labels, or a unique part of its name.

    None means the run that trains, or else the newest; "latest" means the newest.

    Raises ConfigurationError with the nearest names where there is none or more than one.
    """
    if name is None and (training := training_run(root)) is not None:
        return training
    runs = RunDirectory.list(root)
    if name is None or name == "latest":
        latest = latest_run(root)
        if latest is not None:
            return latest
        if not runs:
            raise ConfigurationError(f"run folder {root}: {why_empty(root)}")
        return runs[-1]
    for run in runs:
        if run.name == name:
            return run
    if os.sep in name or name in (".", "..", "~"):
        return RunDirectory.open(Path(name))
    matching = [run for run in runs if name in run.labels]
    if not matching and name:
        matching = [run for run in runs if name in run.name]
    if len(matching) == 1:
        return matching[0]
    if not matching and is_run(Path(name)):
        return RunDirectory.open(Path(name))
    if matching:
        some = ", ".join(run.name for run in matching[-5:])
        raise ConfigurationError(
            f"run {name!r}: {len(matching)} runs in {root} have this in their name: {some}"
        )
    names = [run.name for run in runs]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[-3:]
    hint = f"; closest: {', '.join(near)}" if near else "; the folder has no runs"
    raise ConfigurationError(f"no run is named {name!r} in {root}{hint}")


def training_run(root: Path) -> RunDirectory | None:
    """Return the newest run in `root` that trains or is paused; None where none is."""
    return next((run for run, _ in _training(root)), None)


def newest_trainer(root: Path) -> int | None:
    """Return the process id of the newest run in `root` that trains, or is paused, on this machine; else None."""
    found = newest_training(root)
    return None if found is None else found[1]


def newest_training(root: Path) -> tuple[RunDirectory, int] | None:
    """Return that run and its process id."""
    here = ((run, status.pid) for run, status in _training(root) if status.host == socket.gethostname())
    return next(here, None)


def _training(root: Path) -> Iterator[tuple[RunDirectory, Status]]:
    for run in reversed(RunDirectory.list(root)[-_NEWEST_RUNS:]):
        status = read_status(run)
        if liveness(status) in ("running", "paused"):
            yield run, status
