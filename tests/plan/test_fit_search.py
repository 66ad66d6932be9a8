"""`--fit` finds what fits, names every change, never promises what is not there, and more memory never costs time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from synthetic import gpt2, machine

from workbench.config import RunConfig, load_config, parse_config, to_toml
from workbench.config.rules import CONTRADICTIONS
from workbench.errors import ConfigurationError
from workbench.plan.fit import CHANGE_RESULTS, FIELDS, REAL_GAIN, fit, get_field, remedies, why_not
from workbench.plan.machine import planned_machine
from workbench.plan.planner import Plan, Planner
from workbench.presets import find_preset

LARGE = gpt2(50, 4096)
SMALL = gpt2(12, 768)


def preset(*overrides: str) -> RunConfig:
    return load_config(find_preset("gpt2-10b"), overrides)


def planner(model_profile: Any = LARGE, **machine_options: Any) -> Planner:
    return Planner(model_profile, planned_machine(machine(**machine_options)))


def test_the_large_preset_fits_a_32_gb_card_in_compact_and_the_plan_says_why_not_in_exact() -> None:
    plans = planner(gpu_gib=31, host_gib=120)
    exact, compact = plans.plan(preset()), plans.plan(preset("offload.state_format=compact"))
    assert not exact.fits
    assert compact.fits
    (reason,) = why_not(exact)
    assert "host" in reason
    assert "the state, kept exact, is 114.88 GiB of it" in reason
    assert any("state_format" in way for way in remedies(plans, exact.config))


def test_a_remedy_that_changes_results_says_so() -> None:
    plans = planner(gpu_gib=31, host_gib=120)
    ways = {way.partition(" = ")[0]: way for way in remedies(plans, preset())}
    assert "changes results: the optimizer's moments" in ways["offload.state_format"]
    small = planner(SMALL, gpu_gib=2)
    ways = {way.partition(" = ")[0]: way for way in remedies(small, preset("train.micro_batch_size=64"))}
    assert "changes results: fewer sequences make a step" in ways["train.micro_batch_size"]
    assert "changes results" not in ways.get("offload.weights", "")


def test_on_24_gib_without_a_gpu_the_search_says_that_a_disk_would_do_and_with_one_the_model_fits() -> None:
    found = fit(planner(gpu_gib=None, host_gib=22, disk_gib=300), preset())
    assert not found.fits
    advice = "\n".join(found.advice)
    assert "it would fit with" in advice
    assert "of host free" in advice
    assert "offload.disk_path on a disk with" in advice
    with_disk = preset("offload.disk_path=/invented", "train.micro_batch_size=1", "checkpoint.keep=1")
    found = fit(planner(gpu_gib=None, host_gib=22, disk_gib=500), with_disk)
    assert found.fits and found.plan.config.offload.state == "disk"


def test_every_change_is_named_and_what_changes_results_says_so() -> None:
    config = preset()
    found = fit(planner(gpu_gib=31, host_gib=120), config)
    assert found.fits
    named = {change.field for change in found.changes}
    assert named == {f for f in FIELDS if get_field(config, f) != get_field(found.plan.config, f)}
    (of_format,) = [change for change in found.changes if change.field == "offload.state_format"]
    assert "changes results" in of_format.note
    left = found.plan.config.model_dump()
    for table in ("model", "data", "optimizer", "schedule", "evaluate", "sample", "checkpoint"):
        assert left[table] == config.model_dump()[table]


def test_the_sequences_of_a_step_are_kept() -> None:
    config = preset("train.micro_batch_size=12", "train.gradient_accumulation=2")
    found = fit(planner(gpu_gib=20, host_gib=120), config)
    train = found.plan.config.train
    assert train.micro_batch_size * train.gradient_accumulation == 24


@pytest.mark.parametrize(
    ("size", "accumulation"), [(65_536, 65_536), (65_520, 65_520), (1, 65_521), (840, 1)]
)
def test_however_many_sequences_make_a_step_the_search_is_short_and_stays_within_the_configurations_ranges(
    size: int, accumulation: int
) -> None:
    config = preset(f"train.micro_batch_size={size}", f"train.gradient_accumulation={accumulation}")
    found = fit(planner(gpt2(2, 64), gpu_gib=4), config, keep=frozenset({"offload.state_format"}))
    assert found.tried < 1000
    train = found.plan.config.train
    assert train.micro_batch_size * train.gradient_accumulation == size * accumulation
    assert parse_config(to_toml(found.plan.config), "found") == found.plan.config


def test_a_kept_field_stays_and_one_that_is_never_changed_is_refused() -> None:
    found = fit(planner(gpu_gib=31, host_gib=200), preset(), keep=frozenset({"offload.state_format"}))
    assert found.plan.config.offload.state_format == "exact"
    for field, said in (
        ("optimizer.eps", "a search does not change it; it changes offload.weights"),
        ("offload.stat", r"did you mean offload\.state\?"),
        ("offload.state", 'it is "auto", which a search chooses'),
    ):
        with pytest.raises(ConfigurationError, match=f"--keep {field}: .*{said}"):
            fit(planner(), preset("offload.state=auto"), keep=frozenset({field}))


def test_advice_names_all_that_it_would_change_and_keeps_what_is_kept() -> None:
    config = preset("offload.overlap=delayed", "train.activation_checkpointing=false")
    found = fit(
        planner(gpu_gib=12, host_gib=24, disk_gib=100), config, keep=frozenset({"offload.state_format"})
    )
    (disk,) = [sentence for sentence in found.advice if "offload.disk_path" in sentence]
    assert 'offload.overlap = "exact"' in disk
    assert "train.activation_checkpointing = true" in disk
    assert all('offload.state_format = "exact"' in sentence for sentence in found.advice)
    compact = preset("offload.state_format=compact", "offload.overlap=delayed")
    found = fit(
        planner(gpu_gib=12, host_gib=24, disk_gib=100), compact, keep=frozenset({"offload.state_format"})
    )
    assert any("offload.disk_path" in sentence for sentence in found.advice)
    assert all('offload.state_format = "compact"' in sentence for sentence in found.advice)


def without_bf16(gpu_gib: int = 32) -> Planner:
    known = machine(gpu_gib=gpu_gib, host_gib=400)
    speeds = {"float32": 12e12, "bfloat16": 12e12, "float16": 87e12}
    device = known.device.model_copy(update={"has_bfloat16": False, "matrix_flops_per_s": speeds})
    return Planner(LARGE, planned_machine(known.model_copy(update={"device": device})))


def test_a_gpu_without_bf16_is_given_fp16_which_says_that_it_changes_results() -> None:
    config = preset("train.precision=bf16", "train.micro_batch_size=3")
    found = fit(without_bf16(), config)
    assert found.plan.precision.storage == "float16"
    (change,) = [change for change in found.changes if change.field == "train.precision"]
    assert (change.before, change.after) == ("bf16", "fp16") and "changes results" in change.note
    assert any('with train.precision = "bf16" the fastest that fits takes' in each for each in found.advice)
    kept = fit(without_bf16(), config, keep=frozenset({"train.precision"}))
    assert kept.plan.config.train.precision == "bf16"
    assert "train.precision" not in {change.field for change in fit(planner(host_gib=400), config).changes}


def test_fp16_gives_way_to_bf16_where_only_its_smaller_state_fits() -> None:
    config = preset("train.precision=fp16")
    short = planner(host_gib=95)
    assert not fit(short, config, keep=frozenset({"train.precision"})).plan.fits
    found = fit(short, config)
    assert found.plan.fits
    (change,) = [change for change in found.changes if change.field == "train.precision"]
    assert change.after == "bf16"
    assert change.note == "changes results: weights and activations are bf16, and the loss is not scaled"
    roomy = fit(planner(host_gib=400), config)
    assert "train.precision" not in {change.field for change in roomy.changes}


def test_fp16_is_a_remedy_of_fp32_on_a_gpu_without_bf16_where_no_other_is_enough() -> None:
    everything_away = ["offload.weights=host", "offload.state=host", "offload.activations=host"]
    config = preset("train.precision=fp32", *everything_away)

    def ways(gpu_gib: int) -> set[str]:
        plans = without_bf16(gpu_gib=gpu_gib)
        assert not plans.plan_fixed(config).fits and plans.plan_fixed(in_16_bits).fits
        return {way.partition(" = ")[0] for way in remedies(plans, config)}

    in_16_bits = preset("train.precision=fp16", *everything_away)
    assert "train.precision" in ways(7)
    with_room = preset("train.precision=fp32", "offload.weights=host", "offload.state=host")
    found = remedies(without_bf16(gpu_gib=14), with_room)
    assert [way.partition(" = ")[0] for way in found] == ["offload.activations"], "which changes no results"


@pytest.mark.parametrize(("gain", "changed"), [(0.02, False), (0.05, True)])
def test_results_change_only_for_a_real_gain(
    gain: float, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state format that makes steps a little shorter is not worth other results."""
    plans = planner(host_gib=400)
    planned = plans.plan_fixed

    def timed(config: RunConfig, *, timed: bool = True) -> Plan:
        plan = planned(config, timed=timed)
        if plan.time is None:
            return plan
        step_s = 10.0 * (1 - gain if config.offload.state_format == "half" else 1.0)
        return replace(plan, time=replace(plan.time, step_s=step_s))

    monkeypatch.setattr(plans, "plan_fixed", timed)
    found = fit(plans, preset("train.micro_batch_size=3"))
    assert (found.plan.config.offload.state_format == "half") == changed
    assert bool(found.advice) == changed


def random_case(draw: random.Random) -> tuple[RunConfig, int | None, int]:
    """A configuration that breaks no rule, and a machine."""
    while True:
        values = {
            "train.micro_batch_size": draw.choice([1, 2, 3, 8, 12]),
            "train.gradient_accumulation": draw.choice([1, 2, 4]),
            "train.gradient_clipping": draw.choice(["0.0", "1.0"]),
            "train.activation_checkpointing": draw.choice(["true", "false"]),
            "train.precision": draw.choice(['"auto"', '"fp16"', '"fp32"', '"bf16"']),
            "offload.weights": draw.choice(['"auto"', '"device"', '"host"', '"disk"']),
            "offload.state": draw.choice(['"auto"', '"device"', '"host"', '"disk"']),
            "offload.state_format": draw.choice(['"exact"', '"half"', '"compact"']),
            "offload.overlap": draw.choice(['"exact"', '"serial"', '"delayed"']),
            "offload.device_fraction": draw.choice(["0.0", "0.0", "0.4"]),
            "offload.disk_path": draw.choice(['""', '"/invented"']),
            "data.sequence_length": draw.choice([64, 512, 1024]),
        }
        lines = ['model.architecture = "gpt2"', *(f"{key} = {value}" for key, value in values.items())]
        try:
            config = parse_config("\n".join(lines), "random")
        except ConfigurationError:
            continue
        return config, draw.choice([None, 4, 16, 40]), draw.choice([4, 24, 64])


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_random_configurations_get_a_plan_that_keeps_its_promise_and_more_memory_is_never_slower(
    seed: int,
) -> None:
    draw = random.Random(seed)
    config, gpu, memory = random_case(draw)
    model_profile = gpt2(draw.choice([2, 6, 12]), draw.choice([256, 1024]), draw.choice([512, 50_304]))
    best: float | None = None
    for factor in (1, 2, 4):
        plans = planner(
            model_profile, gpu_gib=None if gpu is None else factor * gpu, host_gib=factor * memory
        )
        found = fit(plans, config)
        if found.fits:
            assert all(tier.needed_bytes <= tier.free_bytes for tier in found.plan.memory.tiers)
        assert not any(rule.broken(found.plan.config) for rule in CONTRADICTIONS)
        if best is not None:
            assert found.fits, "what fits goes on to fit where there is more"
        if found.fits and found.plan.time is not None:
            # Where there is room for it, results stay as they are for so much time.
            least_gain = (1 - REAL_GAIN) ** len(CHANGE_RESULTS)
            assert best is None or found.plan.time.step_s * least_gain <= best * (1 + 1e-9)
            best = found.plan.time.step_s
