"""The host optimizer's memory traffic: parameters by bytes by seconds, and nothing where it is not the host's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_host import PLAN

from workbench.runs import Lanes, LaneSpan
from workbench.tui.run.reading import disk_folder, memory_limit_gb_per_s, traffic_bytes, update_gb_per_s


def config(**changes: Any) -> dict[str, Any]:
    offload = {"weights": "device", "state": "host", "state_format": "exact", **changes.pop("offload", {})}
    return {"train": {"precision": "bf16", "device": "cpu", **changes}, "offload": offload}


def plan(
    *, state: str = "host", fraction: float = 0.0, moments: float = 8e6, weights: float = 2e6
) -> dict[str, Any]:
    return {
        "placement": {"weights": "device", "state": state, "device_fraction": fraction},
        "memory": {
            "parameters": 1_000_000,
            "tiers": [
                {"tier": "device", "needs": {"weights": weights}},
                {"tier": "host", "needs": {"exp_avg and exp_avg_sq": moments}},
            ],
        },
    }


def lanes(*spans: tuple[str, str, float, float]) -> Lanes:
    return Lanes(7, tuple(LaneSpan(lane, name, 0, 0, start, end) for lane, name, start, end in spans))


UPDATES = lanes(
    ("update", "update", 0.0, 0.01),
    ("update", "update", 0.005, 0.02),
    ("update", "norm", 0.02, 5.0),
    ("compute", "update", 0.03, 0.05),  # on a device of its own
)


def test_the_figure_is_traffic_over_the_seconds_of_updates_overlaps_counted_once() -> None:
    assert update_gb_per_s(UPDATES, plan(), config()) == pytest.approx(1e6 * 26 / 0.02 / 1e9)


def test_updates_ahead_of_the_norm_count_too() -> None:
    ahead = lanes(("update", "speculate", 0.0, 0.02), ("update", "update", 0.03, 0.03))
    assert update_gb_per_s(ahead, plan(), config()) == pytest.approx(1e6 * 26 / 0.02 / 1e9)


@pytest.mark.parametrize(
    ("precision", "state_format", "expected"),
    [
        ("bf16", "exact", 26),
        ("bf16", "half", 18),
        ("bf16", "compact", 14),
        ("fp32", "exact", 28),
        ("fp16", "exact", 28),
    ],
)
def test_bytes_a_parameter_are_those_of_the_state_format(
    precision: str, state_format: str, expected: int
) -> None:
    given = config(precision=precision, offload={"state_format": state_format})
    assert traffic_bytes(plan(), given) == expected


def test_an_automatic_precision_is_seen_from_the_planned_weights() -> None:
    assert traffic_bytes(plan(weights=4e6), config(precision="auto")) == 28
    assert traffic_bytes(plan(weights=2e6), config(precision="auto")) == 26


def test_only_parameters_that_the_host_updates_count() -> None:
    whole = update_gb_per_s(UPDATES, plan(moments=0.0), config())
    assert whole is not None
    assert update_gb_per_s(UPDATES, plan(fraction=0.25, moments=0.0), config()) == pytest.approx(0.75 * whole)
    four = {**plan(moments=0.0), "ranks": 4}
    assert update_gb_per_s(UPDATES, four, config()) == pytest.approx(0.25 * whole)
    # Most are frozen: there are moments for a tenth alone.
    assert update_gb_per_s(UPDATES, plan(moments=8e5), config()) == pytest.approx(0.1 * whole)


def test_updates_on_the_device_and_steps_without_an_update_give_nothing() -> None:
    assert update_gb_per_s(UPDATES, plan(state="device"), config()) is None
    assert update_gb_per_s(lanes(("compute", "update", 0.0, 1.0)), plan(), config()) is None
    assert update_gb_per_s(Lanes(), plan(), config()) is None


@pytest.mark.parametrize("broken", [{}, {"memory": 3}, {"memory": {"tiers": "x"}, "placement": None}])
def test_a_plan_that_says_nothing_gives_nothing(broken: dict[str, Any]) -> None:
    assert update_gb_per_s(UPDATES, broken, {}) is None
    assert traffic_bytes(broken, {}) == 26


def test_a_machine_that_was_never_measured_has_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    assert memory_limit_gb_per_s(config()) is None
    assert memory_limit_gb_per_s(config(device="a toaster")) is None


def test_the_folder_of_the_disk_tier_is_that_of_a_run_that_uses_it() -> None:
    assert disk_folder(config(offload={"disk_path": "/fast"})) is None
    assert disk_folder(config(offload={"disk_path": "/fast", "state": "disk"})) == Path("/fast")
    assert disk_folder(config(offload={"disk_path": "/fast", "weights": "auto"})) == Path("/fast")
    assert disk_folder({}) is None


def test_the_plan_of_the_tests_is_one_that_gives_a_figure() -> None:
    assert update_gb_per_s(UPDATES, PLAN, config()) is not None
