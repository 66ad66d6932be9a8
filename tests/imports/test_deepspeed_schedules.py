"""DeepSpeed's schedulers, taken over, give DeepSpeed's learning rates, or differ by what the verdict says."""

from __future__ import annotations

import math
from typing import Any

import deepspeed_files
import pytest
from deepspeed_files import config_of

from workbench.config import RunConfig
from workbench.config.rules import warnings
from workbench.imports import Imported, import_text
from workbench.optimizer.schedules import LearningRateSchedule

LR = 4e-4


def imported(kind: str, lr: float = LR, **params: Any) -> Imported:
    optimizer = {"type": "AdamW", "params": {"lr": lr}}
    return deepspeed_files.imported(optimizer=optimizer, scheduler={"type": kind, "params": params})


def rates(run: RunConfig, steps: int) -> list[float]:
    """The learning rates of Workbench's own schedule."""
    schedule = LearningRateSchedule(
        kind=run.schedule.type,
        learning_rate=run.optimizer.learning_rate,
        warmup_steps=run.schedule.warmup_steps,
        total_steps=run.schedule.total_steps or run.train.steps,
        min_ratio=run.schedule.min_ratio,
        warmup_type=run.schedule.warmup_type,
        warmup_ratio=run.schedule.warmup_ratio,
        decay_fraction=run.schedule.decay_fraction,
    )
    return [schedule.at(step) for step in range(steps)]


def deepspeeds(step: int, warmup: int, low: float, high: float, linear: bool, after: float) -> float:
    """DeepSpeed's formula of the step; `after` is the share of the rate once the warm-up is over."""
    if step >= warmup:
        return high * after
    return low + (high - low) * (step / warmup if linear else math.log(step + 1) / math.log(warmup))


@pytest.mark.parametrize("warmup", [2, 10, 1000])
@pytest.mark.parametrize("low", [0.0, 1e-4])
def test_warmuplr_rises_as_the_logarithm_and_stays(warmup: int, low: float) -> None:
    run = config_of(imported("WarmupLR", warmup_num_steps=warmup, warmup_min_lr=low))
    wanted = [deepspeeds(step, warmup, low, LR, False, 1.0) for step in range(1200)]
    assert rates(run, 1200) == pytest.approx(wanted, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("low", [0.0, 1e-4])
def test_a_linear_warmup_is_one_step_ahead(low: float) -> None:
    made = imported("WarmupLR", warmup_num_steps=50, warmup_min_lr=low, warmup_type="linear")
    wanted = [deepspeeds(step + 1, 50, low, LR, True, 1.0) for step in range(100)]
    assert rates(config_of(made), 100) == pytest.approx(wanted, rel=1e-12)
    (verdict,) = [each for each in made.verdicts if each.key.endswith("warmup_type")]
    assert verdict.judgement == "mapped"
    assert "2 % of the highest rate" in verdict.reason


def test_the_default_is_a_logarithm_over_1000_steps_to_the_optimizers_rate() -> None:
    run = config_of(imported("WarmupLR"))
    schedule = run.schedule
    assert (schedule.type, schedule.warmup_type, schedule.warmup_steps) == ("constant", "log", 1000)
    assert (schedule.warmup_ratio, run.optimizer.learning_rate) == (0, LR)


def test_warmupdecaylr_falls_to_zero_within_what_is_told() -> None:
    warmup, total = 20, 120
    made = imported("WarmupDecayLR", warmup_num_steps=warmup, total_num_steps=total, warmup_max_lr=LR)
    run = config_of(made)
    wanted = [
        deepspeeds(step, warmup, 0, LR, False, (total - step) / (total - warmup)) for step in range(total + 1)
    ]
    ours = rates(run, total + 1)
    assert run.train.steps == total
    assert ours[:warmup] == pytest.approx(wanted[:warmup], rel=1e-12)
    assert ours == pytest.approx(wanted, rel=1 / (total + 1 - warmup) + 1e-12)
    assert ours[total] == 0
    (verdict,) = [each for each in made.verdicts if each.key.endswith("total_num_steps")]
    assert "within 0.99 %" in verdict.reason


@pytest.mark.parametrize("start", [0.0, 0.25])
def test_warmupcosinelr_is_deepspeeds(start: float) -> None:
    warmup, total, floor = 20, 120, 1e-4
    run = config_of(
        imported("WarmupCosineLR", warmup_num_steps=warmup, total_num_steps=total, warmup_min_ratio=start)
    )
    wanted = [
        deepspeeds(
            step,
            warmup,
            LR * start,
            LR,
            False,
            floor + (1 - floor) * (1 + math.cos(math.pi * (step - warmup + 1) / (total - warmup))) / 2,
        )
        for step in range(total)
    ]
    assert rates(run, total) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_warmup_of_less_than_two_steps_has_two_as_in_deepspeed(written: int) -> None:
    assert config_of(imported("WarmupLR", warmup_num_steps=written)).schedule.warmup_steps == 2


def test_the_schedulers_highest_rate_replaces_the_optimizers() -> None:
    made = imported("WarmupLR", warmup_max_lr=2e-4, warmup_min_lr=5e-5)
    run = config_of(made)
    assert run.optimizer.learning_rate == 2e-4
    assert run.schedule.warmup_ratio == pytest.approx(0.25)
    (verdict,) = [each for each in made.verdicts if each.key == "optimizer.params.lr"]
    assert "replaces it" in verdict.reason


def test_without_a_scheduler_the_rate_stays() -> None:
    made = import_text('{"train_batch_size": 1}', "ds.json", architecture="gpt2")
    assert config_of(made).schedule.type == "constant"
    assert any(assumed.key == "scheduler" for assumed in made.assumed)


@pytest.mark.parametrize(
    ("kind", "params", "reason"),
    [
        ("WarmupDecayLR", {}, 'needs "total_num_steps"'),
        ("WarmupCosineLR", {}, 'needs "total_num_steps"'),
        ("WarmupLR", {"warmup_num_steps": -1}, "must be at least 0"),
        ("WarmupLR", {"warmup_num_steps": 0.5}, "must be a whole number"),
        ("WarmupLR", {"warmup_min_lr": 1.0}, "must not be above the highest rate"),
        ("WarmupLR", {"warmup_max_lr": 0}, "above 0"),
        ("WarmupLR", {"last_batch_iteration": 50}, "starts at its beginning"),
        ("WarmupDecayLR", {"total_num_steps": 0}, "from 1"),
    ],
)
def test_a_schedule_that_cannot_be_had_is_refused(kind: str, params: dict[str, Any], reason: str) -> None:
    assert any(reason in sentence for sentence in imported(kind, **params).refused)


def test_warmupdecaylr_has_a_rate_of_its_own() -> None:
    made = imported("WarmupDecayLR", total_num_steps=2000)
    assert config_of(made).optimizer.learning_rate == 1e-3 != LR
    (verdict,) = [each for each in made.verdicts if each.key == "optimizer.params.lr"]
    assert verdict.judgement == "meaningless here" and "0.001" in verdict.reason


def test_without_a_warm_up_nothing_is_written_of_its_shape() -> None:
    made = imported("WarmupLR", warmup_num_steps="auto", warmup_type="log")
    run = config_of(made)
    assert run.schedule.warmup_steps == 0
    assert "warmup_type" not in made.preset.replace("scheduler.params.warmup_type", "")
    assert not [line for line in warnings(run) if "warmup" in line]
    (verdict,) = [each for each in made.verdicts if each.key.endswith("warmup_type")]
    assert (verdict.judgement, verdict.reason) == ("meaningless here", "there is no warm-up")
