"""A planner takes the fastest placement that fits and the nearest where none does, and refuses what a run would.

`auto` leaves alone what is fixed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import gpt2, machine, workload

from workbench.config import RunConfig, parse_config
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.formatting import GIB
from workbench.layout import StateFormat
from workbench.plan.fit import fit
from workbench.plan.machine import Machine, WeightDtypes, planned_machine
from workbench.plan.memory import AutogradGradients, MemoryPlan, TierNeed, model_rows
from workbench.plan.planner import Plan, Planner, fastest, placed
from workbench.plan.rates import AHEAD, REDONE, Rates
from workbench.plan.report import plan_text
from workbench.profiles.model_profile import ParameterProfile

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


@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
def test_updates_come_ahead_of_the_norm_where_that_is_faster(state_format: str) -> None:
    """Ahead, an update takes longer: a host that is slow beside its GPU has no time for it."""
    chosen = config("offload.state=host", f"offload.state_format={state_format}")
    known = machine()
    assert known.link is not None
    device = {
        "matrix_flops_per_s": {"bfloat16": 1e18, "float32": 1e18},
        "memory_bytes_per_s": 1e16,
        "launch_s": 0.0,
    }
    link = dict.fromkeys(type(known.link).model_fields, 1e13)
    fast = {
        "device": known.device.model_copy(update=device),
        "link": known.link.model_copy(update=link),
    }
    of_both = []
    for profile in (known, known.model_copy(update=fast)):
        plan = Planner(MODEL, planned_machine(profile)).plan(chosen)
        (host,) = (tier for tier in plan.memory.tiers if tier.tier == "host")
        assert ("records to undo" in host.needs) == (plan.speculation > 0)
        of_both.append(plan.speculation)
    assert of_both == [1.0, 0.0]


@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
def test_how_long_updates_ahead_take_is_the_profiles_where_it_says(state_format: StateFormat) -> None:
    """With the threads that update: they are not those that the ratio is best with."""
    known = machine()

    def planned(**rows: Any) -> tuple[float, Plan]:
        host = known.host.model_copy(update={name: {state_format: row} for name, row in rows.items()})
        profile = known.model_copy(update={"host": host})
        rates, share = Rates(profile, "auto"), (1_000_000, "bfloat16", state_format)
        redone = rates.redo_s(*share) / rates.update_s(*share)
        chosen = config("offload.state=host", f"offload.state_format={state_format}")
        return redone, Planner(MODEL, planned_machine(profile)).plan(chosen)

    redone, plan = planned()
    assert redone == pytest.approx(REDONE[state_format])
    same, alike = planned(ahead_ratio=(99.0, 99.0, AHEAD[state_format]))
    assert (same, alike.time) == (redone, plan.time), "one figure is not the other's"
    assert plan.speculation == alike.speculation == 1.0
    redone, plan = planned(ahead_ratio=(1.0, 1.0, 99.0), redo_ratio=(1.0, 1.0, 9.0))
    assert redone == pytest.approx(9.0)
    assert plan.speculation == 0.0, "so long an update ahead hides nothing"


SMALL_BATCHES = ("train.micro_batch_size=1", "data.sequence_length=64", "train.gradient_accumulation=32")


@pytest.mark.parametrize(
    ("gpu_gib", "overrides", "chosen"),
    [
        (32, SMALL_BATCHES, "device"),
        (32, (*SMALL_BATCHES, "offload.gradient_sums=host"), "host"),
        (32, SMALL_BATCHES[:2], "auto"),  # a single micro-batch is no sum
        (1.25, SMALL_BATCHES, "auto"),  # there is no room
    ],
)
def test_micro_batches_are_summed_on_the_device_where_that_fits_and_is_faster(
    gpu_gib: float, overrides: tuple[str, ...], chosen: str
) -> None:
    plan = planner(gpu_gib=gpu_gib).plan(config(*overrides, "train.precision=bf16"))
    assert plan.fits and plan.config.offload.gradient_sums == chosen
    assert ("gradients summed on the device" in plan_text(plan)) == (chosen == "device")
    if chosen == "device":
        held = {tier.tier: tier.needs for tier in plan.memory.tiers}["device"]["gradients"]
        assert held >= 4 * MODEL.parameters


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


@pytest.mark.parametrize(("told", "stored"), [(True, "bfloat16"), (False, "float16"), (None, "float16")])
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


# The gradient of a tied head

TIED_WORK = workload(micro_batch_size=1, sequence_length=2)
MIB = 1 << 20


def logits(vocabulary: int, positions: int, *, head: bool = False) -> int:
    model_profile = gpt2(1, 64, vocabulary, positions)
    if head:
        own = ParameterProfile(name="lm_head.weight", shape=(vocabulary, 64), dtype="float32")
        model_profile = model_profile.model_copy(update={"after": (*model_profile.after, own)})
    # So much held at the end that this is the heaviest moment.
    return model_rows(model_profile, TIED_WORK, AutogradGradients(0, 64 * MIB))["device"].get("logits", 0)


def test_it_waits_where_the_head_is_tied_also_where_there_are_as_many_positions_as_tokens() -> None:
    assert logits(4096, 1024) == logits(4096, 4096) == 2 * 4096 * 64


def test_it_does_not_where_the_head_has_a_matrix_of_its_own() -> None:
    assert logits(4096, 1024, head=True) == 0


# Placements

GPU, CPU = (planned_machine(machine(gpu_gib=gpu_gib)) for gpu_gib in (32, None))


def open_config(*overrides: str) -> RunConfig:
    open_tiers = ("offload.weights=auto", "offload.state=auto", "offload.disk_path=/a disk")
    return parse_config('[model]\narchitecture = "gpt2"\n', "test", (*open_tiers, *overrides))


def names(*overrides: str, on: Machine = GPU) -> list[tuple[str, str, float]]:
    found = (variant.offload for variant in placed(open_config(*overrides), on))
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


def plan_of(device: int, host: int, *placement: str) -> Plan:
    """Return the plan of a need of so many GiB on a machine that has 10 of each."""
    needs = [("device", device), ("host", host)]
    memory = MemoryPlan(1, tuple(TierNeed(name, {"all": size * GIB}, 10 * GIB) for name, size in needs))
    fields = zip(("weights", "state", "device_fraction"), placement, strict=False)
    chosen = open_config(*(f"offload.{name}={value}" for name, value in fields))
    return Plan(chosen, "a machine", memory, WeightDtypes("float32"), None, None)


def test_the_first_that_fits_is_taken_and_nothing_after_it_is_planned() -> None:
    plans = iter([plan_of(20, 10), plan_of(5, 10, "device", "host"), plan_of(1, 1)])
    assert fastest(plans).config.offload.state == "host"
    assert len(list(plans)) == 1


def test_where_none_fits_the_one_that_lacks_least_is_named_field_by_field() -> None:
    partial = plan_of(16, 4, "device", "host", "0.5")
    with pytest.raises(DoesNotFitError) as error:
        fastest([partial, plan_of(11, 12, "host", "host"), plan_of(14, 1, "host", "disk")])
    assert error.value.exit_code == 3
    assert (
        'The nearest is offload.weights = "host", offload.state = "host", offload.device_fraction = 0, '
        "which lacks 1.00 GiB of device and 2.00 GiB of host:"
    ) in str(error.value)
    assert partial.memory.lacking == "6.00 GiB of device"


def test_where_fields_rule_out_every_placement_they_are_named() -> None:
    with pytest.raises(DoesNotFitError, match=r"offload\.disk_path"):
        fastest([])
