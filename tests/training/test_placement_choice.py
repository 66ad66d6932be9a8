"""`auto` takes the fastest placement that fits, leaves alone what is fixed, and names the nearest where none fits."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.errors import DoesNotFitError
from workbench.plan.memory import GIB, MemoryPlan, TierNeed
from workbench.plan.placement import Candidate, PlacementRequest, candidates, choose_placement, lacking


def wish(**changes: Any) -> PlacementRequest:
    values: dict[str, Any] = {
        "weights": "auto",
        "state": "auto",
        "device_fraction": 0.0,
        "state_format": "exact",
        "overlap": "exact",
        "activation_checkpointing": True,
        "disk": True,
        "shared_memory": False,
    }
    return PlacementRequest(**{**values, **changes})


def names(**changes: Any) -> list[tuple[str, str, float]]:
    return [(c.weights, c.state, c.device_fraction) for c in candidates(wish(**changes))]


def test_candidates_come_in_order_of_speed_with_the_largest_share_on_the_device_first() -> None:
    assert names() == [
        ("device", "device", 0.0),
        *(("device", "host", eighths / 8) for eighths in range(7, -1, -1)),
        ("host", "host", 0.0),
        ("device", "disk", 0.0),
        ("host", "disk", 0.0),
        ("disk", "disk", 0.0),
    ]


def test_disk_is_not_tried_without_a_folder() -> None:
    assert not [c for c in names(disk=False) if "disk" in c]


def test_what_is_fixed_stays_fixed() -> None:
    assert names(weights="host") == [("host", "host", 0.0), ("host", "disk", 0.0)]
    assert names(state="disk") == [(weights, "disk", 0.0) for weights in ("device", "host", "disk")]
    assert names(weights="device", state="host", device_fraction=0.3) == [("device", "host", 0.3)]
    assert {share for _, _, share in names(device_fraction=0.3)} == {0.3}


def test_what_other_fields_rule_out_is_not_tried() -> None:
    assert {weights for weights, _, _ in names(activation_checkpointing=False)} == {"device"}
    assert "disk" not in {weights for weights, _, _ in names(overlap="delayed")}
    formats = names(state_format="compact")
    assert "device" not in {state for _, state, _ in formats}


def test_in_one_memory_no_share_is_tried_and_the_state_counts_as_the_hosts() -> None:
    assert names(shared_memory=True)[0] == ("device", "host", 0.0)
    assert {share for _, _, share in names(shared_memory=True)} == {0.0}


def plan(device: int, host: int) -> MemoryPlan:
    """Of a need of so many GiB on a machine that has 10 of each."""
    needs = [("device", device), ("host", host)]
    return MemoryPlan(1, tuple(TierNeed(name, {"all": size * GIB}, 10 * GIB) for name, size in needs))


def test_the_first_that_fits_is_taken_and_nothing_after_it_is_planned() -> None:
    allowed = [Candidate("device", "device"), Candidate("device", "host"), Candidate("host", "host")]
    asked: list[Candidate] = []

    def plan_of(candidate: Candidate) -> MemoryPlan:
        asked.append(candidate)
        return plan(20 if candidate.state == "device" else 5, 10)

    chosen, found = choose_placement(allowed, plan_of)
    assert chosen == allowed[1] and found.fits
    assert asked == allowed[:2]


def test_where_none_fits_the_one_that_lacks_least_is_named_field_by_field() -> None:
    plans = {
        Candidate("device", "host", 0.5): plan(16, 4),
        Candidate("host", "host"): plan(11, 12),
        Candidate("host", "disk"): plan(14, 1),
    }
    with pytest.raises(DoesNotFitError) as error:
        choose_placement(plans, plans.__getitem__)
    assert error.value.exit_code == 3
    assert (
        'The nearest is offload.weights = "host", offload.state = "host", offload.device_fraction = 0, '
        "which lacks 1.00 GiB of device and 2.00 GiB of host:"
    ) in str(error.value)
    assert lacking(plans[Candidate("device", "host", 0.5)]) == "6.00 GiB of device"


def test_where_fields_rule_out_every_placement_they_are_named() -> None:
    with pytest.raises(DoesNotFitError, match=r"offload\.disk_path"):
        choose_placement(candidates(wish(weights="disk", disk=False)), lambda candidate: plan(1, 1))
