"""An adapter is verified as it is trained: fp32 beside a frozen, narrow base, on pretrained shapes too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_trials import rows_of, small_config

from workbench.config.schema import ModelConfig
from workbench.model.adapter import adapter_layers
from workbench.verify import trial
from workbench.verify.shrunken_model import shrunken_subject

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
