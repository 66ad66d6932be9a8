"""Every shipped preset is planned without network or torch, and fits the machine that it says it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.config import RunConfig, load_config
from workbench.plan.machine import planned_machine
from workbench.plan.planner import Planner
from workbench.presets import shipped_folder
from workbench.profiles.model_profile import ModelProfile, model_table
from workbench.profiles.named_machines import load_profile
from workbench.profiles.obtain import read_shipped

PRESETS = {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}

# (parameters as published, the shipped machine that is the smallest it is for)
KNOWN = {
    "quickstart": (842_624, "desktop-24gb"),
    "gpt2-124m": (124_439_808, "desktop-24gb"),
    "gpt2-1.5b": (1_557_611_200, "desktop-24gb"),
    "gpt2-4b": (4_197_044_736, "desktop-24gb"),
    "gpt2-10b": (10_279_239_680, "server-80gb"),
    "gpt2-13b": (13_299_937_280, "desktop-32gb"),
    "llama2-7b": (6_738_415_616, "desktop-24gb"),
    "llama3-8b": (8_030_261_248, "desktop-32gb"),
    "llama3-70b": (70_553_706_496, "server-80gb"),
    "mistral-7b": (7_241_732_096, "desktop-24gb"),
    "qwen3-0.6b": (596_049_920, "desktop-24gb"),
    "qwen3-8b": (8_190_735_360, "desktop-32gb"),
    "qwen3-14b": (14_768_307_200, "desktop-32gb"),
    "qwen3-32b": (32_762_123_264, "server-80gb"),
}


def model_profile_of(config: RunConfig) -> ModelProfile:
    model_profile = read_shipped(model_table(config))
    assert model_profile is not None, "it would have to be taken, from files that may have to be fetched"
    return model_profile


def test_every_preset_is_held_to_something() -> None:
    assert set(PRESETS) == set(KNOWN)


@pytest.mark.parametrize("name", PRESETS)
def test_the_shipped_model_profile_has_the_published_number_of_parameters(name: str) -> None:
    config = load_config(PRESETS[name])
    model_profile = model_profile_of(config)
    assert model_profile.parameters == KNOWN[name][0]
    assert model_profile.loss_in_chunks
    assert not any(kind.problem for kind in model_profile.kinds)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fits_the_machine_that_it_is_for(name: str) -> None:
    config = load_config(PRESETS[name])
    plan = Planner(model_profile_of(config), planned_machine(load_profile(Path(KNOWN[name][1])))).plan(config)
    assert plan.fits, plan.memory.table()
    assert plan.time is not None


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_in_a_line_what_it_is_and_in_a_comment_what_it_is_for(name: str) -> None:
    text = PRESETS[name].read_text(encoding="utf-8")
    description = load_config(PRESETS[name]).description
    assert 20 < len(description) <= 80
    comment = "".join(line for line in text.splitlines() if line.startswith("#"))
    assert re.search(r"GPU|machine", comment + description)


@pytest.mark.parametrize("name", [name for name in PRESETS if load_config(PRESETS[name]).model.pretrained])
def test_a_pretrained_preset_brings_its_numbers_and_its_own_tokenizer(name: str) -> None:
    config = load_config(PRESETS[name])
    assert config.model.architecture
    assert config.model.config
    assert config.data.tokenizer == config.model.pretrained
