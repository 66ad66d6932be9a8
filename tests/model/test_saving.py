"""A saved model is what `save_pretrained` writes, from units that come and go."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_families import SETTINGS, blank, build, same_bytes, tensors_in, units_of
from torch import Tensor

from workbench.model import saving
from workbench.model.saving import save_model

IDS = torch.arange(20).reshape(2, 10)


def load(folder: Path) -> Any:
    """The model that transformers makes of the folder, which must leave nothing over and miss nothing."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def assert_same_tensors(one: Path, other: Path) -> None:
    theirs, mine = tensors_in(one), tensors_in(other)
    assert sorted(mine) == sorted(theirs)
    assert [name for name in mine if not same_bytes(mine[name], theirs[name])] == []


def assert_saved_as_by_transformers(model: Any, folder: Path) -> dict[str, Tensor]:
    """Save the model both ways; return the tensors."""
    model.save_pretrained(folder / "theirs")
    units = list(units_of(model))
    blank(model)
    save_model(model, iter(units), folder / "mine")
    assert_same_tensors(folder / "theirs", folder / "mine")
    return tensors_in(folder / "mine")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SETTINGS)
def test_a_family_is_saved_as_transformers_saves_it_and_loads_to_the_same_logits(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    assert_saved_as_by_transformers(build(family, dtype=dtype), tmp_path)
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == sorted(
        p.name for p in (tmp_path / "theirs").iterdir()
    )
    for file in ("config.json", "generation_config.json"):
        assert (tmp_path / "mine" / file).read_text() == (tmp_path / "theirs" / file).read_text()
    theirs, mine = load(tmp_path / "theirs"), load(tmp_path / "mine")
    assert mine.dtype == dtype
    assert torch.equal(mine(IDS).logits, theirs(IDS).logits)


@pytest.mark.parametrize("family", SETTINGS)
def test_files_are_bounded_and_their_index_finds_every_tensor(tmp_path: Path, family: str) -> None:
    model = build(family)
    model.save_pretrained(tmp_path / "theirs")
    save_model(model, units_of(model), tmp_path / "mine", largest_file_bytes=20_000)
    assert_same_tensors(tmp_path / "theirs", tmp_path / "mine")
    files = sorted((tmp_path / "mine").glob("*.safetensors"))
    assert [p.name for p in files] == [
        f"model-{n + 1:05d}-of-{len(files):05d}.safetensors" for n in range(len(files))
    ]
    assert 3 <= len(files) < len(tensors_in(tmp_path / "mine"))
    index = json.loads((tmp_path / "mine" / "model.safetensors.index.json").read_text())
    tensors = tensors_in(tmp_path / "theirs")
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert torch.equal(load(tmp_path / "mine")(IDS).logits, load(tmp_path / "theirs")(IDS).logits)


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_every_unit_is_let_go_before_the_next_is_asked_for(tmp_path: Path, family: str) -> None:
    model = build(family)
    alive: list[weakref.ref[Tensor]] = []

    def units() -> Iterator[dict[str, Tensor]]:
        for number, unit in enumerate(units_of(model)):
            assert [ref for ref in alive if ref() is not None] == [], f"before unit {number}"
            alive.extend(weakref.ref(tensor) for tensor in unit.values())
            yield unit
            del unit

    save_model(model, units(), tmp_path)
    assert len(alive) == len(list(model.parameters()))


def test_persistent_buffers_are_saved_and_others_are_not(tmp_path: Path) -> None:
    model = build("gpt2")
    block = model.transformer.h[1]
    block.register_buffer("kept", torch.arange(3))
    block.register_buffer("scale", torch.tensor(2.5, dtype=torch.float64))
    block.register_buffer("derived", torch.ones(2), persistent=False)
    assert "transformer.h.1.kept" in assert_saved_as_by_transformers(model, tmp_path)


def test_a_tie_that_the_architecture_does_not_know_is_saved_under_both_names(tmp_path: Path) -> None:
    model = build("gpt2")
    model.transformer.h[2].attn.c_proj.weight = model.transformer.h[0].attn.c_proj.weight
    save_model(model, units_of(model), tmp_path)
    loaded = load(tmp_path)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_of_a_tie_with_all_names_declared_the_one_that_transformers_keeps_is_kept(tmp_path: Path) -> None:
    model = build("gpt2")
    names = ("lm_head.weight", "transformer.wte.weight")
    model._tied_weights_keys = dict(zip(names, names[::-1], strict=True))
    assert_saved_as_by_transformers(model, tmp_path)


def test_names_that_transformers_leaves_out_are_left_out(tmp_path: Path) -> None:
    model = build("opt")
    left_out = "model.decoder.embed_positions.weight"
    model._keys_to_ignore_on_save = [left_out]
    assert left_out not in assert_saved_as_by_transformers(model, tmp_path)


def test_a_conversion_that_needs_tensors_of_several_units_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("gpt2")
    names = [f"transformer.h.{block}.ln_1.weight" for block in (0, 2)]

    def join(_: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if not any(name in tensors for name in names):
            return tensors
        joined = torch.cat([tensors.pop(name) for name in names])
        return {**tensors, "joined": joined}

    monkeypatch.setattr("transformers.core_model_loading.revert_weight_conversion", join)
    save_model(model, units_of(model), tmp_path)
    found = tensors_in(tmp_path)
    parameters = dict(model.named_parameters())
    assert torch.equal(found.pop("joined"), torch.cat([parameters.pop(name) for name in names]))
    assert set(found) == set(parameters)
    assert all(torch.equal(found[name], parameters[name]) for name in found)


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_a_transformers_without_the_conversion_saves_the_same_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(saving, "_reversal", lambda _: None)
    assert_saved_as_by_transformers(build(family, dtype=torch.bfloat16), tmp_path)
    assert torch.equal(load(tmp_path / "mine")(IDS).logits, load(tmp_path / "theirs")(IDS).logits)


@pytest.mark.parametrize(
    "gone", ["transformers.core_model_loading", "transformers.core_model_loading.revert_weight_conversion"]
)
def test_a_transformers_that_moved_the_conversion_is_noticed(
    monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    model = build("gpt2")
    assert saving._reversal(model) is not None
    if gone.endswith("loading"):
        monkeypatch.setitem(__import__("sys").modules, gone, None)
    else:
        monkeypatch.delattr(gone)
    assert saving._reversal(model) is None


@pytest.mark.parametrize("whole", [True, False], ids=["all at once", "unit by unit"])
def test_a_parameter_that_no_unit_gives_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    model = build("llama")
    units = list(units_of(model))
    del units[2]["model.layers.1.mlp.up_proj.weight"]
    if whole:
        monkeypatch.setattr(saving, "_reversal", lambda _: None)
    with pytest.raises(ValueError, match=r"1 tensors were not given, one of them model.layers.1.mlp.up_proj"):
        save_model(model, iter(units), tmp_path)
