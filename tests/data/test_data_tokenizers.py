"""Text to ids and back, here and in what transformers loads; long texts in blocks."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_tokenizers import chat_tokenizer

from workbench.data import tokenizers
from workbench.data.tokenizers import END_OF_TEXT, ByteTokenizer, load_tokenizer, text_blocks

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
        places = (choose.choice([0x80, 0xD800]) for _ in range(50))
        text = "".join(
            chr(choose.randrange(below)) + chr(choose.randrange(0xE000, 0x110000)) for below in places
        )
        assert loaded(text)["input_ids"] == ours.encode(text)
    assert len(loaded) == ours.vocabulary_size
    assert loaded.eos_token_id == ours.end_of_text
    assert loaded.convert_tokens_to_ids(END_OF_TEXT) == ours.end_of_text
    assert loaded.decode([65, 256], skip_special_tokens=True) == "A"


# Long texts in blocks

BLOCK = 100


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "BLOCK", BLOCK)


def pieces(text: str, length: int) -> Iterator[str]:
    return (text[at : at + length] for at in range(0, len(text), length))


LONG_TEXTS = {
    "empty": "",
    "one block": "x" * BLOCK,
    "lines": "".join(f"line {number}\n" for number in range(200)),
    "blank lines": "".join(f"line {number}\n\n\n    and more\n" for number in range(100)),
    "crlf": "".join(f"line {number}\r\n" for number in range(100)),
    "one line": "word " * 300,
    "one word": "é🎉" * 500,
    "white space": " \n" * 300,
}


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_blocks_are_the_text_and_depend_on_it_alone(small_blocks: None, text: str) -> None:
    blocks = list(text_blocks(pieces(text, BLOCK)))
    assert "".join(blocks) == text
    assert all(0 < len(block) <= BLOCK for block in blocks)
    assert all(len(block) >= BLOCK // 2 for block in blocks[:-1])
    for length in (1, 7, 33):
        assert list(text_blocks(pieces(text, length))) == blocks


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("x" * 70 + "\n" + "y" * 100, "x\n"),
        (
            "x" * 70 + "\n" + "y" * 10 + "\n\n  " + "z" * 100,
            "x\n",
        ),  # the later ones have white space beside them
        ("x" * 70 + "\n  " + "y" * 100, "x\n"),
        ("x" * 10 + "\n" + "y" * 60 + " " + "z" * 100, "y"),  # the line break is in the first half
        ("x" * 300, "x" * BLOCK),
    ],
)
def test_a_block_ends_with_a_line_else_before_a_word(small_blocks: None, text: str, end: str) -> None:
    first = next(text_blocks(pieces(text, BLOCK)))
    assert first.endswith(end)
    assert (len(first) < BLOCK) == (end != "x" * BLOCK)


def test_a_long_text_has_the_ids_of_the_whole_where_its_lines_end(small_blocks: None) -> None:
    tokenizer = chat_tokenizer(None)
    texts = [LONG_TEXTS["lines"], "short", LONG_TEXTS["blank lines"], ""]
    whole = [tokenizer.backend(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.encode_batch(texts) == whole
    for text in LONG_TEXTS.values():
        assert tokenizer.decode(tokenizer.encode(text)) == text
