"""JSON files read a record at a time: one object a line, or one array of objects, however long the file is."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from workbench.data.records.record_error import kind_of

LONGEST = 1 << 28
"""Bytes of one line. Longer ones are taken for a file that is no JSON lines."""
_READ_BYTES = 1 << 20
_BYTE_ORDER_MARK = "\ufeff"


class MalformedJsonError(Exception):
    """Why what should have been a record is none."""


Found = dict[str, Any] | MalformedJsonError
"""A record, or what is wrong with it."""


def json_lines(file: BinaryIO, begin: int, end: int | None) -> Iterator[tuple[int, bytes, Found]]:
    """The objects on the lines that begin at `begin`, where `file` stands, up to `end` (None: all of them).

    Yields how many lines stand between `begin` and the line, its bytes, and what it says. Blank lines are passed over;
    behind a line without an end nothing is looked for.
    """
    at, before = begin, 0
    while end is None or at < end:
        line = file.readline(LONGEST + 1)
        if not line:
            return
        if len(line) > LONGEST:
            what = f"the line has more than {LONGEST >> 20} MiB: expected a JSON object on each line"
            yield before, b"", MalformedJsonError(what)
            return
        content = line.removeprefix(codecs.BOM_UTF8) if at == 0 else line
        content = content.strip()
        if content:
            yield before, content, _object(content)
        at += len(line)
        before += 1


def _object(line: bytes) -> Found:
    try:
        return _checked(json.loads(line))
    except UnicodeDecodeError as error:
        return MalformedJsonError(f"byte {error.start + 1} of the line is not UTF-8")
    except json.JSONDecodeError as error:
        return MalformedJsonError(f"no JSON: {error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError) as error:
        return MalformedJsonError(f"no JSON that can be read: {error}")


def _checked(value: Any) -> Found:
    if not isinstance(value, dict):
        return MalformedJsonError(f"expected a JSON object with fields, not {kind_of(value)}")
    return value


def array_items(file: BinaryIO) -> Iterator[tuple[int, str, Found]]:
    """The objects of a JSON array: the index, the text and the value of each.

    Behind what is no JSON nothing is looked for.
    """
    text = _Text(file)
    text.skip(_BYTE_ORDER_MARK)
    if not text.take("["):
        yield 0, "", MalformedJsonError("expected an array of objects")
        return
    index = 0
    while not text.take("]"):
        if index and not text.take(","):
            yield index, "", MalformedJsonError("no JSON: expected a comma or the end of the array")
            return
        try:
            source, value = text.value()
        except MalformedJsonError as error:
            yield index, "", error
            return
        yield index, source, _checked(value)
        index += 1


class _Text:
    """The text of a file, of which no more is held than the value that is being read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._json = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._ended = False

    def take(self, character: str) -> bool:
        """Go over blanks, and over `character` if it comes next."""
        self.skip(" \t\r\n")
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def skip(self, characters: str) -> None:
        while True:
            while self._at < len(self._text) and self._text[self._at] in characters:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return

    def value(self) -> tuple[str, Any]:
        """The text and the value of what comes next. Raises MalformedJsonError."""
        self.skip(" \t\r\n")
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > LONGEST or not self._more():
                    raise MalformedJsonError(f"no JSON: {error.msg}") from error
                continue
            except (ValueError, RecursionError) as error:
                raise MalformedJsonError(f"no JSON that can be read: {error}") from error
            source = self._text[self._at : end]
            self._at = end
            return source, value

    def _more(self) -> bool:
        """Read on, twice as much each time that a value is not whole yet; False at the end."""
        if self._ended:
            return False
        wanted = max(_READ_BYTES, len(self._text) - self._at)
        data = self._file.read(wanted)
        self._ended = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=not data)
        self._at = 0
        return True
