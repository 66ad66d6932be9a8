"""The status of an announced run while its preparation goes on, and where that fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from workbench.errors import DoesNotFitError
from workbench.runs import (
    RunDirectory,
    Status,
    append_event,
    done_before,
    read_events,
    read_status,
    write_status,
)
from workbench.training.signals import StopBeforeTraining
from workbench.training.start import announced as starting
from workbench.training.start.announced import Starting


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "p")
    write_status(run, Status(phase="starting", step=4, total_steps=9, loss=2.0))
    return run


def test_the_preparation_says_how_far_it_is_and_warnings_are_no_progress(run: RunDirectory) -> None:
    told: list[str] = []
    with Starting(run, told.append) as at:
        at.tell("preparing the text")
        at.tell("warning: slow disk")
        assert (read_status(run).phase, read_status(run).progress) == ("starting", "preparing the text")
    assert told == ["preparing the text", "warning: slow disk"]
    assert (read_status(run).phase, read_status(run).step, read_status(run).loss) == ("starting", 4, 2.0)


def test_a_long_preparation_keeps_giving_signs_of_life(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "HEARTBEAT_S", 0.001)
    written = threading.Semaphore(0)
    monkeypatch.setattr(starting, "write_status", lambda *_, **__: written.release())
    with Starting(run, print):
        assert all(written.acquire(timeout=10) for _ in range(3))


@pytest.mark.parametrize(
    ("error", "phase", "code", "message"),
    [
        (DoesNotFitError("12 GiB are missing"), "failed", 3, "12 GiB are missing"),
        (ImportError("no torch"), "failed", 1, "ImportError: no torch"),
        (StopBeforeTraining(143), "stopped", 143, "stopped before the first step (exit 143)"),
    ],
)
def test_a_preparation_that_ends_the_run_says_how(
    run: RunDirectory, error: BaseException, phase: str, code: int, message: str
) -> None:
    with pytest.raises(type(error)), Starting(run, print):
        raise error
    status = read_status(run)
    assert (status.phase, status.exit_code, status.message, status.step) == (phase, code, message, 4)
    [event] = read_events(run).events
    assert (event.kind, event.fields["exit_code"]) == ("finished", code)


def test_a_run_that_was_done_stays_done_when_the_preparation_to_go_on_fails(run: RunDirectory) -> None:
    append_event(run, "resume", from_step=3, record=2)
    append_event(run, "finished", phase="finished", exit_code=0, message="9 steps", step=9)
    for _ in range(2):
        write_status(run, Status(phase="starting", step=9, total_steps=20))
        with pytest.raises(DoesNotFitError), Starting(run, print):
            raise DoesNotFitError("12 GiB are missing")
        status = read_status(run)
        assert (status.phase, status.step, status.total_steps, status.exit_code) == ("finished", 9, 9, 0)
        assert status.message == "9 steps; it could not go on: 12 GiB are missing"
    *_, one, other = read_events(run).events
    assert one.kind == other.kind == "warning" and "12 GiB are missing" in other.fields["message"]
    append_event(run, "resume", from_step=10, record=9)
    assert done_before(run) is None


def test_a_run_that_nobody_announced_is_not_written(run: RunDirectory) -> None:
    run.status.unlink()
    with pytest.raises(ImportError), Starting(None, print) as at:
        at.tell("x")
        raise ImportError
    assert not run.status.exists()
