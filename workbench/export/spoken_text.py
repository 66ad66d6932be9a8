"""Text from token ids as they come, printed as soon as it is text: a character may be several tokens, or part of one.

Invariant: what was printed, together, is the decoding of all ids after the prompt's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

REPLACEMENT = "�"
"""What decoders give for bytes that are no character yet."""


class SpokenText:
    """What `generate` takes as a streamer. `write` is given text; the first ids that come are the prompt's."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._ids: list[int] = []
        self._from = self._to = 0
        """Ids from which on text is decoded anew, and up to which it is written: what a decoder makes of an id may
        depend on the one before."""

    def put(self, ids: Tensor) -> None:
        prompt = not self._ids
        self._ids += ids.flatten().tolist()
        if prompt:
            self._to = len(self._ids)
        else:
            self._say(whole=False)

    def end(self) -> None:
        self._say(whole=True)
        self._write("\n")

    def _say(self, *, whole: bool) -> None:
        written = self._decode(self._ids[self._from : self._to])
        text = self._decode(self._ids[self._from :])
        if len(text) <= len(written) or (text.endswith(REPLACEMENT) and not whole):
            return
        self._write(text[len(written) :])
        self._from, self._to = self._to, len(self._ids)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
