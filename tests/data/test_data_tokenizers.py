"""Text to ids and back, here and in what transformers loads."""

import random
from pathlib import Path

import pytest

from workbench.data.tokenizers import END_OF_TEXT, ByteTokenizer, load_tokenizer

TEXTS = {
    "plain": "hello world",
    "code": "def f(x):\n\treturn x  # it's 100 %\n\n\n",
    "white space": "  leading,  double, trailing \t \r\n\r\n \n",
    "accents": "naïve façade, e\u0301 decomposed, \ufb01 ligature",
    "emoji": "🎉👩‍👩‍👧 中文 \u202eright to left\u202c",
    "control": "\x00\x01\x7f\x85\u2028",
    "long word": "x" * 5000,
    "end of text": f"before{END_OF_TEXT}after",
    "byte order mark": "\ufefftext",
    "empty": "",
}


def test_bytes_need_no_files() -> None:
    tokenizer = load_tokenizer("bytes")
    assert (tokenizer.spec, tokenizer.vocabulary_size, tokenizer.chat_template) == ("bytes", 257, None)
    assert tokenizer.encode_batch(list(TEXTS.values())) == [tokenizer.encode(text) for text in TEXTS.values()]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bytes_are_their_own_ids(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text


def test_what_is_no_text_is_decoded_all_the_same() -> None:
    assert (
        ByteTokenizer().decode([0x41, 0xFF, 0xC3, 0x42, 256, 0xF0, 0x9F])
        == f"A\ufffd\ufffdB{END_OF_TEXT}\ufffd"
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    ByteTokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("architecture", [None, "gpt2", "llama"])
def test_transformers_loads_the_same_tokenizer_offline_also_beside_a_model(
    saved: Path, architecture: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoTokenizer

    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    if architecture is not None:
        AutoConfig.for_model(architecture).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    ours = ByteTokenizer()
    for name, text in TEXTS.items():
        ids = loaded(text)["input_ids"]
        assert ids == ours.encode(text), name
        assert loaded.decode(ids) == text, name
    choose = random.Random(1)
    for _ in range(200):
        text = "".join(
            chr(
                choose.choice(
                    [choose.randrange(0x80), choose.randrange(0xD800), choose.randrange(0xE000, 0x110000)]
                )
            )
            for _ in range(50)
        )
        assert loaded(text)["input_ids"] == ours.encode(text)
    assert len(loaded) == ours.vocabulary_size
    assert loaded.eos_token_id == ours.end_of_text
    assert loaded.convert_tokens_to_ids(END_OF_TEXT) == ours.end_of_text
    assert loaded.decode([65, 256], skip_special_tokens=True) == "A"
