"""Every key of a DeepSpeed file gets a verdict: used, mapped, meaningless here, or refused, each with its reason."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from deepspeed_files import BATCH, ZERO, config_of, imported, nested, verdict_on

from workbench.config import RunConfig, rules
from workbench.imports import import_text
from workbench.imports.deepspeed.keys import DECIDING, HARMFUL, MEANINGLESS, is_known

KEYS = sorted({*DECIDING, *HARMFUL, *(key.removesuffix(".*") for key in MEANINGLESS)})


def test_no_key_has_two_meanings_and_all_are_known() -> None:
    assert not DECIDING & MEANINGLESS.keys()
    assert not (DECIDING | MEANINGLESS.keys()) & HARMFUL.keys()
    assert [key for key in KEYS if not is_known(tuple(key.split(".")))] == []
    assert not is_known(("zero_optimization", "lr"))


@pytest.mark.parametrize("value", ["auto", None, True, 1, "x", {}, [], {"x": 1}], ids=str)
@pytest.mark.parametrize("zero", [False, True])
def test_whatever_its_value_every_key_gets_a_verdict(value: Any, zero: bool) -> None:
    """All keys at once, with one kind of value each."""
    inner = [key for key in KEYS if not any(other.startswith(f"{key}.") for other in KEYS)]
    whole = nested(**{key: copy.deepcopy(value) for key in inner})
    if zero:
        whole[ZERO] |= {"stage": 3, "offload_param": {"device": "cpu"}}
        whole["optimizer"]["type"] = "Adam"
        whole["fp16"]["enabled"] = True
        whole["scheduler"]["type"] = "WarmupDecayLR"
    made = import_text(json.dumps(whole), "ds.json")
    assert all(verdict.reason and verdict.line == 1 for verdict in made.verdicts)
    # A key that holds an object has verdicts on what is in it.
    judged = {key for verdict in made.verdicts for key in (verdict.key, verdict.key.rpartition(".")[0])}
    moved = {repair.what.split('"')[1] for repair in made.repairs}
    kept = [key for key in inner if not (zero and key.startswith(f"{ZERO}.offload_param."))]
    assert [key for key in kept if key not in judged and key.rpartition(".")[2] not in moved] == []
    assert bool(made.preset) != bool(made.refused)


@pytest.mark.parametrize(
    ("key", "value", "judgement", "reason"),
    [
        ("train_micro_batch_size_per_gpu", 4, "used", "at once"),
        ("gradient_clipping", 0.5, "used", "largest norm"),
        ("optimizer.type", "Adam", "mapped", '"Adam" means AdamW'),
        (f"{ZERO}.stage", 2, "mapped", "several (parallel.gpus) share the state"),
        (
            f"{ZERO}.reduce_bucket_size",
            5e8,
            "meaningless here",
            "exchange one chunk at a time: offload.chunk_mib",
        ),
        (f"{ZERO}.reduce_scatter", False, "meaningless here", "always reduce gradients to the share"),
        (f"{ZERO}.allgather_partitions", True, "meaningless here", "always gather new weights"),
        ("aio.thread_count", 1, "meaningless here", "disk"),
        ("wandb.enabled", True, "meaningless here", "metrics"),
        (ZERO, None, "meaningless here", "null"),
        ("_note", "ours", "meaningless here", "note"),
        ("my_tool", {"enabled": True}, "unknown", "neither DeepSpeed nor Workbench"),
        (f"{ZERO}.reduce_scater", True, "unknown", 'did you mean "reduce_scatter"?'),
        ("elasticity", {"enabled": False, "max_train_batch_size": 9}, "meaningless here", "off"),
        ("data_types.grad_accum_dtype", "bf16", "mapped", "fp32, which is finer"),
    ],
)
def test_a_key_that_can_be_honoured_or_changes_nothing_does_not_stop_the_import(
    key: str, value: Any, judgement: str, reason: str
) -> None:
    made = imported(**{key: value})
    assert config_of(made)
    found, why = verdict_on(made, key)
    assert found == judgement and reason in why


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("optimizer.type", "Lamb", "another update rule"),
        ("optimizer", "AdamW", "must be an object"),
        ("optimizer.params.lr", 1e-4, '"type": "AdamW"'),
        ("Adam max_grad_norm", 1, "clipping"),
        ("Adam amsgrad", True, "exp_avg_sq"),
        ("Adam bias_correction", False, "never left out"),
        ("Adam fp32_optimizer_states", False, "state_format"),
        ("Adam lr", "5e-5", "without quotes"),
        ("Adam lr", -1, "above 0"),
        ("Adam betas", [0.9, 1], "below 1"),
        ("WarmupLR cos_min_ratio", 0.1, "does not take it"),
        (f"{ZERO}.zenflow", {"topk_ratio": 0.1}, "not AdamW"),
        (f"{ZERO}.zero_quantized_weights", True, "fewer bits"),
        (f"{ZERO}.offload_optimizer.device", "gpu", '"nvme"'),
        ("sparse_gradients", True, "dense"),
        ("fp16 initial_scale_power", 33, "from 0 to 32"),
        ("fp16 consecutive_hysteresis", True, "not by every good step"),
        ("fp16 loss_scale_windw", 5, 'did you mean "loss_scale_window"?'),
        ("fp16 fp16_master_weights_and_grads", True, "always lossless"),
        ("amp", {"enabled": True}, "Apex"),
        ("curriculum_learning", {"enabled": True}, "sequences"),
        ("lr", 1e-4, "belongs in optimizer.params"),
        ("mine", {"fp16": {"enabled": True}}, "of its own"),
    ],
)
def test_what_changes_results_and_cannot_be_honoured_is_refused(key: str, value: Any, reason: str) -> None:
    """ "Adam KEY" is a parameter of that optimizer, "fp16 KEY" a key of that section, which is on."""
    kind, _, name = key.partition(" ")
    key, context = {
        "Adam": (f"optimizer.params.{name}", {"optimizer.type": "Adam"}),
        "WarmupLR": (f"scheduler.params.{name}", {"scheduler.type": "WarmupLR"}),
        "fp16": (f"fp16.{name}", {"fp16.enabled": True}),
        "bf16": (f"bf16.{name}", {"bf16.enabled": True}),
    }.get(kind if name else "", (key, {}))
    made = imported(**context, **{key: value})
    assert not made.preset
    assert verdict_on(made, key)[0] == "refused"
    (sentence,) = [line for line in made.refused if line.startswith(f"ds.json:1: {key} = ")]
    assert reason in sentence


def test_two_16_bit_formats_and_a_disk_without_a_folder_are_refused() -> None:
    (sentence,) = imported(**{"fp16.enabled": True, "bf16.enabled": True}).refused
    assert "bf16.enabled" in sentence
    (sentence,) = imported(**{f"{ZERO}.stage": 3, f"{ZERO}.offload_optimizer.device": "nvme"}).refused
    assert "nvme_path" in sentence


def test_what_is_refused_keeps_nothing_else_from_being_read() -> None:
    """One file with a mistake in each section, most of which are hidden by another in a careless reading."""
    mistakes: dict[str, Any] = {
        "train_batch_size": "64",
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Lamb", "params": {"lr": "1e-4", "betas": [0.9], "max_grad_norm": 1}},
        "scheduler": {"type": "OneCycle", "params": {"warmup_num_steps": "many", "warmup_min_lr": 1}},
        "fp16": {"enabled": "yes", "loss_scale_window": -1, "initial_scale_power": 4, "min_loss_scale": 64},
        ZERO: {
            "stage": 4,
            "offload_optimizer": {"device": "gpu", "ratio": 2},
            "offload_param": {"device": 1},
        },
        "amp": {"enabled": True},
    }
    reasons = dict(line.removeprefix("ds.json:1: ").split(" = ", 1) for line in imported(**mistakes).refused)
    assert list(reasons) == [
        "train_batch_size",
        "optimizer.type",
        *(f"optimizer.params.{key}" for key in ("lr", "betas", "max_grad_norm")),
        "scheduler.type",
        *(f"scheduler.params.{key}" for key in ("warmup_num_steps", "warmup_min_lr")),
        *(f"fp16.{key}" for key in ("enabled", "loss_scale_window", "min_loss_scale")),
        *(f"{ZERO}.{key}" for key in ("stage", "offload_optimizer.device", "offload_optimizer.ratio")),
        f"{ZERO}.offload_param.device",
        "amp",
    ]
    assert "without quotes; and was written for 8 GPUs" in reasons["train_batch_size"]


def test_a_preset_that_config_check_would_refuse_is_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules.Contradiction(
        ("train.precision",), lambda run: run.train.precision == "fp16", "is too small here", "write bf16"
    )
    monkeypatch.setattr(rules, "CONTRADICTIONS", (*rules.CONTRADICTIONS, rule))
    made = imported(fp16={"enabled": True})
    assert not made.preset
    (sentence,) = made.refused
    assert sentence.startswith("the preset of ds.json:") and "is too small here" in sentence
    assert imported(bf16={"enabled": True}).preset


# Optimizer and number formats


@pytest.mark.parametrize(
    "optimizer",
    [
        {},
        {"optimizer": {"type": "AdamW"}},
        {
            "optimizer.params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"),
            "optimizer.type": "AdamW",
        },
    ],
    ids=["none", "bare", "auto"],
)
def test_what_is_not_written_is_the_trainers_default(optimizer: dict[str, Any]) -> None:
    made = imported(**optimizer)
    told = [*(each.reason for each in made.assumed), *(each.reason for each in made.verdicts)]
    assert sum("the Hugging Face Trainer's default" in reason for reason in told) == 4
    assert config_of(made).optimizer.model_dump() == {
        "type": "adamw",
        "learning_rate": 5e-5,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "no_decay": [],
        "learning_rate_scales": {},
    }


@pytest.mark.parametrize(
    ("kind", "params", "rule"),
    [
        ("Adam", {}, "adamw"),
        ("adam", {"adam_w_mode": True}, "adamw"),
        ("Adam", {"adam_w_mode": False, "torch_adam": True}, "adam"),
        ("AdamW", {"adam_w_mode": False}, "adamw"),
    ],
)
def test_adam_decays_apart_from_the_gradient_unless_it_says_otherwise(
    kind: str, params: dict[str, Any], rule: str
) -> None:
    assert config_of(imported(optimizer={"type": kind, "params": params})).optimizer.type == rule


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({}, "fp32"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, "fp32"),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": True}}, "bf16"),
        ({"bfloat16": {"enabled": True}}, "bf16"),
        ({"bf16": {"enabled": False}, "bfloat16": {"enabled": True}}, "fp32"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, "auto"),
        ({"bf16": {"enabled": "auto"}}, "auto"),
        ({"fp16": {"enabled": "auto"}}, "fp16"),
    ],
)
def test_the_sections_of_16_bit_formats_decide_the_precision(
    sections: dict[str, Any], precision: str
) -> None:
    assert config_of(imported(**sections)).train.precision == precision


def test_loss_scaling_is_taken_over_field_by_field() -> None:
    fp16 = {"enabled": True, "loss_scale": 128, "initial_scale_power": 8, "loss_scale_window": 50}
    run = config_of(
        imported(fp16=fp16 | {"hysteresis": 1, "min_loss_scale": 2, "consecutive_hysteresis": True})
    )
    assert run.loss_scale.model_dump() == {
        "fixed": 128.0,
        "initial_power": 8,
        "window": 50,
        "hysteresis": 1,
        "minimum": 2.0,
    }


# Defaults that have changed, and "auto"


def test_the_reading_of_a_dated_default_is_told() -> None:
    made = imported(bf16={"enabled": True}, **{ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    assumptions = {assumed.key: assumed.reason for assumed in made.assumed}
    checked = imported(bf16={"enabled": True, "check_grad_overflow": False})
    assert verdict_on(checked, "bf16.check_grad_overflow")[0] == "mapped"
    assert config_of(made).train.gradient_clipping == 1.0
    assert "since 2026-06-23" in assumptions["gradient_clipping"]
    assert "since 2026-06-26" in assumptions["bf16.check_grad_overflow"]
    assert "since 2026-08-07" in assumptions[f"{ZERO}.offload_optimizer.pin_memory"]
    assert "2026-06-23" in made.preset


def test_what_says_auto_is_filled_in_and_told() -> None:
    made = imported(
        optimizer={"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4, "warmup_num_steps": "auto"}},
        gradient_clipping="auto",
    )
    run = config_of(made)
    assert run.optimizer.learning_rate == 2e-4
    assert run.optimizer.weight_decay == 0
    assert run.train.gradient_clipping == RunConfig().train.gradient_clipping
    for key in ("optimizer.params.weight_decay", "gradient_clipping", "scheduler.params.warmup_num_steps"):
        judgement, reason = verdict_on(made, key)
        assert judgement == "mapped"
        assert reason.startswith('"auto" becomes')


# Keys in the wrong place


def test_a_key_that_lost_its_brace_is_read_where_it_belongs() -> None:
    offload = {"device": "cpu", "overlap_comm": True, "contiguous_gradients": True, "gradient_clipping": 0.25}
    made = imported(**{ZERO: {"stage": 2, "offload_optimizer": offload}})
    assert config_of(made).train.gradient_clipping == 0.25
    assert verdict_on(made, f"{ZERO}.overlap_comm")[0] == "mapped"
    assert [repair.what.split(";")[0] for repair in made.repairs] == [
        f'moved "{key}" out of {ZERO}.offload_optimizer'
        for key in ("contiguous_gradients", "gradient_clipping", "overlap_comm")
    ]


def test_a_whole_that_is_wrapped_or_cut_out_is_read() -> None:
    wrapped = import_text(json.dumps({"deepspeed": BATCH}), "ds.json", architecture="gpt2")
    assert config_of(wrapped).train.micro_batch_size == 4
    beside = import_text(json.dumps({"deepspeed": BATCH, "seed": 1}), "ds.json", architecture="gpt2")
    assert "of its own" in beside.refused[0]
    inside = import_text('"stage": 2, "offload_optimizer": {"device": "cpu"}', "ds.json", architecture="gpt2")
    assert config_of(inside).offload.state == "host"
    assert any("the inside of" in repair.what for repair in inside.repairs)


def test_keys_of_other_rules_and_schedules_are_known_though_the_rules_are_refused() -> None:
    params = dict.fromkeys(
        ("var_freeze_step", "coeff_beta", "factor_max", "local_step_scaler", "ns_method"), 1
    )
    schedule = {
        "cycle_min_lr": 0.1,
        "lr_range_test_min_lr": 0.1,
        "decay_lr_rate": 0.1,
        "cycle_first_stair_count": 1,
    }
    made = imported(
        optimizer={"type": "ZeroOneAdam", "params": params},
        scheduler={"type": "OneCycle", "params": schedule},
    )
    assert [line.split(": ")[1].split(" = ")[0] for line in made.refused] == [
        "optimizer.type",
        "scheduler.type",
    ]
    for key in (
        *(f"optimizer.params.{name}" for name in params),
        *(f"scheduler.params.{name}" for name in schedule),
    ):
        assert verdict_on(made, key)[0] == "meaningless here", key


@pytest.mark.parametrize("section", ["bf16", "bfloat16"])
@pytest.mark.parametrize("key", ["bf16_master_weights_and_grads", "bf16_optimizer_states"])
def test_a_state_in_bf16_is_half(section: str, key: str) -> None:
    made = imported(
        **{
            f"{section}.enabled": True,
            f"{section}.{key}": True,
            f"{ZERO}.cpu_offload": True,
            f"{ZERO}.stage": 2,
        }
    )
    assert config_of(made).offload.state_format == "half"
    assert verdict_on(made, f"{section}.{key}")[0] == "mapped"
    assert (
        config_of(imported(**{f"{section}.enabled": True, f"{section}.{key}": False})).offload.state_format
        == "exact"
    )


@pytest.mark.parametrize(
    ("section", "tiers"), [("offload_optimizer", ("device", "host")), ("offload_param", ("host", "host"))]
)
def test_offloading_without_a_stage_is_meant(section: str, tiers: tuple[str, str]) -> None:
    made = imported(**{f"{ZERO}.{section}.device": "cpu"})
    offload = config_of(made).offload
    assert (offload.weights, offload.state) == tiers
    assert any("it is meant" in each.reason for each in made.assumed)


@pytest.mark.parametrize("steps", [2**31, 10**12])
def test_a_progress_line_that_never_comes_is_no_mistake(steps: int) -> None:
    made = imported(steps_per_print=steps)
    assert verdict_on(made, "steps_per_print")[0] == "meaningless here" and made.preset
