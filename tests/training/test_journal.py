"""What a run writes down: the step line, status, metrics and events, also on a disk that refuses."""

from __future__ import annotations

import json
import math
import re

import pytest

from workbench.engine import Span, StepResult
from workbench.runs import (
    RunDirectory,
    Status,
    read_events,
    read_lanes,
    read_run_metrics,
    read_status,
    write_status,
)
from workbench.timeline import Kind, Lane
from workbench.training.journal import GIB, Journal, StepRecord


def result(**changes: object) -> StepResult:
    values: dict[str, object] = {
        "step": 120,
        "grad_norm": 0.98,
        "skipped": False,
        "learning_rate": 2.4e-4,
        "lane_seconds": dict.fromkeys(Lane, 0.5),
        "exposed_seconds": dict.fromkeys(Lane, 0.125),
        "exposed_s": 0.25,
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
            "host 81.0 GiB | 8.31s | eta 22h10m",
        ),
        (
            {"step": 7, "total_steps": 1_000_000, "mfu": None, "device_bytes": None, "eta_s": None},
            {"skipped": True, "grad_norm": math.inf},
            "step 0000007/1000000 | loss 3.2145 | gnorm inf | lr 2.4e-04 | 1,234 tok/s | mfu N/A | gpu N/A | "
            "host 81.0 GiB | 8.31s | eta N/A | skipped",
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
        journal.step(record(total_steps=120), result(), 2.5)
    last = read_run_metrics(run).last()
    assert (last["step"], last["loss"], last["validation_loss"]) == (120, 3.21449, 2.5)
    assert last["tokens_per_s"] == pytest.approx(10_254 / 8.31)
    status = read_status(run)
    assert (status.step, status.total_steps, status.phase, status.loss) == (120, 120, "training", 3.21449)
    lanes = read_lanes(run)
    assert (lanes.step, lanes.spans[0].lane, lanes.spans[0].start_s) == (120, "compute", 0.0)


def test_a_metric_that_is_not_known_is_not_a_zero(run: RunDirectory) -> None:
    with Journal(run, 120) as journal:
        journal.step(record(mfu=None, device_bytes=None), result(), None)
    assert {"mfu", "device_bytes", "validation_loss"}.isdisjoint(read_run_metrics(run).last())


def test_an_evaluation_is_an_event_and_stays_in_the_status(run: RunDirectory) -> None:
    with Journal(run, 10) as journal:
        journal.evaluation(5, 2.5, 12.2, 0.1)
        journal.step(record(step=10, total_steps=10), result(), None)
    assert read_status(run).validation_loss == 2.5
    [event] = read_events(run).events
    assert (event.kind, event.fields["step"], event.fields["loss"]) == ("evaluation", 5, 2.5)


def test_a_skipped_step_is_recorded_and_warned_of(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(run, 200) as journal:
        journal.step(record(), result(skipped=True), None)
    assert read_run_metrics(run).last()["skipped"] == 1
    assert "step 120 was skipped" in capsys.readouterr().err
    assert [event.kind for event in read_events(run).events] == ["warning"]


def test_each_lane_has_its_busy_and_its_exposed_seconds_in_the_record(run: RunDirectory) -> None:
    busy = {lane: 1.0 + number for number, lane in enumerate(Lane)}
    exposed = {lane: seconds / 4 for lane, seconds in busy.items()}
    with Journal(run, 200) as journal:
        journal.step(record(), result(lane_seconds=busy, exposed_seconds=exposed, exposed_s=9.0), None)
    last = read_run_metrics(run).last()
    assert last["compute_s"] == busy[Lane.COMPUTE] and last["exposed_s"] == 9.0
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
def test_an_overflow_that_no_smaller_scale_mends_is_warned_of(run: RunDirectory, scale: float) -> None:
    with Journal(run, 200) as journal:
        journal.step(record(), result(skipped=True, loss_scale=scale), None)
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
