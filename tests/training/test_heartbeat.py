"""The status of a run while its process works or prepares it, and where that fails, also on a disk that refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.errors import DoesNotFitError, WorkbenchError
from workbench.runs import (
    RunDirectory,
    Status,
    append_event,
    read_events,
    read_status,
    write_status,
)
from workbench.training import journal as journal_module
from workbench.training.journal import Journal, StartupStatus
from workbench.training.signals import StopBeforeTraining


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "p")
    write_status(run, Status(phase="starting", step=4, total_steps=9, loss=2.0))
    return run


def test_the_preparation_says_how_far_it_is_and_warnings_are_no_progress(run: RunDirectory) -> None:
    told: list[str] = []
    with StartupStatus(run, told.append) as at:
        at.report("preparing the text")
        at.report("warning: slow disk")
        assert (read_status(run).phase, read_status(run).progress) == ("starting", "preparing the text")
    assert told == ["preparing the text", "warning: slow disk"]
    assert (read_status(run).phase, read_status(run).step, read_status(run).loss) == ("starting", 4, 2.0)


def test_a_long_preparation_keeps_giving_signs_of_life(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.001)
    written = threading.Semaphore(0)
    monkeypatch.setattr(journal_module, "write_status", lambda *_, **__: written.release())
    with StartupStatus(run, print):
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
    with pytest.raises(type(error)), StartupStatus(run, print):
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
        with pytest.raises(DoesNotFitError), StartupStatus(run, print):
            raise DoesNotFitError("12 GiB are missing")
        status = read_status(run)
        assert (status.phase, status.step, status.total_steps, status.exit_code) == ("finished", 9, 9, 0)
        assert "could not go on: 12 GiB are missing" in status.message
    warnings = [event.fields["message"] for event in read_events(run).events if event.kind == "warning"]
    assert len(warnings) == 2 and "12 GiB are missing" in warnings[-1]
    with Journal(run, 20) as journal:
        journal.begin_at(9)
        journal.end("failed", 1, "why")
    assert read_status(run).phase == "failed"


def test_a_run_that_nobody_announced_is_not_written(run: RunDirectory) -> None:
    run.status.unlink()
    with pytest.raises(ImportError), StartupStatus(None, print) as at:
        at.report("x")
        raise ImportError
    assert not run.status.exists()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_no_heartbeat_comes_after_the_end_and_changes_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.0005)
    for number in range(20):
        with Journal(run, 9) as journal:
            journal.phase("training")
            journal.end("stopped", 143, f"end {number}")
        status = read_status(run)
        assert (status.phase, status.exit_code, status.message) == ("stopped", 143, f"end {number}")


def test_an_end_that_cannot_be_recorded_does_not_hide_what_ended_the_run(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise WorkbenchError("events.jsonl: cannot be written: No space left on device")

    with Journal(run, 9) as journal:
        monkeypatch.setattr(journal_module, "append_event", refuse)
        journal.end("failed", 1, "why")
    assert "the end of the run is not recorded: events.jsonl" in capsys.readouterr().err
    assert read_status(run).phase == "failed"


def test_a_heartbeat_on_a_full_disk_stops_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.001)
    refused = []
    with Journal(run, 9) as journal:
        write = journal_module.write_status

        def refuse(*_: object, **__: object) -> None:
            refused.append(1)
            raise WorkbenchError("full")

        monkeypatch.setattr(journal_module, "write_status", refuse)
        wait_for(lambda: len(refused) > 2)
        monkeypatch.setattr(journal_module, "write_status", write)
        journal.end("finished", 0, "")
    assert read_status(run).phase == "finished"
