"""`auto` takes the fastest placement that fits, leaves alone what is fixed, and names the nearest where none fits."""

from __future__ import annotations

import pytest
from synthetic import machine

from workbench.config import RunConfig, parse_config
from workbench.errors import DoesNotFitError
from workbench.formatting import GIB
from workbench.plan.machine import Machine, WeightDtypes, planned_machine
from workbench.plan.memory import MemoryPlan, TierNeed
from workbench.plan.planner import Plan, fastest, placed

GPU, CPU = (planned_machine(machine(gpu_gib=gpu_gib)) for gpu_gib in (32, None))


def config(*overrides: str) -> RunConfig:
    open_tiers = ("offload.weights=auto", "offload.state=auto", "offload.disk_path=/a disk")
    return parse_config('[model]\narchitecture = "gpt2"\n', "test", (*open_tiers, *overrides))


def names(*overrides: str, on: Machine = GPU) -> list[tuple[str, str, float]]:
    found = (variant.offload for variant in placed(config(*overrides), on))
    return [(each.weights, each.state, each.device_fraction) for each in found]


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
    assert not [c for c in names("offload.disk_path=") if "disk" in c]


def test_what_is_fixed_stays_fixed() -> None:
    assert names("offload.weights=host") == [("host", "host", 0.0), ("host", "disk", 0.0)]
    assert names("offload.state=disk") == [(weights, "disk", 0.0) for weights in ("device", "host", "disk")]
    assert names("offload.weights=device", "offload.state=host", "offload.device_fraction=0.3") == [
        ("device", "host", 0.3)
    ]
    assert {share for _, _, share in names("offload.device_fraction=0.3")} == {0.3}


def test_what_other_fields_rule_out_is_not_tried() -> None:
    assert {weights for weights, _, _ in names("train.activation_checkpointing=false")} == {"device"}
    assert "disk" not in {weights for weights, _, _ in names("offload.overlap=delayed")}
    formats = names("offload.state_format=compact")
    assert "device" not in {state for _, state, _ in formats}


def test_in_one_memory_no_share_is_tried_and_the_state_counts_as_the_hosts() -> None:
    assert names(on=CPU)[0] == ("device", "host", 0.0)
    assert {share for _, _, share in names(on=CPU)} == {0.0}


def plan(device: int, host: int, *placement: str) -> Plan:
    """Return the plan of a need of so many GiB on a machine that has 10 of each."""
    needs = [("device", device), ("host", host)]
    memory = MemoryPlan(1, tuple(TierNeed(name, {"all": size * GIB}, 10 * GIB) for name, size in needs))
    fields = zip(("weights", "state", "device_fraction"), placement, strict=False)
    chosen = config(*(f"offload.{name}={value}" for name, value in fields))
    return Plan(chosen, "a machine", memory, WeightDtypes("float32"), None, None)


def test_the_first_that_fits_is_taken_and_nothing_after_it_is_planned() -> None:
    plans = iter([plan(20, 10), plan(5, 10, "device", "host"), plan(1, 1)])
    assert fastest(plans).config.offload.state == "host"
    assert len(list(plans)) == 1


def test_where_none_fits_the_one_that_lacks_least_is_named_field_by_field() -> None:
    partial = plan(16, 4, "device", "host", "0.5")
    with pytest.raises(DoesNotFitError) as error:
        fastest([partial, plan(11, 12, "host", "host"), plan(14, 1, "host", "disk")])
    assert error.value.exit_code == 3
    assert (
        'The nearest is offload.weights = "host", offload.state = "host", offload.device_fraction = 0, '
        "which lacks 1.00 GiB of device and 2.00 GiB of host:"
    ) in str(error.value)
    assert partial.memory.lacking == "6.00 GiB of device"


def test_where_fields_rule_out_every_placement_they_are_named() -> None:
    with pytest.raises(DoesNotFitError, match=r"offload\.disk_path"):
        fastest([])
