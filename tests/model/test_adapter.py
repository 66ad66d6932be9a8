"""Adapters on a meta model: which layers get one, what they begin with, and that all else stays as it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_families import SETTINGS, build
from torch import nn

from workbench.config.schema import AdapterConfig
from workbench.engine.blocks.discovery import find_units
from workbench.errors import ConfigurationError
from workbench.model.adapter import AdapterUnits, add_adapter, find_targets, store_base_as, target_warnings
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.saving import save_model

FAMILIES = ("gpt2", "llama", "mixtral", "opt")
IDS = torch.arange(12).view(1, 12)


def meta(family: str) -> Any:
    return build_on_meta(model_config(family, dict(SETTINGS[family])))


def adapted(family: str, seed: int = 1, backwards: bool = False, **fields: Any) -> Any:
    """A model of `family` with an adapter, every unit real."""
    model = meta(family)
    plain = add_adapter(model, AdapterConfig(**{"rank": 3, **fields}))
    units = AdapterUnits(model, plain, UnitInitializer(plain, seed), seed)
    found = find_units(model)
    for unit in reversed(found) if backwards else found:
        units(unit)
    return model.eval()


def plain(family: str, seed: int = 1) -> Any:
    model = meta(family)
    initialize = UnitInitializer(model, seed)
    for unit in find_units(model):
        initialize(unit)
    return model.eval()


def adapters_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_lies_beneath_an_adapter_is_the_model_without_it_and_frozen(family: str) -> None:
    model, reference = adapted(family), plain(family)
    expected = dict(reference.named_parameters())
    found = {n.replace(".base_layer", ""): p for n, p in model.named_parameters() if "lora_" not in n}
    assert found.keys() == expected.keys()
    for name, parameter in found.items():
        assert torch.equal(parameter, expected[name]), name
        assert not parameter.requires_grad
    assert all(parameter.requires_grad for n, parameter in model.named_parameters() if "lora_" in n)
    assert torch.equal(model(IDS).logits, reference(IDS).logits), "an adapter begins as nothing"
    assert not any(buffer.is_meta for buffer in model.buffers())


def test_an_adapters_first_values_depend_on_seed_and_unit_alone_and_are_peft_s() -> None:
    first, again, other = adapted("llama"), adapted("llama", backwards=True), adapted("llama", seed=2)
    for name, value in adapters_of(first).items():
        assert torch.equal(value, adapters_of(again)[name]), name
        if "lora_B" in name:
            assert not value.any()
        else:
            # kaiming_uniform_ with a = sqrt(5): uniform within 1 / sqrt(width).
            bound = value.shape[1] ** -0.5
            assert 0.8 * bound < value.abs().max() <= bound
            assert not torch.equal(value, adapters_of(other)[name]), name
    sizes = {value.shape: 0 for value in adapters_of(first).values()}
    one, two = (adapters_of(first)[f"model.layers.{i}.mlp.up_proj.lora_A.default.weight"] for i in (0, 1))
    assert sizes and not torch.equal(one, two)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("llama", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("mixtral", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("opt", {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}),
    ],
)
def test_without_names_every_linear_layer_of_the_blocks_gets_one(family: str, names: set[str]) -> None:
    targets = find_targets(meta(family))
    assert set(targets.names) == names
    assert len(targets.paths) >= 3 * len(names)
    assert not any("lm_head" in path or "embed" in path for path in targets.paths)


def test_a_layer_outside_the_blocks_that_is_called_like_one_inside_gets_none() -> None:
    model = meta("llama")
    model.model.q_proj = nn.Linear(24, 24, device="meta")
    targets = find_targets(model)
    assert "model.q_proj" in targets.excluded and "model.q_proj" not in targets.paths
    add_adapter(model, AdapterConfig())
    assert type(model.model.q_proj) is nn.Linear
    assert type(model.model.layers[0].self_attn.q_proj) is not nn.Linear


def test_named_layers_alone_get_one_wherever_they_are() -> None:
    targets = find_targets(meta("llama"), ["lm_head", "layers.1.mlp.up_proj", "k_proj"])
    assert sorted(targets.paths) == sorted(
        ["lm_head", "model.layers.1.mlp.up_proj", *(f"model.layers.{i}.self_attn.k_proj" for i in range(3))]
    )


@pytest.mark.parametrize(
    ("family", "target", "words"),
    [
        ("gpt2", "c_atn", 'has no module "c_atn"; did you mean "c_attn"?'),
        ("gpt2", "mlp", "c_attn, c_proj, c_fc"),
        ("llama", "all-linear", "leave the array empty"),
        ("mixtral", "experts", "MixtralExperts, which holds its matrices in one tensor"),
        ("mixtral", "gate", "MixtralTopKRouter, which is not a linear layer"),
        ("mixtral", "w1", "the linear layers of its blocks are q_proj"),
    ],
)
def test_a_name_that_means_no_linear_layer_is_refused_with_those_that_do(
    family: str, target: str, words: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        add_adapter(meta(family), AdapterConfig(targets=[target]))
    assert str(refusal.value).startswith("adapter.targets: ") and words in str(refusal.value)


def test_what_gets_no_adapter_and_what_cannot_be_merged_is_told() -> None:
    model = meta("mixtral")
    [fused] = target_warnings(model, find_targets(model))
    assert "3 modules of the blocks" in fused and "MixtralExperts" in fused
    model = meta("gpt2")
    [tied] = target_warnings(model, find_targets(model, ["lm_head"]))
    assert "lm_head shares its matrix with transformer.wte" in tied and "cannot be merged" in tied
    assert not list(target_warnings(model, find_targets(model)))


def test_the_base_is_stored_narrow_and_the_adapter_in_fp32() -> None:
    model = meta("gpt2")
    add_adapter(model, AdapterConfig())
    store_base_as(model, torch.bfloat16)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16), name
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_saved_adapter_is_loaded_by_peft(tmp_path: Path, family: str) -> None:
    import peft

    base = build(family)
    base.save_pretrained(tmp_path / "base")
    model = adapted(family)
    reference = dict(base.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            known = reference.get(name.replace(".base_layer", ""))
            if known is None:
                parameter.normal_(std=0.1)
            else:
                parameter.copy_(known)
    expected = model(IDS).logits
    save_model(
        model, ({n: p.detach() for n, p in s.parameters.items()} for s in find_units(model)), tmp_path / "out"
    )
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    assert torch.equal(loaded(IDS).logits, expected)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_without_peft_one_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigurationError, match=r'pip install "workbench\[peft\]"'):
        add_adapter(meta("gpt2"), AdapterConfig())
