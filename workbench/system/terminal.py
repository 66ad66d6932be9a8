"""The one way of text to a terminal: what could move the cursor, change colours or reorder letters is spelt out.

Names, messages and data come from files of others; an escape sequence among them would act on the user's terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

LONGEST_LINE = 2000
"""Characters of a line of an error's message that are shown."""

# A lone surrogate is among them: a UTF-8 stream cannot write it. Colours of this program's own are let through: they
# change nothing but the look of a word.
_ACTS = re.compile(
    "\x1b(?!\\[(?:0|1|3[1-6])m)|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """Return `text` with the control characters spelt out that are not the end of a line or a tab."""
    return _ACTS.sub(_spelt, text)


def on_one_line(message: str) -> str:
    """Return a message with its line ends and every other character that does not print spelt out."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in message)


def error_text(message: str) -> str:
    """Return an error's message as it is shown: escaped, and its lines not longer than LONGEST_LINE."""
    lines = escaped(message).split("\n")
    return "\n".join(line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…" for line in lines)


class EscapedStream:
    """A text stream that escapes what is written; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escaped(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """While entered, `sys.stdout` and `sys.stderr` escape what is written to them."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        None if stream is None else cast("TextIO", EscapedStream(stream)) for stream in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _spelt(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"
