"""Wrong folders, files and descriptions end in one sentence that names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from saved_families import build, tensors_in

from workbench.engine.blocks.discovery import find_units
from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta, model_config
from workbench.model.loading import PretrainedUnits
from workbench.model.pretrained import check_description, files_in, find_pretrained, pretrained_config

CONFIG, ONE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SECOND = "model-00002-of-00004.safetensors"


def load(folder: Path) -> PretrainedUnits:
    files = find_pretrained(str(folder))
    model = build_on_meta(pretrained_config(files))
    units = PretrainedUnits(model, files, 1)
    for unit in find_units(model):
        units(unit)
    return units


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with one file of weights, and one with several."""
    found = {}
    for name, size in (("one", "5GB"), ("many", "20KB")):
        found[name] = tmp_path_factory.mktemp(name)
        build("llama").save_pretrained(found[name], max_shard_size=size)
    return found


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def edit(path: Path, **changes: Any) -> None:
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def other_dtype(folder: Path) -> None:
    tensors = tensors_in(folder)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / ONE, {"format": "pt"})


def to_pickle(folder: Path) -> None:
    (folder / ONE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


WRONG: list[tuple[str, Callable[[Path], None], str]] = [
    ("one", lambda d: (d / CONFIG).unlink(), r"has no config\.json; name a folder that save_pret"),
    ("one", lambda d: cut(d / CONFIG, 20), r"config\.json is not JSON: .*download it again"),
    ("one", lambda d: (d / ONE).unlink(), r"has neither model\.safetensors nor model\.safetensors\.in"),
    ("one", to_pickle, r"pickle files only \(pytorch_model\.bin\), which can run any code.*save_pretrained"),
    (
        "one",
        lambda d: edit(d / CONFIG, model_type="vit"),
        r"model_type = 'vit' is not a causal language model that transformers \d",
    ),
    ("one", lambda d: edit(d / CONFIG, model_type=...), r"model_type = None is not a causal"),
    (
        "one",
        lambda d: edit(
            d / CONFIG,
            model_type="mine",
            auto_map={"AutoConfig": "my_config.C", "AutoModelForCausalLM": "my.M"},
        ),
        r"has its own code.*\(my\.py, my_config\.py\).*model\.trust_remote_code = true",
    ),
    (
        "one",
        lambda d: edit(d / CONFIG, quantization_config={"quant_method": "gptq"}),
        r"quantised \(gptq\), which cannot be trained",
    ),
    ("one", lambda d: edit(d / CONFIG, hidden_size="wide"), r"config\.json describes no model: "),
    ("one", lambda d: cut(d / ONE, 0), r"not a complete safetensors file \(0 bytes"),
    ("one", lambda d: cut(d / ONE, 30_000), r"not a complete safetensors file \(30,000 bytes"),
    ("one", other_dtype, r"stored as float8_e4m3fn"),
    (
        "one",
        lambda d: edit(d / CONFIG, vocab_size=70),
        r"tensor (lm_head|model\.embed_tokens)\.weight has the shape \[67, 24\], and config\.json .* \[70, 24\]",
    ),
    (
        "many",
        lambda d: (d / SECOND).unlink(),
        r"model-00002-of-00004\.safetensors is missing: .*index\.json has \d+ tensors in it, one of them model\.",
    ),
    ("many", lambda d: cut(d / INDEX, 9), r"index\.json is not JSON"),
    ("many", lambda d: edit(d / INDEX, weight_map={}), r"no weight_map from tensors to files"),
    (
        "many",
        lambda d: edit(d / INDEX, weight_map={"a": "../x.safetensors"}),
        r'names "\.\./x\.safetensors", which is not a safetensors file beside it',
    ),
    (
        "many",
        lambda d: edit(
            d / INDEX, weight_map={**json.loads((d / INDEX).read_text())["weight_map"], "more": SECOND}
        ),
        r"model-00002-of-00004\.safetensors lacks tensor more, which the index lists",
    ),
]


@pytest.mark.parametrize(("source", "spoil", "expected"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_folder_is_refused_in_one_sentence_that_names_what_is_wrong(
    tmp_path: Path, originals: dict[str, Path], source: str, spoil: Callable[[Path], None], expected: str
) -> None:
    folder = copied(originals[source], tmp_path / "model")
    spoil(folder)
    with pytest.raises(ConfigurationError, match=expected) as raised:
        load(folder)
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda d: d / "nowhere", r"no such folder, and it is not a hub id"),
        (
            lambda d: (d / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}') and d,
            r"adapter.*a/b",
        ),
        (lambda d: (d / "checkpoints").mkdir() or d, r"is a run; name one of its checkpoints"),
        (lambda d: (d / "a.gguf").write_text("x") and d, r"GGUF files, which cannot be trained"),
        (lambda d: (d / "f").write_text("x") and d / "f", r"is a file; name the folder"),
    ],
)
def test_what_is_no_model_is_told_by_what_it_is(
    tmp_path: Path, make: Callable[[Path], Path], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        find_pretrained(str(make(tmp_path)))


DESCRIBED = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}


def check(folder: Path, architecture: str = "llama", **changes: Any) -> None:
    settings = {key: value for key, value in {**DESCRIBED, **changes}.items() if value is not ...}
    actual = pretrained_config(files_in(folder, ""))
    check_description(
        model_config(architecture, settings), settings, actual, build_on_meta(actual), str(folder)
    )


@pytest.mark.parametrize(
    "changes", [{}, {"bos_token_id": 5}, {"initializer_range": 0.5}, {"use_cache": False}], ids=str
)
def test_a_description_of_the_same_model_is_accepted(
    originals: dict[str, Path], changes: dict[str, Any]
) -> None:
    check(originals["one"], **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 4}, r"model\.config\.num_hidden_layers is 4 and there it is 3"),
        ({"rms_norm_eps": 1e-3}, r"model\.config\.rms_norm_eps is 0\.001 and there it is 1e-06"),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
            r"rope_parameters is .*500000.* and there it is .*10000",
        ),
        ({"tie_word_embeddings": True}, r"tie_word_embeddings is True and there it is False"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu' and there it is 'silu'"),
        ({"num_key_value_heads": ...}, r"num_key_value_heads is 2 and there it is 1"),
        ({"architecture": "mistral"}, r'model\.architecture = "mistral": .* is of the architecture "llama"'),
    ],
    ids=str,
)
def test_a_description_of_another_model_is_refused_with_both_values(
    originals: dict[str, Path], changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected) as raised:
        check(originals["one"], **changes)
    assert str(originals["one"]) in str(raised.value)
