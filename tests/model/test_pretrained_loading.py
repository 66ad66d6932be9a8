"""Weights read unit by unit are those that transformers' own from_pretrained gives, and what is odd is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from saved_families import MODERN, SETTINGS, build, same_bytes, tensors_in

from workbench.engine import OffloadEngine
from workbench.engine.blocks.discovery import find_units
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import conversion
from workbench.model.build import build_on_meta
from workbench.model.loading import PretrainedUnits
from workbench.model.pretrained import files_in, pretrained_config
from workbench.model.saving import save_model

SETTINGS = {
    **SETTINGS,
    "gemma2": {**MODERN, "num_key_value_heads": 1, "head_dim": 12, "sliding_window": 8},
    "phi": {**MODERN, "num_key_value_heads": 1, "partial_rotary_factor": 0.5},
    "qwen3_moe": {
        **MODERN,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
    },
}
CASES = [
    pytest.param(family, torch.float32 if n % 2 else torch.bfloat16, "20KB" if n % 3 else "5GB", id=family)
    for n, family in enumerate(SETTINGS)
] + [pytest.param("mixtral", torch.float16, "5GB", id="mixtral-fp16")]


@pytest.fixture(autouse=True)
def _all_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saved_families.SETTINGS", SETTINGS)


def saved(family: str, folder: Path, dtype: torch.dtype = torch.float32, size: str = "5GB") -> Path:
    build(family, dtype=dtype).save_pretrained(folder, max_shard_size=size)
    return folder


def on_meta(folder: Path) -> Any:
    return build_on_meta(pretrained_config(files_in(folder, str(folder))))


def loaded(
    folder: Path, seed: int = 1, *, model: Any = None, blank: bool = False
) -> tuple[Any, PretrainedUnits]:
    model = model or on_meta(folder)
    units = PretrainedUnits(model, files_in(folder, str(folder)), seed, blank=blank)
    for unit in find_units(model):
        units(unit)
    return model, units


def reference(folder: Path, dtype: torch.dtype | str = "auto") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def assert_same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    assert [name for name in theirs if not same_bytes(mine[name], theirs[name])] == []


def assert_loaded_as_by_transformers(model: Any, folder: Path) -> None:
    assert_same(model.state_dict(), reference(folder).state_dict())


def save(model: Any, folder: Path) -> None:
    units = find_units(model)
    save_model(model, ({n: p.detach() for n, p in unit.parameters.items()} for unit in units), folder)


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """The single file of `folder` with other tensors in it."""
    tensors = tensors_in(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(("family", "dtype", "size"), CASES)
def test_every_tensor_of_a_family_is_the_one_that_transformers_loads(
    tmp_path: Path, family: str, dtype: torch.dtype, size: str
) -> None:
    saved(family, tmp_path, dtype, size)
    model, units = loaded(tmp_path)
    assert units.warnings == []
    assert_loaded_as_by_transformers(model, tmp_path)
    for narrow in (torch.bfloat16, torch.float16, torch.float32):
        mine = {name: tensor.to(narrow) for name, tensor in model.state_dict().items()}
        assert_same(mine, reference(tmp_path, narrow).state_dict())


def test_joined_experts_are_never_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_meta(saved("mixtral", tmp_path))
    cat, joined = torch.cat, []

    def noted(tensors: Any, *rest: Any, **options: Any) -> Any:
        joined.extend(tensor for tensor in tensors if not tensor.is_meta)
        return cat(tensors, *rest, **options)

    monkeypatch.setattr(torch, "cat", noted)
    loaded(tmp_path, model=model)
    assert joined == []
    assert_loaded_as_by_transformers(model, tmp_path)


def test_what_only_transformers_can_put_together_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("mixtral", tmp_path)

    def convert(own: Any, model: Any, read: Any) -> Any:
        if own.converter is None:
            return {own.first: read(own.sources[0][0])}
        return own.convert(model, [read(stored) for stored, _ in own.sources])

    monkeypatch.setattr(conversion.Conversion, "carry_out", convert)
    assert_loaded_as_by_transformers(loaded(tmp_path)[0], tmp_path)


@pytest.mark.parametrize("family", ["mixtral", "gpt_neox", "opt"])
def test_what_was_loaded_is_saved_as_it_came(tmp_path: Path, family: str) -> None:
    model, _ = loaded(saved(family, tmp_path / "theirs"))
    save(model, tmp_path / "mine")
    assert_same(tensors_in(tmp_path / "mine"), tensors_in(tmp_path / "theirs"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_an_engine_trains_on_from_the_values_of_the_files(tmp_path: Path, dtype: torch.dtype) -> None:
    saved("llama", tmp_path, dtype)
    model = on_meta(tmp_path)
    units = PretrainedUnits(model, files_in(tmp_path, ""), 1)
    # Whatever the files are in: an fp32 engine has exactly their values.
    with OffloadEngine(model, device="cpu", threads=1, precision="fp32", materialize=units) as engine:
        weights = {name: t.clone() for unit in engine.weights() for name, t in unit.items()}
    assert_same(weights, dict(reference(tmp_path, torch.float32).named_parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_master_weights_keep_what_the_working_precision_has_no_room_for(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    saved("gpt2", tmp_path, dtype)
    model = on_meta(tmp_path)
    units = PretrainedUnits(model, files_in(tmp_path, ""), 1)
    with OffloadEngine(model, device="cpu", threads=1, precision="bf16", materialize=units) as engine:
        state = dict(engine.state())
        high = {name.partition("/")[0]: t.clone() for name, t in state.items() if "/high" in name}
        low = {name.partition("/")[0]: t.clone() for name, t in state.items() if "/low" in name}
        segments = {
            segment.name: (f"{s.index:04d}-{s.name}", segment)
            for s in engine.layout.units
            for segment in s.segments
        }
    theirs = reference(tmp_path, torch.float32).state_dict()
    assert any(bool(t.any()) for t in low.values())
    for name, (unit, segment) in segments.items():
        part = slice(segment.offset, segment.offset + segment.numel)
        bits = (high[unit][part].view(torch.int16).int() << 16) + low[unit][part].int()
        assert torch.equal(bits.view(torch.float32), theirs[name].reshape(-1)), name


def without_prefix(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)


def with_prefix(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"transformer.{name}"] = tensors.pop(name)


@pytest.mark.parametrize("change", [without_prefix, with_prefix])
def test_the_name_of_the_inner_model_may_be_missing_or_there_twice(tmp_path: Path, change: Any) -> None:
    rewritten(saved("gpt2", tmp_path), change)
    model, units = loaded(tmp_path)
    assert units.warnings == []
    assert_loaded_as_by_transformers(model, tmp_path)


def test_of_a_tie_either_end_will_do(tmp_path: Path) -> None:
    tensors = tensors_in(saved("qwen3", tmp_path))
    assert "lm_head.weight" not in tensors

    def turn(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    rewritten(tmp_path, turn)
    model, units = loaded(tmp_path)
    assert units.warnings == []
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert same_bytes(model.lm_head.weight.detach(), tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("same", [True, False])
def test_ends_of_a_tie_that_differ_are_trained_apart_and_saved_apart(tmp_path: Path, same: bool) -> None:
    def both(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + (0 if same else 1)

    rewritten(saved("qwen3", tmp_path), both)
    model, units = loaded(tmp_path)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == same
    assert_loaded_as_by_transformers(model, tmp_path)
    assert [w for w in units.warnings if "different values" in w] == units.warnings
    assert len(units.warnings) == (not same)
    assert model.config.tie_word_embeddings == same
    save(model, tmp_path / "again")
    assert_loaded_as_by_transformers(model, tmp_path / "again")


def test_what_the_files_lack_begins_as_from_scratch_whatever_else_is_read(tmp_path: Path) -> None:
    lost = "model.layers.1.self_attn.q_norm.weight"
    gone = {"model.layers.2.mlp.up_proj.weight", lost}

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in gone:
            del tensors[name]

    rewritten(saved("qwen3", tmp_path), drop)
    model, units = loaded(tmp_path, seed=7)
    other, _ = loaded(tmp_path, seed=7)
    third, _ = loaded(tmp_path, seed=8)
    assert len(units.warnings) == 1 and lost in units.warnings[0] and "initial values" in units.warnings[0]
    theirs = reference(tmp_path).state_dict()
    for name, tensor in model.state_dict().items():
        assert same_bytes(tensor, other.state_dict()[name])
        if name not in gone:
            assert same_bytes(tensor, theirs[name]), name
    assert torch.equal(model.state_dict()[lost], torch.ones(12))
    drawn = model.state_dict()["model.layers.2.mlp.up_proj.weight"]
    assert 0.01 < float(drawn.std()) < 0.03
    assert not torch.equal(drawn, third.state_dict()["model.layers.2.mlp.up_proj.weight"])


def test_a_model_without_its_head_gets_one(tmp_path: Path) -> None:
    model = build("llama")
    model.model.save_pretrained(tmp_path)
    loaded_model, units = loaded(tmp_path)
    assert units.warnings == [
        f"{tmp_path}: its files have no values for lm_head.weight: these get the architecture's initial values"
    ]
    assert torch.equal(loaded_model.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_what_the_model_has_no_place_for_is_told_and_left(tmp_path: Path) -> None:
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["v_head.summary.weight"] = torch.ones(3)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)

    rewritten(saved("llama", tmp_path), add)
    _, units = loaded(tmp_path)
    assert units.warnings == [
        f"{tmp_path}: its files have v_head.summary.weight, which the model does not use: left out"
    ]


def other_names(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"other.{name}.x"] = tensors.pop(name)


def without(part: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if part in n]:
            del tensors[name]

    return drop


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("llama", other_names, r"no tensors of block model\.layers\.0.*not one name fits"),
        ("llama", without("layers.2."), r"no tensors of block model\.layers\.2"),
        ("llama", without("mlp"), r"lack \d\d% of the weights.*mlp\.gate_proj\.weight"),
        ("mixtral", without(".experts.4."), r"\[4, 80, 24\].*config\.json.*\[5, 80, 24\]"),
    ],
)
def test_files_that_lack_a_good_part_are_refused(
    tmp_path: Path, family: str, change: Any, words: str
) -> None:
    rewritten(saved(family, tmp_path), change)
    with pytest.raises(ConfigurationError, match=words):
        loaded(tmp_path)


def test_persistent_buffers_are_read_and_others_are_computed(tmp_path: Path) -> None:
    folder = saved("gpt2", tmp_path)
    rewritten(folder, lambda tensors: tensors.update({"transformer.h.1.kept": torch.tensor([5, 6])}))
    model = on_meta(folder)
    model.transformer.h[1].register_buffer("kept", torch.zeros(2, dtype=torch.int64, device="meta"))
    loaded(folder, model=model)
    assert model.transformer.h[1].kept.tolist() == [5, 6]
    rotary, _ = loaded(saved("llama", tmp_path / "llama"))
    expected = reference(tmp_path / "llama").model.rotary_emb.inv_freq
    assert torch.equal(rotary.model.rotary_emb.inv_freq, expected)


def test_trainable_weights_that_are_overwritten_anyway_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on_meta(saved("llama", tmp_path))
    name = "model.layers.1.mlp.up_proj.weight"
    model.get_parameter(name).requires_grad_(False)
    read: list[str] = []
    carry_out = conversion.Conversion.carry_out
    monkeypatch.setattr(
        conversion.Conversion, "carry_out", lambda own, *rest: read.append(own.first) or carry_out(own, *rest)
    )
    loaded(tmp_path, model=model, blank=True)
    assert read == [name]
    assert torch.equal(model.get_parameter(name), reference(tmp_path).get_parameter(name))
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_frozen_weights_do_not_depend_on_their_files_any_more(tmp_path: Path) -> None:
    model = on_meta(saved("llama", tmp_path)).requires_grad_(False)
    model.lm_head.requires_grad_(True)
    expected = {name: tensor.clone() for name, tensor in reference(tmp_path).state_dict().items()}
    loaded(tmp_path, model=model)
    model.lm_head = torch.nn.Identity()
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(b"\0" * (tmp_path / "model.safetensors").stat().st_size)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_a_transformers_that_keeps_its_rules_elsewhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("gpt2", tmp_path)
    monkeypatch.delattr(
        importlib.import_module("transformers.conversion_mapping"), "get_model_conversion_mapping"
    )
    with pytest.raises(WorkbenchError, match=r"does not show how its models are loaded.*5\.17 to 5\.23"):
        loaded(tmp_path)
