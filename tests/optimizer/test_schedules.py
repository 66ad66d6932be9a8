"""Learning-rate schedules: their formulas at the ends, and what they refuse."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from workbench.optimizer.schedules import LearningRateSchedule


def schedule(**changed: Any) -> LearningRateSchedule:
    values: dict[str, Any] = {
        "kind": "cosine",
        "learning_rate": 0.5,
        "warmup_steps": 10,
        "total_steps": 110,
        "min_ratio": 0.1,
    }
    return LearningRateSchedule(**{**values, **changed})


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "wsd"])
def test_warm_up_rises_in_equal_steps_to_the_full_rate(kind: str) -> None:
    rates = [schedule(kind=kind).at(step) for step in range(10)]
    assert rates == pytest.approx([0.05 * (step + 1) for step in range(10)], rel=1e-15)
    assert rates[9] == 0.5


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 10])
def test_the_rate_falls_from_full_to_min_ratio_at_the_last_step_and_stays(
    kind: str, warmup_steps: int
) -> None:
    falling = schedule(kind=kind, warmup_steps=warmup_steps)
    rates = [falling.at(step) for step in range(max(warmup_steps - 1, 0), 110)]
    assert rates[0] == 0.5
    assert all(later < earlier for earlier, later in pairwise(rates))
    assert rates[-1] == pytest.approx(0.05, rel=1e-15)
    assert falling.at(10**9) == rates[-1]


def test_halfway_linear_and_cosine_are_at_the_middle_and_cosine_is_above_before_it() -> None:
    linear, cosine = (schedule(kind=kind, warmup_steps=0, total_steps=101) for kind in ("linear", "cosine"))
    assert linear.at(50) == pytest.approx(0.275)
    assert cosine.at(50) == pytest.approx(0.275)
    assert cosine.at(25) == pytest.approx(0.5 * (0.1 + 0.9 * (1 + 2**-0.5) / 2))
    assert linear.at(25) == pytest.approx(0.5 * (1 - 0.9 / 4))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "wsd"])
@pytest.mark.parametrize("warmup_steps", [2, 10])
def test_a_logarithmic_warm_up_is_that_of_deepspeed(kind: str, warmup_steps: int) -> None:
    logarithmic = schedule(
        kind=kind, warmup_type="log", warmup_ratio=0.25, warmup_steps=warmup_steps, learning_rate=0.8
    )

    def warmup_lr(iteration: int) -> float:
        """DeepSpeed's WarmupLR: min_lr + (max_lr - min_lr) * log(iteration + 1) / log(warmup_num_steps)."""
        return 0.2 + (0.8 - 0.2) * math.log(iteration + 1) / math.log(warmup_steps)

    rates = [logarithmic.at(step) for step in range(warmup_steps)]
    assert rates == pytest.approx([warmup_lr(step) for step in range(warmup_steps)], rel=1e-15)
    assert rates[0] == 0.2 and rates[-1] == pytest.approx(0.8, rel=1e-15)


def test_a_warm_up_from_a_share_rises_from_there_in_equal_steps() -> None:
    rates = [schedule(warmup_ratio=0.5).at(step) for step in range(10)]
    assert rates == pytest.approx([0.25 + 0.025 * (step + 1) for step in range(10)], rel=1e-15)
    assert [schedule(warmup_ratio=1).at(step) for step in range(10)] == [0.5] * 10


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_wsd_stays_until_its_last_share_of_all_steps_and_falls_evenly_to_min_ratio(fraction: float) -> None:
    steps, falling = 200, round(200 * fraction)
    rates = [
        schedule(kind="wsd", total_steps=steps, decay_fraction=fraction).at(s) for s in range(9, steps + 5)
    ]
    stable = steps - falling - 9
    assert rates[:stable] == [0.5] * stable
    expected = [0.5 * (1 - 0.9 * n / falling) for n in range(1, falling + 1)]
    assert rates[stable : steps - 9] == pytest.approx(expected, rel=1e-12)
    assert rates[steps - 9 :] == [rates[-1]] * 5 and rates[-1] == pytest.approx(0.05, rel=1e-15)


def test_wsd_before_its_decay_does_not_know_how_long_the_run_will_be() -> None:
    short, long = (schedule(kind="wsd", total_steps=steps) for steps in (110, 10_000))
    assert [short.at(step) for step in range(88)] == [long.at(step) for step in range(88)]


def test_wsd_decays_from_its_warm_up_on_where_that_reaches_into_the_decay() -> None:
    whole = schedule(kind="wsd", decay_fraction=1.0)
    linear = schedule(kind="linear")
    assert [whole.at(step) for step in range(120)] == [linear.at(step) for step in range(120)]


@pytest.mark.parametrize("total_steps", [1, 5, 10])
def test_a_run_shorter_than_its_warm_up_only_rises(total_steps: int) -> None:
    rates = [schedule(total_steps=total_steps).at(step) for step in range(total_steps)]
    assert rates == [0.5 * (step + 1) / 10 for step in range(total_steps)]


def test_constant_stays_and_short_runs_and_warm_ups_have_the_full_rate() -> None:
    assert {schedule(kind="constant").at(step) for step in (9, 10, 50, 109, 1000)} == {0.5}
    assert schedule(warmup_steps=0, total_steps=1).at(0) == 0.5
    assert schedule(kind="constant", warmup_type="log", warmup_steps=1).at(0) == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "cosin"),
        ("learning_rate", -1e-3),
        ("learning_rate", float("nan")),
        ("warmup_steps", -1),
        ("total_steps", 0),
        ("min_ratio", 1.1),
        ("min_ratio", -0.1),
        ("warmup_type", "logarithmic"),
        ("warmup_ratio", 1.5),
        ("warmup_ratio", float("nan")),
        ("decay_fraction", 0.0),
        ("decay_fraction", 1.5),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        schedule(**{name: value})
    with pytest.raises(ValueError, match=r"^step must be"):
        schedule().at(-1)


def test_schedules_and_settings_import_without_torch() -> None:
    program = (
        "import sys\nfrom workbench.optimizer import AdamW, schedules\nsys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
