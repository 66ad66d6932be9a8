"""A step's compute seconds are those of its own forwards and backwards, though it is settled after the next forward."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.report import ComputeClock, lane_seconds
from workbench.timeline import Lane


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved on by hand."""
    reading = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: reading[0])
    return reading


def step(clock: ComputeClock, now: list[float], forward_s: float, backward_s: float) -> None:
    forward(clock, now, forward_s)
    began = now[0]
    now[0] += backward_s
    clock.end_backward(began)
    clock.end_step()


def forward(clock: ComputeClock, now: list[float], seconds: float) -> None:
    clock.begin_forward()
    now[0] += seconds
    clock.end_forward()


def test_the_forward_of_the_next_step_is_that_steps(now: list[float]) -> None:
    clock = ComputeClock()
    step(clock, now, 2.0, 3.0)
    forward(clock, now, 4.0)
    first = clock.take()
    assert lane_seconds(first.own)[Lane.COMPUTE] == 5.0
    assert lane_seconds(first.spans)[Lane.COMPUTE] == 9.0
    step(clock, now, 0.0, 6.0)
    assert lane_seconds(clock.take().own)[Lane.COMPUTE] == 10.0


def test_a_step_that_is_settled_at_once_has_nothing_of_the_next(now: list[float]) -> None:
    clock = ComputeClock()
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
