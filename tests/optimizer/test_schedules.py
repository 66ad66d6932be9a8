"""Learning-rate schedules: their formulas at the ends, and what they refuse."""

from __future__ import annotations

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


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
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


def test_constant_stays() -> None:
    assert {schedule(kind="constant").at(step) for step in (9, 10, 50, 109, 1000)} == {0.5}


@pytest.mark.parametrize("total_steps", [1, 5, 10])
def test_a_run_shorter_than_its_warm_up_only_rises(total_steps: int) -> None:
    rates = [schedule(total_steps=total_steps).at(step) for step in range(total_steps)]
    assert rates == [0.5 * (step + 1) / 10 for step in range(total_steps)]


def test_a_run_of_one_step_has_the_full_rate() -> None:
    assert schedule(warmup_steps=0, total_steps=1).at(0) == 0.5


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
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        schedule(**{name: value})
    with pytest.raises(ValueError, match=r"^step must be"):
        schedule().at(-1)


def test_schedules_and_settings_import_without_torch() -> None:
    program = (
        "import sys\n"
        "from workbench.optimizer import cpu_count, schedules, settings\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
