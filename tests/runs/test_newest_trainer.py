"""The process that a monitor watches while no run is shown."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from workbench.runs import RunDirectory, Status, write_status
from workbench.runs.status import process_started
from workbench.runs.summary import _NEWEST_RUNS, newest_trainer


def run_of(root: Path, number: int, **changes: object) -> RunDirectory:
    """A run that this very process trains, unless `changes` say otherwise; the higher the number, the newer."""
    run = RunDirectory(root / f"20260101-{number:06d}-p-0a1b2c")
    run.path.mkdir(parents=True)
    known = {"phase": "training", "pid": os.getpid(), "pid_started": process_started(os.getpid())}
    write_status(run, Status(**{**known, "host": socket.gethostname(), **changes}), durable=False)  # type: ignore[arg-type]
    return run


def test_it_is_the_newest_one_that_trains_on_this_machine(tmp_path: Path) -> None:
    assert newest_trainer(tmp_path / "none") is None
    run_of(tmp_path, 1)
    assert newest_trainer(tmp_path) == os.getpid()
    run_of(tmp_path, 2, host="elsewhere", pid=1)
    run_of(tmp_path, 3, phase="finished", exit_code=0, pid=1)
    assert newest_trainer(tmp_path) == os.getpid()


def test_a_folder_of_thousands_is_not_read_for_it(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    for number in range(1, _NEWEST_RUNS + 1):
        run_of(tmp_path, number, phase="finished", exit_code=0)
    assert newest_trainer(tmp_path) is None
