"""Tokenizers of folders and of the hub: found, loaded without network, and the same when saved."""

import json
import shutil
from pathlib import Path
from typing import Any

import chat_tokenizers as templates
import huggingface_hub
import pytest
from chat_tokenizers import chat_tokenizer
from huggingface_hub import errors
from transformers import AutoTokenizer

from workbench.data.tokenizers import PretrainedTokenizer, load_tokenizer
from workbench.errors import ConfigurationError
from workbench.model import hub

TEXTS = ["", "hello world", "  two  spaces\n\n\tand a tab ", "naïve 日本語 🎉", "a</s>b<|im_end|>", "x" * 500]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks the hub for something fails at once."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(hub, "why_unreachable", lambda: "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    chat_tokenizer(templates.CHATML).backend.save_pretrained(str(path))
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.model").write_bytes(b"what other programs read")
    (path / "pytorch_model.bin").write_bytes(b"no pickle is touched")
    return path


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file, and take out those that are None."""
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def test_a_folder_gives_the_ids_of_transformers_before_and_after_it_is_saved(
    folder: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(folder))
    reference = AutoTokenizer.from_pretrained(str(folder))
    expected = [reference(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert tokenizer.encode_batch(TEXTS) == expected
    assert [tokenizer.encode(text) for text in TEXTS] == expected
    assert [tokenizer.decode(ids) for ids in expected] == TEXTS
    assert tokenizer.vocabulary_size == len(reference)
    assert tokenizer.end_of_text == reference.eos_token_id
    assert tokenizer.chat_template == templates.CHATML
    saved = tmp_path / "saved"
    tokenizer.save_pretrained(saved)
    assert (saved / "tokenizer.model").read_bytes() == b"what other programs read"
    assert not (saved / "pytorch_model.bin").exists() and not (saved / "config.json").exists()
    again = AutoTokenizer.from_pretrained(str(saved))
    assert [again(text, add_special_tokens=False)["input_ids"] for text in TEXTS] == expected
    assert again.chat_template == templates.CHATML
    assert load_tokenizer(str(saved)).fingerprint == tokenizer.fingerprint


def test_a_tokenizer_json_alone_will_do_as_a_file_or_in_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    path = Path(shutil.copy(folder / "tokenizer.json", tmp_path / "alone"))
    edit(
        path, added_tokens=[t for t in json.loads(path.read_text())["added_tokens"] if t["content"] != "</s>"]
    )
    with pytest.raises(ConfigurationError, match="no token that could end a text"):
        load_tokenizer(str(path))
    values = json.loads(path.read_text())
    index = max(values["model"]["vocab"].values()) + 100
    end = {"id": index, "content": "<|endoftext|>", "special": True, "single_word": False}
    sides = {"lstrip": False, "rstrip": False, "normalized": False}
    edit(path, added_tokens=[*values["added_tokens"], {**end, **sides}])
    for spec in (path, path.parent):
        tokenizer = load_tokenizer(str(spec))
        assert tokenizer.decode([tokenizer.end_of_text]) == "<|endoftext|>"
        assert tokenizer.encode("hello") == load_tokenizer(str(folder)).encode("hello")


def test_without_an_end_of_text_the_nearest_token_serves_and_it_is_said(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", eos_token=None)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.decode([tokenizer.end_of_text]) == "<s>"
    (warning,) = tokenizer.warnings
    assert "has no end-of-text token (eos_token); its bos_token '<s>' stands between documents" in warning
    edit(folder / "tokenizer_config.json", bos_token=None)
    with pytest.raises(ConfigurationError, match=r'add "eos_token" to its tokenizer_config\.json'):
        load_tokenizer(str(folder))


def test_tokenizers_with_other_ids_or_templates_have_other_fingerprints(folder: Path) -> None:
    prints = {load_tokenizer(str(folder)).fingerprint}
    (folder / "chat_template.jinja").write_text(templates.HEADERS)
    prints.add(load_tokenizer(str(folder)).fingerprint)
    values = json.loads((folder / "tokenizer.json").read_text())
    edit(folder / "tokenizer.json", model={**values["model"], "merges": values["model"]["merges"][:-1]})
    prints.add(load_tokenizer(str(folder)).fingerprint)
    assert len(prints) == 3


def test_padding_and_truncation_of_the_folder_do_not_touch_the_ids(folder: Path) -> None:
    backend = chat_tokenizer(None).backend
    backend.backend_tokenizer.enable_padding(length=64)
    backend.backend_tokenizer.enable_truncation(4)
    backend.backend_tokenizer.save(str(folder / "tokenizer.json"))
    text = "what is the answer and who asks it"
    assert load_tokenizer(str(folder)).encode(text) == chat_tokenizer(None).encode(text)


def test_half_of_a_surrogate_pair_becomes_the_replacement_character(folder: Path) -> None:
    for tokenizer in (load_tokenizer(str(folder)), load_tokenizer("bytes")):
        for encode in (tokenizer.encode, lambda text, t=tokenizer: t.encode_batch([text])[0]):
            assert tokenizer.decode(encode("a\ud83d b\ude00")) == "a\ufffd b\ufffd"


def test_code_that_comes_with_a_tokenizer_runs_only_where_it_is_trusted(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('the code ran')\n")
    edit(
        folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]}, tokenizer_class="Own"
    )
    with pytest.raises(ConfigurationError, match=r"only with model\.trust_remote_code = true"):
        load_tokenizer(str(folder))
    with pytest.raises(SystemExit, match="the code ran"):
        load_tokenizer(str(folder), trust_remote_code=True)


def test_what_is_no_tokenizer_is_said_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer.json").write_text('{"version": "1.0"}')
    (tmp_path / "damaged" / "tokenizer_config.json").write_text("{}")
    for spec, reason in {
        "empty": "has no tokenizer; expected tokenizer.json",
        "broken.json": r"not a tokenizer\.json that can be loaded",
        "damaged": "cannot be loaded",
        "modell": r'no such folder \(did you mean ".*model"\?\)',
    }.items():
        with pytest.raises(ConfigurationError, match=reason) as raised:
            load_tokenizer(str(tmp_path / spec))
        assert str(raised.value).startswith('data.tokenizer = "')
        assert "\n" not in str(raised.value)


def test_a_hub_id_is_loaded_from_what_was_fetched_and_only_the_tokenizers_files_are(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def fetched(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    tokenizer = load_tokenizer("owner/name", revision="v2")
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert tokenizer.spec == "owner/name"
    (asked_for,) = asked
    assert (asked_for["name"], asked_for["revision"]) == ("owner/name", "v2")
    assert not {"*.safetensors", "*.py", "*"} & set(asked_for["allow_patterns"])
