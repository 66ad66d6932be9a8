"""A step's compute seconds are those of its own forwards and backwards, though it is settled after the next forward."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import CpuDevice
from workbench.engine.execution import Span
from workbench.engine.report import (
    ComputeClock,
    cut_out,
    exposed_seconds,
    lane_seconds,
    on_update_lane,
    total_seconds,
)
from workbench.timeline import Kind, Lane


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved on by hand."""
    reading = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: reading[0])
    return reading


def step(clock: ComputeClock, now: list[float], forward_s: float, backward_s: float) -> None:
    forward(clock, now, forward_s)
    clock.begin(Kind.BACKWARD)
    now[0] += backward_s
    clock.end()
    clock.end_step()


def forward(clock: ComputeClock, now: list[float], seconds: float) -> None:
    clock.begin(Kind.FORWARD)
    now[0] += seconds
    clock.end()


def test_the_forward_of_the_next_step_is_that_steps(now: list[float]) -> None:
    clock = ComputeClock(CpuDevice())
    step(clock, now, 2.0, 3.0)
    forward(clock, now, 4.0)
    first = clock.take()
    assert lane_seconds(first.own)[Lane.COMPUTE] == 5.0
    assert lane_seconds(first.spans)[Lane.COMPUTE] == 9.0
    step(clock, now, 0.0, 6.0)
    assert lane_seconds(clock.take().own)[Lane.COMPUTE] == 10.0


def test_a_wait_is_cut_out_of_what_computes_and_takes_one_event(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, events = CpuDevice(), []
    record = device.record_moment
    monkeypatch.setattr(device, "record_moment", lambda: (events.append(now[0]), record())[1])
    clock = ComputeClock(device)
    clock.begin(Kind.BACKWARD)
    for _ in range(100):
        now[0] += 2.0
        with clock.waiting():
            now[0] += 1.0
            with clock.waiting():  # as a slot that is waited for within a step's inline work
                now[0] += 1.0
    clock.end()
    clock.end_step()
    computed = clock.take()
    assert [(span.start_s % 4, span.seconds) for span in computed.own] == [(0.0, 2.0)] * 100
    assert total_seconds(computed.waits) == 200.0
    assert len(events) == 2 + 200


def test_a_step_that_is_settled_at_once_has_nothing_of_the_next(now: list[float]) -> None:
    clock = ComputeClock(CpuDevice())
    for forward_s in (2.0, 3.0):
        step(clock, now, forward_s, 1.0)
        assert lane_seconds(clock.take().own)[Lane.COMPUTE] == forward_s + 1.0
    assert not clock.take().own


@pytest.mark.parametrize("overlap", ["exact", "serial", "delayed"])
def test_no_step_of_an_engine_computes_longer_than_it_takes(overlap: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
    data = torch.randn(512, 512)
    took, reports = [], []
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=1e-3),
        state="host",
        precision="fp32",
        device="cpu",
        overlap=overlap,  # type: ignore[arg-type]
        delay_warmup=1,
    ) as engine:
        for _ in range(4):
            began = time.perf_counter()
            engine.backward(model(data).square().mean())
            reports.append(engine.step())
            took.append(time.perf_counter() - began)
        computed = [report.result().lane_seconds[Lane.COMPUTE] for report in reports]
    assert all(0 < own_s <= step_s for own_s, step_s in zip(computed, took, strict=True))


def test_kept_reports_hold_neither_the_spans_nor_the_tasks_of_steps_before_the_last() -> None:
    """A step of ten billion parameters has thousands of both."""
    model = nn.Linear(8, 8)
    with OffloadEngine(
        model, optimizer=AdamW(lr=1e-3), state="host", precision="fp32", device="cpu"
    ) as engine:
        reports, executions = [], []
        for _ in range(4):
            engine.backward(model(torch.randn(2, 8)).square().mean())
            executions.append(weakref.ref(engine._scheduler._execution))
            reports.append(engine.step())
        results = [report.result() for report in reports]
    gc.collect()
    assert [len(result.spans) > 0 for result in results] == [False, False, False, True]
    assert [reference() for reference in executions] == [None] * 4


def test_updates_by_the_models_own_thread_are_work_of_the_update_lane_and_exposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small model in the host's memory, and no core beside those that compute: no lane of its own would pay."""
    monkeypatch.setattr("workbench.engine.build.usable_cpus", lambda: 1)
    torch.manual_seed(0)
    model = nn.Linear(256, 256)
    with OffloadEngine(
        model, optimizer=AdamW(lr=1e-3), state="host", precision="fp32", device="cpu", threads=1
    ) as engine:
        engine.backward(model(torch.randn(8, 256)).square().mean())
        result = engine.step().result()
    updates = [span for span in result.spans if span.kind is Kind.UPDATE]
    assert updates and {span.lane for span in updates} == {Lane.UPDATE}
    busy, exposed = result.lane_seconds[Lane.UPDATE], result.exposed_seconds[Lane.UPDATE]
    assert busy >= sum(span.seconds for span in updates) > 0
    assert exposed == pytest.approx(busy) and result.exposed_s >= exposed * (1 - 1e-9)
    assert result.update_threads == 1


def test_on_update_lane_leaves_what_lanes_and_the_model_did() -> None:
    spans = [
        Span(Lane.COMPUTE, Kind.FORWARD, None, None, 0.0, 1.0),
        Span(Lane.COMPUTE, Kind.NORM, None, None, 1.0, 2.0),
        Span(Lane.DOWNLOAD, Kind.DOWNLOAD, 0, 0, 1.0, 2.0),
    ]
    assert [span.lane for span in on_update_lane(spans)[0]] == [Lane.COMPUTE, Lane.UPDATE, Lane.DOWNLOAD]


def test_what_another_did_is_cut_out_of_a_span() -> None:
    backward = Span(Lane.COMPUTE, Kind.BACKWARD, None, None, 0.0, 10.0)
    updates = [Span(Lane.UPDATE, Kind.UPDATE, None, None, *times) for times in ((2.0, 3.0), (9.0, 12.0))]
    assert [(span.start_s, span.stop_s) for span in cut_out([backward], updates)] == [(0.0, 2.0), (3.0, 9.0)]


def random_intervals(chance: random.Random, count: int) -> list[tuple[float, float]]:
    starts = [chance.randrange(100) / 2 for _ in range(count)]
    return [(start, start + chance.randrange(20) / 2) for start in starts]


@pytest.mark.parametrize("seed", range(50))
def test_exposed_seconds_are_those_of_counting_every_half_second(seed: int) -> None:
    chance = random.Random(seed)
    waits = random_intervals(chance, chance.randrange(8))
    lanes = (Lane.COMPUTE, Lane.UPDATE, Lane.UPLOAD)
    spans = [
        Span(chance.choice(lanes), Kind.UPDATE, None, None, *interval)
        for interval in random_intervals(chance, 12)
    ]

    def within(moment: float, intervals: Iterable[tuple[float, float]]) -> bool:
        return any(start <= moment < stop for start, stop in intervals)

    moments = [number / 2 for number in range(130)]
    exposed = exposed_seconds(spans, waits)
    assert exposed[Lane.COMPUTE] == 0
    for lane in lanes[1:]:
        counted = [
            (span, moment)
            for span in spans
            for moment in moments
            if span.lane is lane and span.start_s <= moment < span.stop_s and within(moment, waits)
        ]
        assert exposed[lane] == len(counted) / 2


def test_exposed_seconds_of_a_long_step_look_at_no_pair_of_span_and_wait() -> None:
    looked = [0]

    class Counted(float):
        def __lt__(self, other: float) -> bool:
            looked[0] += 1
            return float(self) < other

    spans = [Span(Lane.UPDATE, Kind.UPDATE, None, None, number, number + 0.5) for number in range(20_000)]
    waits = [(Counted(number), Counted(number + 0.25)) for number in range(10_000)]
    assert exposed_seconds(spans, waits)[Lane.UPDATE] == 2_500
    assert looked[0] < 40 * 30_000, "some twenty comparisons each, where pairs would be 200 million"
