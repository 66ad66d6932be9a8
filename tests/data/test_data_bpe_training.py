"""Tokenizers trained on the source."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from workbench.config import DataConfig
from workbench.data import bpe_training
from workbench.data.bpe_training import trained_tokenizer
from workbench.data.prepare import prepare
from workbench.data.sources import find_source
from workbench.data.tokenizers import PretrainedTokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the {n}th tokenizer tokenizes tokens, naïvely\n" for n in range(500)))
    return path


def train(source: Path | str, size: int = 300, **options: object) -> PretrainedTokenizer:
    config = DataConfig.model_validate({"source": str(source), "tokenizer": f"bpe:{size}", **options})
    return trained_tokenizer(config, find_source(config))


def test_the_same_text_gives_the_same_tokenizer_which_is_found_again(
    text: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(text)
    assert first.vocabulary_size == 300
    assert first.warnings == ()
    assert first.decode([first.end_of_text]) == "<|endoftext|>"
    assert len(first.encode("the tokenizer tokenizes")) < 12
    monkeypatch.setenv("WORKBENCH_CACHE", str(cache.parent / "other"))
    again = train(text)
    assert again.fingerprint == first.fingerprint
    monkeypatch.setattr(bpe_training, "_train", None)
    assert train(text).fingerprint == first.fingerprint


def test_any_text_is_encoded_and_comes_back_also_in_transformers(text: Path, tmp_path: Path) -> None:
    tokenizer = train(text)
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    for some in ("", "日本語 🎉\x00\x7f", "  the\r\n\ttokens "):
        ids = tokenizer.encode(some)
        assert tokenizer.decode(ids) == some
        assert saved(some)["input_ids"] == ids
    assert saved.eos_token_id == tokenizer.end_of_text


def test_another_text_or_size_gives_another_tokenizer(text: Path, cache: Path) -> None:
    prints = [train(text).fingerprint, train(text, 280).fingerprint]
    text.write_text(text.read_text().replace("tokenizer", "something else"))
    prints.append(train(text).fingerprint)
    assert len(set(prints)) == 3
    assert len(list(cache.iterdir())) == 3


def test_a_damaged_tokenizer_in_the_cache_is_trained_anew(text: Path, cache: Path) -> None:
    expected = train(text).fingerprint
    (folder,) = cache.iterdir()
    (folder / "tokenizer.json").write_text("{")
    assert train(text).fingerprint == expected
    assert train(text).fingerprint == expected
    assert len(list(cache.iterdir())) == 1


def test_the_words_of_records_are_trained_on_and_their_fields_are_not(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    chat = [{"role": "user", "content": "wherefore"}, {"role": "assistant", "content": "therefore"}]
    rows = [{"messages": chat, "origin": "zzzzzzzz"}, {"prompt": "notwithstanding", "completion": "albeit"}]
    path.write_text("\n".join(json.dumps(row) for row in rows * 20))
    tokenizer = train(path, 300)
    for word in ("wherefore", "therefore", "notwithstanding", "albeit"):
        assert len(tokenizer.encode(word)) == 1
    assert len(tokenizer.encode("zzzzzzzz")) == 8
    assert len(tokenizer.encode("assistant")) > 2


def test_a_source_too_small_for_the_size_is_said(text: Path) -> None:
    tokenizer = train(text, 20_000)
    assert tokenizer.vocabulary_size < 2000
    (warning,) = tokenizer.warnings
    assert 'data.tokenizer = "bpe:20000": the source has so little text' in warning
    assert train(text, 20_000).warnings == (warning,)


def test_a_large_source_is_trained_on_parts_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.txt"
    path.write_text("".join(f"word{n}\n" for n in range(500_000)))
    monkeypatch.setattr(bpe_training, "SAMPLE_BYTES", 2 << 20)
    text, source = path.read_text(), find_source(DataConfig(source=str(path)))
    chosen = list(bpe_training._sample(source, "text", None))
    assert 1.5 * 2**20 < sum(map(len, chosen)) < 2.5 * 2**20
    places = [text.index(one) / len(text) for one in chosen]
    assert places[0] == 0 and places[-1] > 0.5


def test_tokens_of_the_training_are_those_of_the_tokenizer(text: Path) -> None:
    data = prepare(
        DataConfig(source=str(text), tokenizer="bpe:300", sequence_length=16, validation_fraction=0.1)
    )
    whole = torch.cat([data.train, data.validation]).tolist()
    assert data.tokenizer.decode(whole) == text.read_text()
    assert data.train.dtype == torch.uint16
