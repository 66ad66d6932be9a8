"""Where each key stands in a TOML text, so that an error can name the line.

Not a parser of values: it is given texts that `tomllib` has already accepted, and only walks over them. On a
text that it does not understand it stops early and returns what it has found; it raises nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import suppress

KeyPath = tuple[str | int, ...]
"""The names from the top of the document to a value; an element of an array has its index."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
_STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every key, table and array element of `text`, by its path."""
    walker = _Walker(text)
    with suppress(_NotUnderstoodError, RecursionError):
        walker.walk()
    starts = [match.end() for match in re.finditer("\n", text)]
    return {path: bisect_right(starts, at) + 1 for path, at in walker.positions.items()}


class _NotUnderstoodError(Exception):
    """The walk met something that valid TOML does not have there."""


class _Walker:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.positions: dict[KeyPath, int] = {}
        self._tables_in_array: dict[KeyPath, int] = {}

    def walk(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> KeyPath:
        start = self.at
        in_array = self.text.startswith("[[", self.at)
        self.at += 2 if in_array else 1
        path = self._key()
        self._expect("]]" if in_array else "]")
        self._note_all((), path, start)
        if in_array:
            index = self._tables_in_array.get(path, -1) + 1
            self._tables_in_array[path] = index
            path = (*path, index)
            self.positions[path] = start
        return path

    def _pair(self, table: KeyPath) -> None:
        start = self.at
        key = self._key()
        self._expect("=")
        self._note_all(table, key, start)
        self._value(table + key)

    def _note_all(self, table: KeyPath, key: KeyPath, start: int) -> None:
        """Note a dotted key and each table that it names on the way; the first mention of a table counts."""
        for length in range(1, len(key)):
            self.positions.setdefault(table + key[:length], start)
        self.positions[table + key] = start

    def _key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(self._key_part())
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _key_part(self) -> str:
        bare = _BARE_KEY.match(self.text, self.at)
        if bare:
            self.at = bare.end()
            return bare.group()
        return self._string()[1:-1]

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACE)
        opening = self.text[self.at : self.at + 1]
        if opening in ('"', "'"):
            self._string()
        elif opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            self._match(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        self._skip(_BLANK)
        while not self.text.startswith("]", self.at):
            element = (*path, index)
            self.positions[element] = self.at
            self._value(element)
            index += 1
            self._skip(_BLANK)
            if self.text.startswith(",", self.at):
                self.at += 1
            self._skip(_BLANK)
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        self._skip(_BLANK)
        while not self.text.startswith("}", self.at):
            self._pair(path)
            self._skip(_BLANK)
            if self.text.startswith(",", self.at):
                self.at += 1
            self._skip(_BLANK)
        self.at += 1

    def _string(self) -> str:
        for form in _STRINGS:
            found = form.match(self.text, self.at)
            if found:
                self.at = found.end()
                return found.group()
        raise _NotUnderstoodError

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()

    def _match(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if not found:
            raise _NotUnderstoodError
        self.at = found.end()

    def _expect(self, mark: str) -> None:
        self._skip(_SPACE)
        if not self.text.startswith(mark, self.at):
            raise _NotUnderstoodError
        self.at += len(mark)
