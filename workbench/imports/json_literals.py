"""Texts, numbers and words as they stand in pasted JSON: each gives its value and what had to be mended."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

WORD = re.compile(r"[^\W\d][\w$./-]*")
STARTS_A_VALUE = re.compile(r"[\"'“”„‘{\[\w+.-]")
LONGEST_SHOWN = 60

_STRINGS = {
    '"': re.compile(r'"([^"\\\n]*(?:\\.[^"\\\n]*)*)"'),
    "'": re.compile(r"'([^'\\\n]*(?:\\.[^'\\\n]*)*)'"),
    "“": re.compile(r"“([^“”\"\n]*)[“”\"]"),
    "”": re.compile(r"”([^“”\"\n]*)[“”\"]"),
    "„": re.compile(r"„([^“”\"\n]*)[“”\"]"),
    "‘": re.compile(r"‘([^‘’\n]*)[‘’]"),
}
QUOTES = frozenset(_STRINGS)

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.+-])")
_STRICT_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]Infinity\b")
_ESCAPE_OR_QUOTE = re.compile(r'\\.|"')
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
}
_FOREIGN_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None, "TRUE": True, "FALSE": False}


class Literal(NamedTuple):
    """A value, where the text goes on behind it, and what was mended in it."""

    value: Any
    end: int
    mended: tuple[str, ...] = ()


def read_string(text: str, at: int) -> Literal | None:
    """The text in quotes of any kind that begins at `at`; None where none does, or its line does not close it."""
    pattern = _STRINGS.get(text[at : at + 1])
    found = pattern.match(text, at) if pattern else None
    if found is None:
        return None
    quote, body = text[at], found.group(1)
    mended = []
    if quote != '"':
        mended.append(
            "read single quotes as double ones" if quote == "'" else "read printed quotes as plain ones"
        )
        body = _ESCAPE_OR_QUOTE.sub(lambda each: {"\\'": "'", '"': '\\"'}.get(each[0], each[0]), body)
    sound = _ESCAPE.sub(lambda each: each[0] if each[1] else "\\\\", body)
    if sound != body:
        mended.append("read a backslash as itself")
    value: str = json.loads(f'"{sound}"', strict=False)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        mended.append("replaced half a character")
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Literal(value, found.end(), tuple(mended))


def read_bare(text: str, at: int) -> Literal | None:
    """The number or word that begins at `at`: a word that JSON does not have is a text. None where none does."""
    infinite = _INFINITE.match(text, at)
    if infinite:
        return Literal(float(infinite[0]), infinite.end())
    number = _NUMBER.match(text, at)
    if number:
        written = number[0]
        odd = () if _STRICT_NUMBER.fullmatch(written) else (f"read {written[:LONGEST_SHOWN]} as a number",)
        return Literal(_number(written), number.end(), odd)
    word = WORD.match(text, at)
    if not word:
        return None
    written = word[0]
    if written in _WORDS:
        return Literal(_WORDS[written], word.end())
    if written in _FOREIGN_WORDS:
        value = _FOREIGN_WORDS[written]
        return Literal(value, word.end(), (f"read {written} as {json.dumps(value)}",))
    return Literal(written, word.end(), (f"put quotes around {written[:LONGEST_SHOWN]}",))


def _number(written: str) -> int | float:
    if written.lstrip("+-").isdigit() and len(written) <= 400:
        return int(written)
    return float(written)  # what is too large becomes infinite
