"""A census knows a model's parameters: as many as its authors count, and laid out as the engine lays them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from model_tables import FAMILIES, PUBLIC
from torch import nn

from workbench.census.building import meta_model
from workbench.census.parts import count_parts, signature
from workbench.engine.blocks.discovery import find_shards, lay_out
from workbench.plan.census import Census

CHUNK = 4 * 65_536
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, None: None}


def assert_same_layouts(census: Census, model: nn.Module) -> None:
    shards = find_shards(model)
    formats: tuple[Literal["exact", "compact"], ...] = ("exact", "compact")
    for precision, dtype in PRECISIONS.items():
        for state_format in formats:
            for fraction in (0.0, 0.5):
                expected = lay_out(shards, dtype, CHUNK, state_format, fraction)
                assert census.layout(precision, CHUNK, state_format, fraction) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layout_is_the_engines(family: str, census_of: Callable[[str], Census]) -> None:
    model = meta_model(FAMILIES[family])
    census = census_of(family)
    assert_same_layouts(census, model)
    assert census.parameters == sum(p.numel() for p in model.parameters())
    assert census.layers == model.config.num_hidden_layers


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral"])
def test_frozen_parameters_are_frozen_in_the_layout(family: str) -> None:
    model = meta_model(FAMILIES[family])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    census = count_parts(model, family)
    assert census.trainable_parameters < census.parameters
    assert_same_layouts(census, model)


def test_fp32_parameters_beside_16_bit_ones_stay_fp32() -> None:
    model = meta_model(FAMILIES["llama"]).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data = parameter.data.float()
    assert_same_layouts(count_parts(model, "mixed"), model)


def test_a_block_that_is_partly_frozen_is_of_another_kind() -> None:
    model = meta_model(FAMILIES["llama"])
    model.get_submodule("model.layers.1.mlp").requires_grad_(False)
    census = count_parts(model, "llama")
    assert [kind for _, kind in census.blocks] == [0, 1, 0]
    assert_same_layouts(census, model)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_models_have_the_parameters_that_are_known_of_them(name: str) -> None:
    table, expected = PUBLIC[name]
    census = count_parts(meta_model(table), name)
    assert census.parameters == expected
    assert census.layout("bfloat16", 16 << 20).parameters == expected


def test_alternating_sliding_and_full_attention_are_two_kinds() -> None:
    census = count_parts(meta_model(PUBLIC["Gemma-2-9B"][0]), "gemma2")
    assert [kind for _, kind in census.blocks] == [0, 1] * 21


def test_a_shards_kind_is_found_by_its_place_in_the_layout(census_of: Callable[[str], Census]) -> None:
    census = census_of("gemma2")
    shards = census.layout(None, CHUNK).shards
    kinds = [census.kind_of(shard.index) for shard in shards]
    assert [kind is None for kind in kinds] == [shard.kind == "outer" for shard in shards]
    assert [kind for kind in kinds if kind is not None] == [census.kinds[n] for n in (0, 1, 0)]


def test_widths_and_positions_are_those_of_the_configuration(census_of: Callable[[str], Census]) -> None:
    census = census_of("opt")
    assert (census.hidden_size, census.head_width, census.vocab_size, census.positions) == (48, 24, 97, 256)


class Windowed(nn.Module):
    def __init__(self, window: int | None, mode: str = "causal") -> None:
        super().__init__()
        self.window = window
        self.mode = mode
        self.inner = nn.Linear(4, 4)


def test_a_number_counts_for_being_there_and_a_word_for_what_it_says() -> None:
    plain = signature(Windowed(None))
    assert signature(Windowed(8)) == signature(Windowed(16)) != plain
    assert signature(Windowed(None, "full")) != plain
