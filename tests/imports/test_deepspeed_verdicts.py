"""Every key of a DeepSpeed file gets a verdict: used, mapped, meaningless here, or refused, each with its reason."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from workbench.config import RunConfig, parse_config, rules
from workbench.imports import Imported, import_text
from workbench.imports.deepspeed.keys import DECIDING, HARMFUL, MEANINGLESS, is_known

ZERO = "zero_optimization"
BATCH = {"train_micro_batch_size_per_gpu": 4}


def imported(**sections: Any) -> Imported:
    return import_text(json.dumps(BATCH | sections), "ds.json", architecture="gpt2")


def config_of(made: Imported) -> RunConfig:
    assert not made.refused
    return parse_config(made.preset, "made.toml")


def verdict_on(made: Imported, key: str) -> tuple[str, str]:
    (found,) = [verdict for verdict in made.verdicts if verdict.key == key]
    return found.judgement, found.reason


DOCUMENTED_KEYS = {
    "": "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping steps_per_print "
    "wall_clock_breakdown dump_state zero_allow_untested_optimizer zero_force_ds_cpu_optimizer communication_data_type "
    "prescale_gradients gradient_predivide_factor sparse_gradients memory_breakdown fp32_allreduce disable_allgather "
    "dataloader_drop_last",
    "optimizer": "type",
    "optimizer.params": "lr betas eps weight_decay torch_adam adam_w_mode bias_correction fp32_optimizer_states "
    "amsgrad max_grad_norm",
    "scheduler": "type",
    "scheduler.params": "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type total_num_steps warmup_min_ratio "
    "cos_min_ratio",
    "fp16": "enabled loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale "
    "auto_cast",
    "bf16": "enabled check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states",
    "bfloat16": "enabled",
    "data_types": "grad_accum_dtype",
    ZERO: "stage contiguous_gradients overlap_comm reduce_scatter reduce_bucket_size allgather_partitions "
    "allgather_bucket_size round_robin_gradients sub_group_size stage3_max_live_parameters stage3_max_reuse_distance "
    "stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_gather_16bit_weights_on_model_save "
    "ignore_unused_parameters load_from_fp32_weights elastic_checkpoint memory_efficient_linear cpu_offload "
    "cpu_offload_params cpu_offload_use_pin_memory stage3_gather_fp16_weights_on_model_save zero_quantized_weights "
    "zero_quantized_gradients zero_quantized_nontrainable_weights zenflow",
    f"{ZERO}.offload_optimizer": "device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init "
    "ratio super_offload cpuadam_cores_perc",
    f"{ZERO}.offload_param": "device nvme_path buffer_count buffer_size max_in_cpu pin_memory",
    f"{ZERO}.zenflow": "topk_ratio select_strategy select_interval update_interval overlap_step full_warm_up_rounds",
    "aio": "block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds",
    "activation_checkpointing": "partition_activations number_checkpoints contiguous_memory_optimization "
    "synchronize_checkpoint_boundary cpu_checkpointing profile",
    "tensorboard": "enabled output_path job_name",
    "wandb": "enabled group team project",
    "csv_monitor": "enabled output_path job_name",
    "comet": "enabled project",
    "checkpoint": "tag_validation load_universal use_node_local_storage parallel_write",
}


@pytest.mark.parametrize("section", DOCUMENTED_KEYS)
def test_every_documented_key_is_known(section: str) -> None:
    path = tuple(section.split(".")) if section else ()
    assert [key for key in DOCUMENTED_KEYS[section].split() if not is_known((*path, key))] == []


def test_no_key_has_two_meanings() -> None:
    assert not DECIDING & MEANINGLESS.keys()
    assert not (DECIDING | MEANINGLESS.keys()) & HARMFUL.keys()


@pytest.mark.parametrize("value", ["auto", None, True, 1, "x", {}, [], {"x": 1}], ids=str)
@pytest.mark.parametrize("zero", [False, True])
def test_whatever_its_value_every_key_gets_a_verdict(value: Any, zero: bool) -> None:
    """All documented keys at once, with one kind of value each."""
    whole: dict[str, Any] = {}
    for section, keys in DOCUMENTED_KEYS.items():
        at = whole
        for name in filter(None, section.split(".")):
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                break
        else:
            for key in keys.split():
                at.setdefault(key, copy.deepcopy(value))
    if zero:
        whole[ZERO] |= {"stage": 3, "offload_param": {"device": "cpu"}}
        whole |= {
            "optimizer": whole["optimizer"] | {"type": "Adam"},
            "fp16": whole["fp16"] | {"enabled": True},
        }
        whole["scheduler"]["type"] = "WarmupDecayLR"
    made = import_text(json.dumps(whole), "ds.json")
    judged = {verdict.key for verdict in made.verdicts}
    assert all(verdict.reason and verdict.line == 1 for verdict in made.verdicts)

    def leaves(at: dict[str, Any], path: str) -> list[str]:
        return [
            leaf
            for key, held in at.items()
            for leaf in (leaves(held, f"{path}{key}.") if isinstance(held, dict) and held else [path + key])
        ]

    missing = set(leaves(whole, "")) - judged
    moved = {repair.what.split('"')[1] for repair in made.repairs}
    assert {key for key in missing if key.rpartition(".")[2] not in moved} == set()
    assert bool(made.preset) != bool(made.refused)


@pytest.mark.parametrize(
    ("sections", "key", "judgement", "reason"),
    [
        ({}, "train_micro_batch_size_per_gpu", "used", "at once"),
        ({"gradient_clipping": 0.5}, "gradient_clipping", "used", "largest norm"),
        ({"optimizer": {"type": "Adam"}}, "optimizer.type", "mapped", '"Adam" means AdamW'),
        ({ZERO: {"stage": 2}}, f"{ZERO}.stage", "mapped", "whole on one GPU"),
        (
            {ZERO: {"stage": 1, "reduce_bucket_size": 5e8}},
            f"{ZERO}.reduce_bucket_size",
            "meaningless here",
            "GPUs",
        ),
        ({"aio": {"thread_count": 1}}, "aio.thread_count", "meaningless here", "disk"),
        ({"wandb": {"enabled": True}}, "wandb.enabled", "meaningless here", "metrics"),
        ({"zero_optimization": None}, ZERO, "meaningless here", "null"),
        ({"_note": "ours"}, "_note", "meaningless here", "note"),
        ({"my_tool": {"enabled": True}}, "my_tool", "unknown", "neither DeepSpeed nor Workbench"),
        (
            {ZERO: {"reduce_scater": True}},
            f"{ZERO}.reduce_scater",
            "unknown",
            'did you mean "reduce_scatter"?',
        ),
        (
            {"elasticity": {"enabled": False, "max_train_batch_size": 9}},
            "elasticity",
            "meaningless here",
            "off",
        ),
        (
            {"data_types": {"grad_accum_dtype": "bf16"}},
            "data_types.grad_accum_dtype",
            "mapped",
            "fp32, which is finer",
        ),
        (
            {"bf16": {"enabled": True, "check_grad_overflow": False}},
            "bf16.check_grad_overflow",
            "mapped",
            "always",
        ),
        ({"steps_per_print": 10}, "steps_per_print", "mapped", "progress"),
    ],
)
def test_a_key_that_can_be_honoured_or_changes_nothing_does_not_stop_the_import(
    sections: dict[str, Any], key: str, judgement: str, reason: str
) -> None:
    made = imported(**sections)
    assert config_of(made)
    found, why = verdict_on(made, key)
    assert found == judgement
    assert reason in why


@pytest.mark.parametrize(
    ("sections", "key", "reason"),
    [
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type", "another update rule"),
        (
            {"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 3}}},
            "optimizer.type",
            "another update rule",
        ),
        ({"optimizer": {"type": "SGD"}}, "optimizer.type", "another update rule"),
        (
            {"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}},
            "optimizer.params.max_grad_norm",
            "clipping",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"amsgrad": True}}},
            "optimizer.params.amsgrad",
            "exp_avg_sq",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"bias_correction": False}}},
            "optimizer.params.bias_correction",
            "never left out",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"fp32_optimizer_states": False}}},
            "optimizer.params.fp32_optimizer_states",
            "state_format",
        ),
        ({"optimizer": {"params": {"lr": 1e-4}}}, "optimizer.params.lr", '"type": "AdamW"'),
        ({"optimizer": "AdamW"}, "optimizer", "must be an object"),
        ({"optimizer": {"type": "Adam", "params": {"lr": "5e-5"}}}, "optimizer.params.lr", "without quotes"),
        ({"optimizer": {"type": "Adam", "params": {"lr": -1}}}, "optimizer.params.lr", "above 0"),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}},
            "optimizer.params.betas",
            "array of two",
        ),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}}, "optimizer.params.betas", "below 1"),
        (
            {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1}}},
            "scheduler.type",
            "not a schedule",
        ),
        ({"scheduler": {"type": "LRRangeTest"}}, "scheduler.type", "not a schedule"),
        ({"scheduler": {"type": "WarmupDecayLR"}}, "scheduler.type", "total_num_steps"),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"cos_min_ratio": 0.1}}},
            "scheduler.params.cos_min_ratio",
            "does not take it",
        ),
        ({ZERO: {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, f"{ZERO}.zenflow", "not AdamW"),
        (
            {ZERO: {"stage": 3, "zero_quantized_weights": True}},
            f"{ZERO}.zero_quantized_weights",
            "fewer bits",
        ),
        ({ZERO: {"stage": 4}}, f"{ZERO}.stage", "must be 0, 1, 2 or 3"),
        (
            {ZERO: {"stage": 2, "offload_optimizer": {"device": "gpu"}}},
            f"{ZERO}.offload_optimizer.device",
            '"nvme"',
        ),
        (
            {ZERO: {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
            f"{ZERO}.offload_optimizer.device",
            "nvme_path",
        ),
        ({"sparse_gradients": True}, "sparse_gradients", "dense"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "bf16.enabled", "cannot both be on"),
        ({"fp16": {"enabled": True, "initial_scale_power": 33}}, "fp16.initial_scale_power", "from 0 to 32"),
        (
            {"fp16": {"enabled": True, "consecutive_hysteresis": True}},
            "fp16.consecutive_hysteresis",
            "not by every good step",
        ),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            "bf16.bf16_master_weights_and_grads",
            "lossless fp32",
        ),
        ({"amp": {"enabled": True}}, "amp", "Apex"),
        ({"elasticity": {"enabled": True}}, "elasticity", "batch sizes"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning", "sequences"),
        ({"gradient_cliping": 1.0}, "gradient_cliping", 'did you mean "gradient_clipping"?'),
        ({"lr": 1e-4}, "lr", "belongs in optimizer.params"),
        (
            {"fp16": {"enabled": True, "loss_scale_windw": 5}},
            "fp16.loss_scale_windw",
            'did you mean "loss_scale_window"?',
        ),
        ({"mine": {"fp16": {"enabled": True}}}, "mine", "of its own"),
    ],
)
def test_what_changes_results_and_cannot_be_honoured_is_refused(
    sections: dict[str, Any], key: str, reason: str
) -> None:
    made = imported(**sections)
    assert not made.preset
    assert verdict_on(made, key)[0] == "refused"
    (sentence,) = [line for line in made.refused if line.startswith(f"ds.json:1: {key} = ")]
    assert reason in sentence


def test_all_refusals_are_told_at_once() -> None:
    made = imported(optimizer={"type": "Lamb"}, scheduler={"type": "OneCycle"}, sparse_gradients=True)
    assert [line.split(" = ")[0] for line in made.refused] == [
        "ds.json:1: optimizer.type",
        "ds.json:1: scheduler.type",
        "ds.json:1: sparse_gradients",
    ]


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
    told = dict(line.removeprefix("ds.json:1: ").split(" = ", 1) for line in imported(**mistakes).refused)
    assert told.keys() == {
        "train_batch_size",
        "optimizer.type",
        *(f"optimizer.params.{key}" for key in ("lr", "betas", "max_grad_norm")),
        "scheduler.type",
        *(f"scheduler.params.{key}" for key in ("warmup_num_steps", "warmup_min_lr")),
        *(f"fp16.{key}" for key in ("enabled", "loss_scale_window", "min_loss_scale")),
        *(f"{ZERO}.{key}" for key in ("stage", "offload_optimizer.device", "offload_optimizer.ratio")),
        f"{ZERO}.offload_param.device",
        "amp",
    }
    assert "without quotes; and was written for 8 GPUs" in told["train_batch_size"]


def test_a_preset_that_config_check_would_refuse_is_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules.Contradiction(
        ("train.precision",), lambda run: run.train.precision == "fp16", "is too small here", "write bf16"
    )
    monkeypatch.setattr(rules, "CONTRADICTIONS", (*rules.CONTRADICTIONS, rule))
    made = imported(fp16={"enabled": True})
    assert not made.preset
    (sentence,) = made.refused
    assert sentence.startswith("the preset of ds.json:")
    assert "is too small here" in sentence
    assert imported(bf16={"enabled": True}).preset


# Semantics of the optimizer and of number formats


def test_adam_has_deepspeeds_defaults_and_not_workbenchs() -> None:
    run = config_of(imported(optimizer={"type": "AdamW"}))
    assert run.optimizer.model_dump() == {
        "type": "adamw",
        "learning_rate": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
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
    told = {assumed.key: assumed.reason for assumed in made.assumed}
    assert config_of(made).train.gradient_clipping == 1.0
    assert "since 2026-06-23" in told["gradient_clipping"]
    assert "since 2026-06-26" in told["bf16.check_grad_overflow"]
    assert "since 2026-08-07" in told[f"{ZERO}.offload_optimizer.pin_memory"]
    assert "2026-06-23" in made.preset


def test_what_says_auto_is_filled_in_and_told() -> None:
    made = imported(
        optimizer={"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4, "warmup_num_steps": "auto"}},
        gradient_clipping="auto",
    )
    run = config_of(made)
    assert run.optimizer.learning_rate == 2e-4
    assert run.optimizer.weight_decay == RunConfig().optimizer.weight_decay
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
