"""A planner takes the fastest of what fits and the nearest of what does not, refusing what a run would refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import gpt2, machine

from workbench.config import RunConfig, parse_config
from workbench.errors import ConfigurationError
from workbench.plan.fit import fit
from workbench.plan.machine import planned_machine
from workbench.plan.planner import Planner
from workbench.plan.report import plan_text

MODEL = gpt2(12, 768)
OPEN = ("offload.weights=auto", "offload.state=auto")


def config(*overrides: str) -> RunConfig:
    return parse_config('[model]\narchitecture = "gpt2"\n', "test", overrides)


def planner(**options: Any) -> Planner:
    return Planner(MODEL, planned_machine(machine(**options)))


def test_a_placement_whose_speed_is_not_known_is_not_taken_before_one_that_is() -> None:
    target = planned_machine(machine(gpu_gib=None, host_gib=64))
    assert target.profile is not None
    unmeasured = replace(target, profile=target.profile.model_copy(update={"disk": None}))
    plan = Planner(MODEL, unmeasured).plan(config(*OPEN, "offload.disk_path=/a disk"))
    assert plan.time is not None
    assert "disk" not in (plan.config.offload.weights, plan.config.offload.state)


def test_where_no_speed_is_known_the_usual_order_decides() -> None:
    target = replace(planned_machine(machine(gpu_gib=None, host_gib=64)), profile=None)
    plan = Planner(MODEL, target).plan(config(*OPEN, "offload.disk_path=/a disk"))
    assert (plan.config.offload.weights, plan.config.offload.state) == ("device", "host")


def test_the_nearest_keeps_what_is_fixed_and_lacks_least() -> None:
    plans = planner(gpu_gib=1, host_gib=1)
    nearest = plans.nearest(config("offload.weights=host", "offload.state=auto", "offload.disk_path=/a disk"))
    assert not nearest.fits
    assert nearest.config.offload.weights == "host"
    assert nearest.config.offload.state == "disk"
    assert nearest.time is not None


def test_sequences_longer_than_the_models_positions_are_refused() -> None:
    too_long = config("data.sequence_length=1025")
    for plan in (planner().plan, planner().nearest, lambda c: fit(planner(), c)):
        with pytest.raises(
            ConfigurationError, match=r"data\.sequence_length = 1025: the model has 1024 positions"
        ):
            plan(too_long)
    assert planner().plan(config("data.sequence_length=1024")).fits


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_16_bits_that_a_cpu_widens_are_refused_without_checkpointing_and_no_remedy_asks_for_it(
    precision: str,
) -> None:
    small = planner(gpu_gib=None, host_gib=1)
    whole = config(f"train.precision={precision}", "train.activation_checkpointing=false")
    with pytest.raises(
        ConfigurationError, match=f'train.precision = "{precision}": invented has no such arithmetic'
    ):
        small.plan(whole)
    assert small.plan(config(f"train.precision={precision}")) is not None
    assert fit(small, whole).plan.config.train.activation_checkpointing


def test_a_device_that_is_not_there_is_refused_by_the_search_too() -> None:
    with pytest.raises(ConfigurationError, match=r'train\.device = "cuda"'):
        fit(planner(gpu_gib=None), config("train.device=cuda"))


@pytest.mark.parametrize(("told", "stored"), [(True, "bfloat16"), (False, "float32"), (None, "float32")])
def test_auto_stores_bf16_where_the_machine_says_that_it_computes_in_it_whatever_products_took(
    told: bool | None, stored: str
) -> None:
    for gpu_gib, expected in ((24, stored), (None, "float32")):  # a CPU's has to be asked for
        here = machine(gpu_gib=gpu_gib)
        speeds = {"float32": 1e9, "bfloat16": 9e9 if told is False else 1e8}
        device = here.device.model_copy(update={"has_bfloat16": told, "matrix_flops_per_s": speeds})
        target = planned_machine(here.model_copy(update={"device": device}))
        assert target.precision(config()).storage == expected
        assert target.precision(config("train.precision=bf16")).storage == "bfloat16"


def test_a_machine_whose_disk_is_not_known_is_planned_without_it_and_that_is_said() -> None:
    unknown = Planner(MODEL, planned_machine(machine().model_copy(update={"disk": None})))
    plan = unknown.plan(config())
    assert plan.fits
    assert [tier.tier for tier in plan.memory.tiers] == ["device", "host"]
    assert "disk: not known" in plan_text(plan)
    assert plan.run is not None and plan.run.checkpoints_s is None
    assert not unknown.plan(config("offload.state=disk", "offload.disk_path=/a disk")).fits
    assert "disk: not known" not in plan_text(planner().plan(config()))
