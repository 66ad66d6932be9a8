"""Long texts are tokenized in blocks, so that memory does not grow with a document.

A block ends with a line where it can. Tokenizers that split text into words first give the ids of the whole text then;
one that puts a space before a text does so before every block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BLOCK = 1 << 20
"""Characters in a block. A tokenizer takes some hundred bytes for each token while it works."""


def text_blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Join `pieces` (each about a block at most) and yield the text in blocks of at most `BLOCK` characters.

    Where the blocks end depends on the text alone, not on the pieces.
    """
    text = ""
    for piece in pieces:
        text += piece
        while len(text) > BLOCK:
            end = _block_end(text)
            yield text[:end]
            text = text[end:]
    if text:
        yield text


def _block_end(text: str) -> int:
    """Return the length of the first block of `text`, which is longer than one block.

    In the second half of the block it takes the last line break between two characters that are not white space, else
    the last line break, else the last space, else the block is full.
    """
    half, at = BLOCK // 2, BLOCK
    while (at := text.rfind("\n", half, at)) >= 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    line_break = text.rfind("\n", half, BLOCK)
    if line_break >= 0:
        return line_break + 1
    space = text.rfind(" ", half, BLOCK)  # word-level tokens begin with their space
    return space if space >= 0 else BLOCK
