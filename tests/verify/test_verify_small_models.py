"""The small model is the configured one in all but its size; an adapter is verified as it is trained."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_trials import rows_of, small_config

from workbench.config.schema import ModelConfig
from workbench.engine.blocks.discovery import find_blocks
from workbench.errors import ConfigurationError
from workbench.model.adapter import adapter_layers
from workbench.verify import shrunken_model, trial
from workbench.verify.shrunken_model import Subject, full_subject, shrunken_subject
from workbench.verify.trial import tied_names

# The architecture, what its preset says, and what has to be left of it.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt2": ({"n_layer": 50, "n_embd": 4096, "n_head": 32, "attn_pdrop": 0.3}, {"attn_pdrop": 0.3}),
    "llama": ({"num_attention_heads": 32, "num_key_value_heads": 8}, {"num_key_value_heads": 1}),
    "qwen3": ({"tie_word_embeddings": True}, {"tie_word_embeddings": True, "head_dim": 32}),
    "mistral": ({"sliding_window": 4096}, {"sliding_window": 16}),
    "gemma": ({}, {"head_dim": 32, "num_attention_heads": 4}),
    "opt": ({}, {"word_embed_proj_dim": 128, "ffn_dim": 512}),
    "gpt_neox": ({}, {"hidden_size": 128, "intermediate_size": 512}),
    "phi3": ({}, {"num_hidden_layers": 5}),
    "mixtral": ({}, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "falcon": ({}, {"hidden_size": 128}),
}


def subject_of(architecture: str, settings: dict[str, Any]) -> Subject:
    config = small_config(
        "data.sequence_length=4096", "train.micro_batch_size=8", "train.gradient_accumulation=7"
    )
    model = config.model.model_copy(update={"architecture": architecture, "config": settings})
    return shrunken_subject(config.model_copy(update={"model": model}))


@pytest.mark.parametrize("family", FAMILIES)
def test_any_architecture_becomes_small_and_stays_itself(family: str) -> None:
    settings, kept = FAMILIES[family]
    subject = subject_of(family, settings)
    assert subject.parameters < 5_000_000
    assert len(find_blocks(subject.start)) == shrunken_model.BLOCKS
    for name, value in kept.items():
        assert getattr(subject.shape, name) == value, name
    assert bool(tied_names(subject.start)) == bool(subject.shape.tie_word_embeddings)
    assert (subject.sequence, subject.micro_batch, subject.accumulation) == (32, 2, 3)
    assert all(not p.is_meta and p.grad is None for p in subject.start.parameters())
    assert subject.start.training


def test_what_is_small_already_stays_as_it_is() -> None:
    config = small_config()
    small, whole = shrunken_subject(config), full_subject(config)
    assert small.parameters == whole.parameters
    assert small.shape.to_dict() == whole.shape.to_dict()


def test_a_model_that_cannot_be_made_small_is_refused_before_it_takes_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shrunken_model, "LARGEST", 1000)
    with pytest.raises(ConfigurationError, match=r"no small model of it can be made.*--full"):
        subject_of("gpt2", {})


def test_a_forward_that_draws_weights_among_the_numbers_of_dropout_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="its first forward replaces modules"):
        subject_of("big_bird", {})
    subject_of("big_bird", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    subject_of("big_bird", {"attention_type": "original_full"})


def test_a_small_model_can_be_copied_whatever_a_forward_leaves_behind() -> None:
    subject = subject_of("recurrent_gemma", {})  # it keeps its recurrent state, with its graph, in its blocks
    copied = copy.deepcopy(subject.start)
    for name, parameter in subject.start.named_parameters():
        assert torch.equal(copied.get_parameter(name), parameter), name


# Adapters

CHECKS = {"bf16": ("first step",), "fp32": ("tied weights", "training")}


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_the_rows_of_an_adapter_hold_in_every_precision_of_its_base(precision: str) -> None:
    config = small_config("adapter.rank=3", "adapter.dropout=0.1", f"train.precision={precision}")
    rows = rows_of(config, CHECKS[precision])
    assert [row for row in rows if not row.holds] == []
    assert len(rows) >= 2


def test_an_adapter_that_is_trained_otherwise_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        """What the engine is given a copy by: its adapters count a hundredth more."""

        @staticmethod
        def deepcopy(model: Any) -> Any:
            made = copy.deepcopy(model)
            for layer in adapter_layers(made.modules()):
                layer.scaling["default"] *= 1.01
            return made

    monkeypatch.setattr(trial, "copy", Wrong)
    assert [row for row in rows_of(small_config("adapter.rank=3"), ["first step"]) if not row.holds]


def test_a_pretrained_shape_is_shrunk_as_a_described_one_is(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=512,
        num_attention_heads=8,
        num_hidden_layers=9,
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
    ).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 9
    config = small_config("adapter.rank=2")
    model = ModelConfig(pretrained=str(tmp_path))
    config = config.model_copy(update={"model": model})
    subject = shrunken_subject(config, torch.bfloat16)
    assert (subject.shape.num_hidden_layers, subject.shape.hidden_size) == (5, 128)
    assert subject.shape.rms_norm_eps == 1e-3 and subject.shape.tie_word_embeddings and subject.is_adapted
    for name, parameter in subject.start.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16), name
