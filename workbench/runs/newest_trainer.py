"""The process that trains the newest run: what a monitor watches while no run is shown."""

from __future__ import annotations

import socket
from pathlib import Path

from workbench.runs.directory import RunDirectory
from workbench.runs.status import liveness, read_status

MOST_RUNS = 20
"""Of the newest: one that is still trained stands among them, and a folder of thousands is not read for it."""


def newest_trainer(root: Path) -> int | None:
    """The process id of the newest run below `root` that trains, or pauses, on this machine; None where none does."""
    for run in reversed(RunDirectory.list(root)[-MOST_RUNS:]):
        status = read_status(run)
        if liveness(status) in ("running", "paused") and status.host == socket.gethostname():
            return status.pid
    return None
