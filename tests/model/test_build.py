"""First values depend on seed and unit alone, and one that nobody sets is never trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from saved_families import MODERN, build
from torch import nn
from transformers import CONFIG_MAPPING

from workbench.engine.blocks.discovery import find_units
from workbench.errors import ConfigurationError
from workbench.model import hub
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.loading import PretrainedUnits
from workbench.model.pretrained import files_in, find_pretrained, pretrained_config


def drawn(seed: int, *, backwards: bool = False) -> nn.Module:
    model = build_on_meta(build("gpt2").config)
    initialize = UnitInitializer(model, seed)
    units = find_units(model)
    for unit in reversed(units) if backwards else units:
        initialize(unit)
    return model


def test_values_depend_on_seed_and_unit_alone() -> None:
    one, other, again = drawn(3), drawn(4), drawn(3, backwards=True)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    assert not torch.equal(one.get_parameter("lm_head.weight"), other.get_parameter("lm_head.weight"))


def test_the_generator_outside_is_left_as_it_was() -> None:
    model = build_on_meta(model_config("llama", dict(MODERN)))
    state = torch.get_rng_state()
    initialize = UnitInitializer(model, 1)
    for unit in find_units(model):
        initialize(unit)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def test_an_architecture_that_sets_a_value_only_where_it_is_made_needs_files(tmp_path: Path) -> None:
    # The learned numbers of its activation are set in its constructor alone.
    from transformers import AutoModelForCausalLM

    config = model_config("apertus", {**MODERN, "num_key_value_heads": 1})
    model = build_on_meta(config)
    initialize = UnitInitializer(model, 1)
    with pytest.raises(ConfigurationError, match=r"ApertusForCausalLM sets model\.layers\.0\.mlp\.act_fn\."):
        for unit in find_units(model):
            initialize(unit)
    whole = AutoModelForCausalLM.from_config(config)
    whole.save_pretrained(tmp_path)
    model = build_on_meta(config)
    units = PretrainedUnits(model, files_in(tmp_path, ""), 1)
    for unit in find_units(model):
        units(unit)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_folder_is_found_without_the_hub_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("gpt2").save_pretrained(tmp_path, max_shard_size="20KB")
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: pytest.fail("the hub was asked"))
    files = find_pretrained(str(tmp_path))
    assert len(files.weights) > 2 and files.index is not None


def test_a_model_of_several_text_models_is_refused_before_one_of_them_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="musicgen_melody refuses these settings: Multiple valid text"
    ):
        model_config("musicgen_melody", {})
    CONFIG_MAPPING["musicgen_melody"]().save_pretrained(tmp_path)
    files = files_in(tmp_path, "music", weights=False)
    with pytest.raises(ConfigurationError, match="describes no model: Multiple valid text configs"):
        pretrained_config(files)
