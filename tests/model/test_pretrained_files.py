"""Wrong folders, files and descriptions end in one sentence that names them; the hub is asked for what is not here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saved_families import build

from workbench.engine.blocks.discovery import find_units
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model import hub
from workbench.model.build import build_on_meta, model_config
from workbench.model.description import check_description
from workbench.model.loading import PretrainedUnits
from workbench.model.pretrained import files_in, find_pretrained, pretrained_config

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


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


def header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    content = json.loads(data[8 : 8 + length])
    change(content)
    text = json.dumps(content).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def other_dtype(content: dict[str, Any]) -> None:
    entry = content["model.norm.weight"]
    entry["dtype"], entry["shape"] = "F8_E4M3", [96]


def longer(content: dict[str, Any]) -> None:
    content["model.norm.weight"]["shape"] = [25]


def unreadable(content: dict[str, Any]) -> None:
    del content["model.norm.weight"]["data_offsets"]


def to_pickle(folder: Path) -> None:
    (folder / ONE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


WRONG: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no config": (
        "one",
        lambda d: (d / "config.json").unlink(),
        r"has no config\.json; name a folder that save_pret",
    ),
    "config is no JSON": (
        "one",
        lambda d: cut(d / "config.json", 20),
        r"config\.json is no JSON: .*get it again",
    ),
    "config is a list": (
        "one",
        lambda d: (d / "config.json").write_text("[1]"),
        r"config\.json holds no JSON object",
    ),
    "no weights": (
        "one",
        lambda d: (d / ONE).unlink(),
        r"has neither model\.safetensors nor model\.safetensors\.in",
    ),
    "pickle": (
        "one",
        to_pickle,
        r"pickle files only \(pytorch_model\.bin\), which can run any code.*save_pretrained",
    ),
    "another architecture": (
        "one",
        lambda d: edit(d / "config.json", model_type="vit"),
        r"model_type = 'vit' is no causal language model that transformers \d",
    ),
    "no architecture": (
        "one",
        lambda d: edit(d / "config.json", model_type=...),
        r"model_type = None is no causal",
    ),
    "code of its own": (
        "one",
        lambda d: edit(
            d / "config.json",
            model_type="mine",
            auto_map={"AutoConfig": "my_config.C", "AutoModelForCausalLM": "my.M"},
        ),
        r"brings code of its own.*\(my\.py, my_config\.py\).*model\.trust_remote_code = true",
    ),
    "quantised": (
        "one",
        lambda d: edit(d / "config.json", quantization_config={"quant_method": "gptq"}),
        r"quantised \(gptq\), which are not trained from",
    ),
    "a value that is refused": (
        "one",
        lambda d: edit(d / "config.json", hidden_size="wide"),
        r"config\.json describes no model: ",
    ),
    "empty file": (
        "one",
        lambda d: cut(d / ONE, 0),
        r"model\.safetensors is no safetensors file: it has 0 bytes",
    ),
    "text": (
        "one",
        lambda d: (d / ONE).write_text("version https://git-lfs"),
        r"no safetensors file: it begins with",
    ),
    "cut in its header": (
        "one",
        lambda d: cut(d / ONE, 200),
        r"was cut off: it has 200 bytes and its header alone",
    ),
    "cut in its tensors": (
        "one",
        lambda d: cut(d / ONE, 30_000),
        r"was cut off: it has 30,000 bytes, and tensor \S+ ",
    ),
    "header of another length": (
        "one",
        lambda d: header(d / ONE, longer),
        r"tensor model\.norm\.weight of shape \[25",
    ),
    "header without a place": (
        "one",
        lambda d: header(d / ONE, unreadable),
        r"nothing readable of tensor model\.norm",
    ),
    "eight bits": ("one", lambda d: header(d / ONE, other_dtype), r"(shape \[96\]|stored as float8_e4m3fn)"),
    "another shape": (
        "one",
        lambda d: edit(d / "config.json", vocab_size=70),
        r"tensor (lm_head|model\.embed_tokens)\.weight has the shape \[67, 24\], and config\.json .* \[70, 24\]",
    ),
    "a file is missing": (
        "many",
        lambda d: (d / "model-00002-of-00004.safetensors").unlink(),
        r"model-00002-of-00004\.safetensors is missing: .*index\.json has \d+ tensors in it, one of them model\.",
    ),
    "index is no JSON": ("many", lambda d: cut(d / INDEX, 9), r"index\.json is no JSON"),
    "index without a map": (
        "many",
        lambda d: edit(d / INDEX, weight_map={}),
        r"no weight_map from tensors to files",
    ),
    "index leads outside": (
        "many",
        lambda d: edit(d / INDEX, weight_map={"a": "../x.safetensors"}),
        r'names "\.\./x\.safetensors", which is no safetensors file beside it',
    ),
    "index has more": (
        "many",
        lambda d: edit(
            d / INDEX,
            weight_map={
                **json.loads((d / INDEX).read_text())["weight_map"],
                "more": "model-00002-of-00004.safetensors",
            },
        ),
        r"model-00002-of-00004\.safetensors lacks tensor more, which the index has in it",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_folder_is_refused_in_one_sentence_that_names_what_is_wrong(
    tmp_path: Path, originals: dict[str, Path], wrong: str
) -> None:
    source, spoil, expected = WRONG[wrong]
    folder = copied(originals[source], tmp_path / "model")
    spoil(folder)
    with pytest.raises(ConfigurationError, match=expected) as raised:
        load(folder)
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda d: d / "nowhere", r"no such folder, and it is no hub id"),
        (
            lambda d: (d / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}') and d,
            r"adapter.*a/b",
        ),
        (lambda d: (d / "checkpoints").mkdir() or d, r"is a run; name one of its checkpoints"),
        (lambda d: (d / "a.gguf").write_text("x") and d, r"GGUF files, which are not trained from"),
        (lambda d: (d / "f").write_text("x") and d / "f", r"is a file; name the folder"),
    ],
)
def test_what_is_no_model_is_told_by_what_it_is(
    tmp_path: Path, make: Callable[[Path], Path], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        find_pretrained(str(make(tmp_path)))


# The hub


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(hub, "_listed", unreachable)
    return folder


def unreachable(*_: Any) -> Any:
    raise ConnectionError("Name or service not known")


def keep(cache: Path, source: Path, name: str = "owner/model") -> Path:
    """Put a model into the cache as if it had been fetched."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    return copied(source, repository / "snapshots" / COMMIT)


def test_without_network_a_model_that_was_fetched_before_is_taken(
    cache: Path, originals: dict[str, Path]
) -> None:
    kept = keep(cache, originals["many"])
    told: list[str] = []
    files = find_pretrained("owner/model", tell=told.append)
    assert (files.folder, files.commit, len(files.weights)) == (kept, COMMIT, 4)
    assert (
        len(told) == 1
        and "the hub cannot be reached" in told[0]
        and "what was fetched before is taken" in told[0]
    )


def test_a_commit_that_is_here_is_not_asked_for(cache: Path, originals: dict[str, Path]) -> None:
    keep(cache, originals["one"])
    told: list[str] = []
    assert find_pretrained("owner/model", COMMIT, tell=told.append).commit == COMMIT
    assert find_pretrained("owner/model", weights=False, fresh=False, tell=told.append).commit == COMMIT
    assert told == []


@pytest.mark.parametrize("lost", [None, "model-00003-of-00004.safetensors", "config.json"])
def test_without_network_and_not_all_in_the_cache_says_what_to_do(
    cache: Path, originals: dict[str, Path], lost: str | None
) -> None:
    if lost is not None:
        (keep(cache, originals["many"]) / lost).unlink()
    with pytest.raises(
        WorkbenchError, match=r"no such folder, .*reached \(Name or .*hf download owner/model.*name a folder"
    ):
        find_pretrained("owner/model")


def response(status: int) -> Any:
    import httpx2

    return httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co/x"))


def hub_error(kind: str, status: int) -> Exception:
    from huggingface_hub import errors

    error: Exception = getattr(errors, kind)("no", response=response(status))
    return error


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        (
            "GatedRepoError",
            403,
            r"its owner asks for consent first; give it at https://huggingface\.co/owner/model",
        ),
        ("RepositoryNotFoundError", 404, r"no such model on the hub, or it is private"),
        ("RevisionNotFoundError", 404, r'model\.revision = "v9": owner/model has no such branch'),
        ("HfHubHTTPError", 401, r"does not let it be read \(401\)"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_with_a_way_out(
    cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: int, expected: str
) -> None:
    def refuse(*_: Any) -> Any:
        raise hub_error(kind, status)

    monkeypatch.setattr(hub, "_listed", refuse)
    with pytest.raises(ConfigurationError, match=expected):
        find_pretrained("owner/model", "v9")


def test_offline_mode_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    def refuse(*_: Any) -> Any:
        raise OfflineModeIsEnabled("offline")

    monkeypatch.setattr(hub, "_listed", refuse)
    with pytest.raises(WorkbenchError, match=r"HF_HUB_OFFLINE keeps the hub from being asked.*name a folder"):
        find_pretrained("owner/model")


def test_only_description_tokenizer_and_safetensors_are_fetched(
    cache: Path, originals: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {path.name: path.stat().st_size for path in originals["many"].iterdir()}
    others = {
        "pytorch_model.bin": 9,
        "README.md": 9,
        "original/model.safetensors": 9,
        "modeling_x.py": 9,
        "x.pkl": 9,
    }
    asked: list[list[str]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str], library_name: str) -> str:
        asked.append(allow_patterns)
        return str(keep(cache, originals["many"]))

    monkeypatch.setattr(hub, "_listed", lambda *_: {**sizes, **others, "tokenizer.json": 5})
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    told: list[str] = []
    find_pretrained("owner/model", tell=told.append)
    assert asked == [sorted([*sizes, "tokenizer.json"])]
    assert told[0].startswith("fetching owner/model from the hub: ")


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_listed", lambda *_: {"config.json": 9, "model.safetensors": 10**15})
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(WorkbenchError, match=r"needs 931,322\.6 GiB in .*hub.*make room, or set HF_HOME"):
        find_pretrained("owner/model")


def test_a_model_of_pickle_files_only_is_refused_before_anything_is_fetched(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_listed", lambda *_: {"config.json": 9, "pytorch_model.bin": 10})
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(
        ConfigurationError, match=r"only pickle files \(pytorch_model\.bin\).*never loaded here"
    ):
        find_pretrained("owner/model")


# A description beside the files


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
