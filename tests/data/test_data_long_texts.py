"""Long texts in blocks: nothing lost, and the ids of the whole where a line ends."""

from collections.abc import Iterator

import pytest
from chat_tokenizers import chat_tokenizer

from workbench.data import tokenizers
from workbench.data.tokenizers import text_blocks

BLOCK = 100


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "BLOCK", BLOCK)


def pieces(text: str, length: int) -> Iterator[str]:
    return (text[at : at + length] for at in range(0, len(text), length))


TEXTS = {
    "empty": "",
    "one block": "x" * BLOCK,
    "lines": "".join(f"line {number}\n" for number in range(200)),
    "blank lines": "".join(f"line {number}\n\n\n    and more\n" for number in range(100)),
    "crlf": "".join(f"line {number}\r\n" for number in range(100)),
    "one line": "word " * 300,
    "one word": "é🎉" * 500,
    "white space": " \n" * 300,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_blocks_are_the_text_and_depend_on_it_alone(text: str) -> None:
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
def test_a_block_ends_with_a_line_else_before_a_word(text: str, end: str) -> None:
    first = next(text_blocks(pieces(text, BLOCK)))
    assert first.endswith(end)
    assert (len(first) < BLOCK) == (end != "x" * BLOCK)


def test_a_long_text_has_the_ids_of_the_whole_where_its_lines_end() -> None:
    tokenizer = chat_tokenizer(None)
    texts = [TEXTS["lines"], "short", TEXTS["blank lines"], ""]
    whole = [tokenizer.backend(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.encode_batch(texts) == whole
    for text in TEXTS.values():
        assert tokenizer.decode(tokenizer.encode(text)) == text
