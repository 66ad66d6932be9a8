"""A model profile knows a model's parameters: as many as its authors count, and laid out as the engine lays
them out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from model_tables import FAMILIES, PUBLIC
from torch import nn

from workbench.engine.blocks.discovery import find_units, lay_out
from workbench.profiles.meta_model import count_parts, meta_model
from workbench.profiles.model_profile import ModelProfile

CHUNK = 4 * 65_536
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, None: None}


def assert_same_layouts(model_profile: ModelProfile, model: nn.Module) -> None:
    units = find_units(model)
    formats: tuple[Literal["exact", "compact"], ...] = ("exact", "compact")
    for precision, dtype in PRECISIONS.items():
        for state_format in formats:
            for fraction in (0.0, 0.5):
                expected = lay_out(units, dtype, CHUNK, state_format, fraction)
                assert model_profile.layout(precision, CHUNK, state_format, fraction) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layout_is_the_engines(family: str, model_profile_of: Callable[[str], ModelProfile]) -> None:
    model = meta_model(FAMILIES[family])
    model_profile = model_profile_of(family)
    assert_same_layouts(model_profile, model)
    assert model_profile.parameters == sum(p.numel() for p in model.parameters())
    assert model_profile.layers == model.config.num_hidden_layers


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral"])
def test_frozen_parameters_are_frozen_in_the_layout(family: str) -> None:
    model = meta_model(FAMILIES[family])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    model_profile = count_parts(model, family)
    assert_same_layouts(model_profile, model)


def test_fp32_parameters_beside_16_bit_ones_stay_fp32() -> None:
    model = meta_model(FAMILIES["llama"]).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data = parameter.data.float()
    assert_same_layouts(count_parts(model, "mixed"), model)


def test_a_block_that_is_partly_frozen_is_of_another_kind() -> None:
    model = meta_model(FAMILIES["llama"])
    model.get_submodule("model.layers.1.mlp").requires_grad_(False)
    model_profile = count_parts(model, "llama")
    assert [kind for _, kind in model_profile.blocks] == [0, 1, 0]
    assert_same_layouts(model_profile, model)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_models_have_the_parameters_that_are_known_of_them(name: str) -> None:
    table, expected = PUBLIC[name]
    model_profile = count_parts(meta_model(table), name)
    assert model_profile.parameters == expected
    assert model_profile.layout("bfloat16", 16 << 20).parameters == expected


def test_alternating_sliding_and_full_attention_are_two_kinds() -> None:
    model_profile = count_parts(meta_model(PUBLIC["Gemma-2-9B"][0]), "gemma2")
    assert [kind for _, kind in model_profile.blocks] == [0, 1] * 21
