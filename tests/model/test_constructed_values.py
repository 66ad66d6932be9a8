"""What an architecture sets only where its modules are made is not lost on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from workbench.engine.blocks.discovery import find_units
from workbench.errors import ConfigurationError
from workbench.model import constructed
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.constructed import is_marked, mark

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def apertus() -> Any:
    """A configuration of an architecture whose activation learns numbers that `_init_weights` passes over."""
    return model_config("apertus", TINY)


def initialized(seed: int = 3) -> nn.Module:
    model = build_on_meta(apertus())
    initialize = UnitInitializer(model, seed)
    for unit in find_units(model):
        initialize(unit)
    return model


def test_a_learned_activation_begins_as_its_architecture_sets_it() -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_config(apertus(), dtype=torch.float32)
    model = initialized()
    alphas = [name for name, _ in plain.named_parameters() if "alpha" in name]
    assert len(alphas) == 2 * TINY["num_hidden_layers"]
    for name in alphas:
        assert torch.equal(model.get_parameter(name), plain.get_parameter(name)), name
    ours = dict(model.named_buffers())
    assert ours.keys() == dict(plain.named_buffers()).keys()
    for name, buffer in plain.named_buffers():
        assert torch.equal(ours[name], buffer), name
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_what_is_drawn_is_the_same_with_and_without_such_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with_them = initialized()
    monkeypatch.setattr(constructed, "is_marked", lambda tensor: False)
    without = initialized()
    state = torch.get_rng_state()
    initialized(4)
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in with_them.named_parameters():
        assert "alpha" in name or torch.equal(parameter, without.get_parameter(name)), name


def test_a_parameter_that_nobody_sets_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constructed, "MOST_ELEMENTS", 0)
    with pytest.raises(
        ConfigurationError, match=r"ApertusForCausalLM gives model\.layers\.0\.mlp\.act_fn\.alpha_"
    ):
        initialized()


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_mark_is_gone_once_both_ends_are_set(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = mark(torch.ones(shape, dtype=dtype))
    assert is_marked(tensor) == (tensor.numel() > 0)
    if tensor.numel() > 1:
        tensor.view(-1)[0] = 1
        assert is_marked(tensor)
    assert not is_marked(tensor.fill_(1))


def test_what_has_no_value_to_spare_is_never_marked() -> None:
    for dtype in (torch.bool, torch.uint8, torch.complex64):
        assert not is_marked(mark(torch.zeros(3, dtype=dtype)))
    assert not is_marked(torch.empty(3, device="meta"))
