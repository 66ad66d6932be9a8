"""Weight decay, learning rates and freezing by patterns of names: what torch's parameter groups come to."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import PLACEMENTS, SETTINGS, placed

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.blocks.discovery import find_units
from workbench.model.build import UnitInitializer, build_on_meta, model_config
from workbench.model.freezing import freeze

NO_DECAY = ("*.wte.*", "*.h.1.mlp.*")
SCALES = (("*.h.0.*.bias", 0.5), ("*.h.0.*", 0.1), ("*wpe*", 3.0))
FROZEN = ("*.h.0.ln_1.*", "*.h.1.attn.*")
PLAIN = AdamW(lr=1e-2, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.5)
OPTIMIZER = replace(PLAIN, no_decay=NO_DECAY, learning_rate_scales=SCALES)
STEPS = 3


def tiny() -> Any:
    model: Any = build_on_meta(model_config("gpt2", dict(SETTINGS)))
    initialize = UnitInitializer(model, 1)
    for unit in find_units(model):
        initialize(unit)
    freeze(model, FROZEN)
    return model


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(257, (2, 16), generator=generator) for _ in range(STEPS)]


def by_torch(coupled: bool) -> dict[str, torch.Tensor]:
    """The weights after torch's own steps, with a group for each parameter, in float64."""
    model = tiny().double()
    groups = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = next((factor for pattern, factor in SCALES if fnmatchcase(name, pattern)), 1.0)
        decays = parameter.dim() >= 2 and not any(fnmatchcase(name, pattern) for pattern in NO_DECAY)
        groups.append({"params": [parameter], "lr": 1e-2 * scale, "weight_decay": 0.5 if decays else 0.0})
    optimizer = (torch.optim.Adam if coupled else torch.optim.AdamW)(groups, betas=(0.9, 0.95), eps=1e-5)
    for ids in batches():
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


def by_engine(optimizer: AdamW, **options: Any) -> dict[str, torch.Tensor]:
    model = tiny()
    settings: dict[str, Any] = {"precision": "fp32", "device": "cpu", "threads": 1, **options}
    with OffloadEngine(model, optimizer=optimizer, **settings) as engine:
        for ids in batches():
            engine.backward(model(input_ids=ids, labels=ids, use_cache=False).loss)
            engine.step()
        engine.wait()
        return {name: weight.clone() for unit in engine.weights() for name, weight in unit.items()}


TOLERANCE = 2e-4
"""A gradient in fp32 is off by about 1e-8, which eps = 1e-5 in the denominator makes 1e-3 of a step of up to 3e-2."""


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_groups_are_torchs_in_every_placement(placement: str, coupled: bool, tmp_path: Path) -> None:
    wanted = by_torch(coupled)
    optimizer = replace(OPTIMIZER, coupled_decay=coupled)
    found = by_engine(optimizer, **placed(tmp_path, placement))
    assert found.keys() == wanted.keys()
    start = dict(tiny().named_parameters())
    frozen = [name for name, parameter in wanted.items() if not parameter.requires_grad]
    assert len(frozen) == 6 and all(torch.equal(found[name], start[name]) for name in frozen)
    for name, weight in found.items():
        torch.testing.assert_close(weight.double(), wanted[name].detach(), atol=TOLERANCE, rtol=0)
    plain = by_engine(replace(PLAIN, coupled_decay=coupled), **placed(tmp_path, placement))
    for pattern in (
        "*.wte.*",
        "*wpe*",
        "*.h.0.mlp.c_fc.weight",
        "*.h.0.mlp.c_fc.bias",
        "*.h.1.mlp.c_fc.weight",
    ):
        (name,) = (name for name in found if fnmatchcase(name, pattern))
        assert (found[name] - plain[name]).abs().max() > 5 * TOLERANCE, name


@pytest.mark.parametrize("state_format", ["half", "compact"])
def test_a_scale_of_one_leaves_the_bits_and_another_does_not(state_format: str) -> None:
    options = {"state": "host", "state_format": state_format}
    one = by_engine(replace(PLAIN, learning_rate_scales=(("*", 1.0),)), **options)
    half = by_engine(replace(PLAIN, learning_rate_scales=(("*", 0.5),)), **options)
    lower = by_engine(replace(PLAIN, lr=0.5e-2), **options)
    for name, weight in by_engine(PLAIN, **options).items():
        assert torch.equal(weight, one[name]), name
        assert torch.equal(lower[name], half[name]), name
        frozen = any(fnmatchcase(name, pattern) for pattern in FROZEN)
        assert torch.equal(weight, half[name]) == frozen, name


def test_the_first_pattern_decides_and_a_factor_is_above_zero() -> None:
    assert OPTIMIZER.learning_rate_scale("transformer.h.0.mlp.c_fc.bias") == 0.5
    assert OPTIMIZER.learning_rate_scale("transformer.h.0.mlp.c_fc.weight") == 0.1
    assert OPTIMIZER.learning_rate_scale("transformer.h.1.mlp.c_fc.weight") == 1.0
    assert not OPTIMIZER.decays("transformer.wte.weight", 2) and not OPTIMIZER.decays("a.bias", 1)
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite factor above 0"):
            AdamW(learning_rate_scales=(("*", factor),))
