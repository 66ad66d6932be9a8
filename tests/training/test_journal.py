"""What a run writes down: the step line, status, metrics and events, also on a disk that refuses."""

from __future__ import annotations

import json
import math
import re
import threading

import pytest

from workbench.engine import Span, StepResult
from workbench.errors import DoesNotFitError, WorkbenchError
from workbench.runs import (
    RunDirectory,
    Status,
    append_event,
    read_events,
    read_lanes,
    read_run_metrics,
    read_status,
    write_status,
)
from workbench.timeline import Kind, Lane
from workbench.training import journal as journal_module
from workbench.training.journal import GIB, Journal, StartupStatus, StepRecord
from workbench.training.signals import StopBeforeTraining


def result(**changes: object) -> StepResult:
    values: dict[str, object] = {
        "step": 120,
        "grad_norm": 0.98,
        "skipped": False,
        "learning_rate": 2.4e-4,
        "lane_seconds": dict.fromkeys(Lane, 0.5),
        "exposed_seconds": dict.fromkeys(Lane, 0.125),
        "exposed_s": 0.25,
        "forward_s": 0.2,
        "loss_scale": 1.0,
        "spans": (Span(Lane.COMPUTE, Kind.FORWARD, None, None, 10.0, 11.0),),
    }
    return StepResult(**{**values, **changes})  # type: ignore[arg-type]


def record(**changes: object) -> StepRecord:
    values: dict[str, object] = {
        "step": 120,
        "total_steps": 10_000,
        "loss": 3.21449,
        "tokens": 10_254,
        "tokens_total": 1_230_480,
        "step_s": 8.31,
        "mfu": 0.312,
        "device_bytes": (int(22.1 * GIB), 24 * GIB),
        "host_bytes": 81 * GIB,
        "eta_s": 22 * 3600 + 10 * 60.0,
    }
    return StepRecord(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "outcome", "line"),
    [
        (
            {},
            {},
            "step 00120/10000 | loss 3.2145 | gnorm 0.98 | lr 2.4e-04 | 1,234 tok/s | mfu 31.2% | gpu 22.1/24.0 GiB | "
            "host 81.0 GiB | 8.31s | eta 22h10m | forward 0.20s backward 0.30s update 0.50s",
        ),
        (
            {"step": 7, "total_steps": 1_000_000, "mfu": None, "device_bytes": None, "eta_s": None},
            {"skipped": True, "grad_norm": math.inf, "loss_scale": 65536.0},
            "step 0000007/1000000 | loss 3.2145 | gnorm inf | lr 2.4e-04 | 1,234 tok/s | mfu N/A | gpu N/A | "
            "host 81.0 GiB | 8.31s | eta N/A | forward 0.20s backward 0.30s update 0.50s | loss scale 65536 | skipped",
        ),
    ],
)
def test_the_step_line_is_the_documented_one(
    changes: dict[str, object], outcome: dict[str, object], line: str
) -> None:
    assert record(**changes).line(result(**outcome)) == line


def test_a_step_is_in_metrics_status_and_lanes(run: RunDirectory) -> None:
    with Journal(run, 120) as journal:
        journal.begin_at(119)
        journal.phase("training")
        journal.step(record(total_steps=120, mfu=None, device_bytes=None), result(), 2.5)
    last = read_run_metrics(run).last()
    assert (last["step"], last["loss"], last["validation_loss"]) == (120, 3.21449, 2.5)
    assert {"mfu", "device_bytes"}.isdisjoint(last), "what is not known is no zero"
    assert last["tokens_per_s"] == pytest.approx(10_254 / 8.31)
    status = read_status(run)
    assert (status.step, status.total_steps, status.phase, status.loss) == (120, 120, "training", 3.21449)
    lanes = read_lanes(run)
    assert (lanes.step, lanes.spans[0].lane, lanes.spans[0].start_s) == (120, "compute", 0.0)


def test_an_evaluation_is_an_event_and_stays_in_the_status(run: RunDirectory) -> None:
    with Journal(run, 10) as journal:
        journal.evaluation(5, 2.5, 12.2, 0.1)
        journal.step(record(step=10, total_steps=10), result(), None)
    assert read_status(run).validation_loss == 2.5
    [event] = read_events(run).events
    assert (event.kind, event.fields["step"], event.fields["loss"]) == ("evaluation", 5, 2.5)


def test_each_lane_has_its_busy_and_its_exposed_seconds_in_the_record(run: RunDirectory) -> None:
    busy = {lane: 1.0 + number for number, lane in enumerate(Lane)}
    exposed = {lane: seconds / 4 for lane, seconds in busy.items()}
    with Journal(run, 200) as journal:
        journal.step(record(), result(lane_seconds=busy, exposed_seconds=exposed, exposed_s=9.0), None)
    last = read_run_metrics(run).last()
    assert last["compute_s"] == busy[Lane.COMPUTE] and last["exposed_s"] == 9.0
    assert (last["forward_s"], last["backward_s"]) == pytest.approx((0.2, busy[Lane.COMPUTE] - 0.2))
    for lane in [lane for lane in Lane if lane is not Lane.COMPUTE]:
        assert last[f"{lane.value}_s"] == busy[lane]
        assert last[f"{lane.value}_exposed_s"] == exposed[lane]


def test_a_loss_scale_that_moves_is_one_event_and_no_warning_for_each_overflow(run: RunDirectory) -> None:
    with Journal(run, 200) as journal:
        for step, (scale, skipped) in enumerate(
            [(65536.0, True), (65536.0, True), (32768.0, True), (32768.0, False), (16384.0, False)], 1
        ):
            journal.step(
                record(step=step), result(skipped=skipped, loss_scale=scale, scale_can_fall=True), None
            )
    metrics = read_run_metrics(run)
    assert list(metrics.column("loss_scale")) == [65536.0, 65536.0, 32768.0, 32768.0, 16384.0]
    assert list(metrics.column("skipped")) == [1, 1, 1, 0, 0]
    found = [(event.kind, event.fields) for event in read_events(run).events]
    assert found == [
        ("loss_scale", {"step": 3, "scale": 32768.0}),
        ("loss_scale", {"step": 5, "scale": 16384.0}),
    ]


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_a_skipped_step_that_no_smaller_scale_mends_is_recorded_and_warned_of(
    run: RunDirectory, scale: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(run, 200) as journal:
        journal.step(record(), result(skipped=True, loss_scale=scale), None)
    assert read_run_metrics(run).last()["skipped"] == 1
    assert "step 120 was skipped" in capsys.readouterr().err
    assert [event.kind for event in read_events(run).events] == ["warning"]


def test_each_change_of_phase_is_one_event(run: RunDirectory) -> None:
    with Journal(run, 9) as journal:
        for phase, progress in (
            ("allocating", ""),
            ("allocating", "unit 1"),
            ("training", ""),
            ("training", ""),
        ):
            journal.phase(phase, progress)
    assert [event.fields["phase"] for event in read_events(run).events] == ["allocating", "training"]


def test_a_resumed_run_keeps_its_time_and_what_it_had_reached(run: RunDirectory) -> None:
    write_status(
        run,
        Status(phase="stopped", step=40, elapsed_s=100.0, validation_loss=2.0, exit_code=143, message="m"),
    )
    with Journal(run, 50):
        status = read_status(run)
        assert (status.phase, status.step, status.validation_loss) == ("starting", 40, 2.0)
        assert status.exit_code is None and status.message == ""
        assert status.elapsed_s >= 100.0


def test_the_end_is_status_and_event(run: RunDirectory) -> None:
    with Journal(run, 9) as journal:
        journal.end("diverged", 4, "why")
    status, [event] = read_status(run), read_events(run).events
    assert (status.phase, status.exit_code, status.message, status.eta_s) == ("diverged", 4, "why", None)
    assert (event.kind, event.fields["phase"], event.fields["exit_code"]) == ("finished", "diverged", 4)


def test_the_files_are_json_without_numbers_that_json_does_not_have(run: RunDirectory) -> None:
    with Journal(run, 120) as journal:
        journal.step(record(loss=math.nan, total_steps=120), result(), None)
        journal.evaluation(120, math.inf, math.inf, 0.1)
    for text in (run.status.read_text(), *run.events.read_text().splitlines()):
        json.loads(text, parse_constant=pytest.fail)
    assert not re.search("NaN|Infinity", run.status.read_text() + run.events.read_text())


# The heartbeat, and the status of a run whose process is still preparing it


@pytest.fixture
def announced(run: RunDirectory) -> RunDirectory:
    """A run whose status named its process before that had come up."""
    write_status(run, Status(phase="starting", step=4, total_steps=9, loss=2.0))
    return run


def test_the_preparation_says_how_far_it_is_and_warnings_are_no_progress(announced: RunDirectory) -> None:
    told: list[str] = []
    with StartupStatus(announced, told.append) as at:
        at.report("preparing the text")
        at.report("warning: slow disk")
        assert (read_status(announced).phase, read_status(announced).progress) == (
            "starting",
            "preparing the text",
        )
    assert told == ["preparing the text", "warning: slow disk"]
    assert (read_status(announced).phase, read_status(announced).step, read_status(announced).loss) == (
        "starting",
        4,
        2.0,
    )


def test_a_long_preparation_keeps_giving_signs_of_life(
    announced: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.001)
    written = threading.Semaphore(0)
    monkeypatch.setattr(journal_module, "write_status", lambda *_, **__: written.release())
    with StartupStatus(announced, print):
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
    announced: RunDirectory, error: BaseException, phase: str, code: int, message: str
) -> None:
    with pytest.raises(type(error)), StartupStatus(announced, print):
        raise error
    status = read_status(announced)
    assert (status.phase, status.exit_code, status.message, status.step) == (phase, code, message, 4)
    [event] = read_events(announced).events
    assert (event.kind, event.fields["exit_code"]) == ("finished", code)


def test_a_run_that_was_done_stays_done_when_the_preparation_to_go_on_fails(announced: RunDirectory) -> None:
    append_event(announced, "resume", from_step=3, record=2)
    append_event(announced, "finished", phase="finished", exit_code=0, message="9 steps", step=9)
    for _ in range(2):
        write_status(announced, Status(phase="starting", step=9, total_steps=20))
        with pytest.raises(DoesNotFitError), StartupStatus(announced, print):
            raise DoesNotFitError("12 GiB are missing")
        status = read_status(announced)
        assert (status.phase, status.step, status.total_steps, status.exit_code) == ("finished", 9, 9, 0)
        assert "could not continue: 12 GiB are missing" in status.message
    warnings = [event.fields["message"] for event in read_events(announced).events if event.kind == "warning"]
    assert len(warnings) == 2 and "12 GiB are missing" in warnings[-1]
    with Journal(announced, 20) as journal:
        journal.begin_at(9)
        journal.end("failed", 1, "why")
    assert read_status(announced).phase == "failed"


def test_a_run_that_nobody_announced_is_not_written(announced: RunDirectory) -> None:
    announced.status.unlink()
    with pytest.raises(ImportError), StartupStatus(None, print) as at:
        at.report("x")
        raise ImportError
    assert not announced.status.exists()


def test_no_heartbeat_comes_after_the_end_and_changes_it(
    announced: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.0005)
    for number in range(20):
        with Journal(announced, 9) as journal:
            journal.phase("training")
            journal.end("stopped", 143, f"end {number}")
        status = read_status(announced)
        assert (status.phase, status.exit_code, status.message) == ("stopped", 143, f"end {number}")


def test_an_end_that_cannot_be_recorded_does_not_hide_what_ended_the_run(
    announced: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise WorkbenchError("events.jsonl: cannot be written: No space left on device")

    with Journal(announced, 9) as journal:
        monkeypatch.setattr(journal_module, "append_event", refuse)
        journal.end("failed", 1, "why")
    assert "the end of the run is not recorded: events.jsonl" in capsys.readouterr().err
    assert read_status(announced).phase == "failed"


def test_a_heartbeat_on_a_full_disk_stops_nothing(
    announced: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.001)
    refused = threading.Semaphore(0)

    def refuse(*_: object, **__: object) -> None:
        refused.release()
        raise WorkbenchError("full")

    with Journal(announced, 9) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(journal_module, "write_status", refuse)
            assert all(refused.acquire(timeout=10) for _ in range(3))
        journal.end("finished", 0, "")
    assert read_status(announced).phase == "finished"
