"""JSON files, read a record at a time however long the file is: an object a line, or one array of objects."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from workbench.data.record_errors import RecordError, kind_of

LONGEST = 1 << 28
"""Bytes of the longest record. A file with a longer one is taken for something other than records."""
_READ_BYTES = 1 << 20
_BLANKS = " \t\r\n"


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in `line`. Raises RecordError if there is none."""
    try:
        return as_object(json.loads(line))
    except UnicodeDecodeError as error:
        raise RecordError(f"byte {error.start + 1} of the line is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"no JSON: {error.msg} at character {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON that can be read: {error}") from error


def as_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object. Raises RecordError if it is not."""
    if not isinstance(value, dict):
        raise RecordError(f"expected a JSON object with fields, not {kind_of(value)}")
    return value


def json_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the bytes of each line that is not blank.

    A line longer than `LONGEST` is the last one, cut to LONGEST + 1 bytes.
    """
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > LONGEST:
            yield number, line
            return
        if content := line.strip():
            yield number, content


def array_items(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield the source text and the value of each item of a JSON array.

    Raises:
        RecordError: the next item is no JSON, or the array does not go on as one.
    """
    text = _Text(file)
    text.take("\ufeff")
    if not text.take("["):
        raise RecordError("expected an array of objects")
    is_first = True
    while not text.take("]"):
        if not is_first and not text.take(","):
            raise RecordError("no JSON: expected a comma or the end of the array")
        is_first = False
        yield text.value()


class _Text:
    """The text of a file, of which no more is held than the value that is being read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._json = json.JSONDecoder()
        self._text = ""
        self._at = 0

    def take(self, character: str) -> bool:
        """Skip white space, then `character`. Return whether it was there."""
        self._skip_blanks()
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def value(self) -> tuple[str, Any]:
        """Return the source text and the value of the JSON that comes next. Raises RecordError."""
        self._skip_blanks()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > LONGEST or not self._read_on():
                    raise RecordError(f"no JSON: {error.msg}") from error
                continue
            except (ValueError, RecursionError) as error:
                raise RecordError(f"no JSON that can be read: {error}") from error
            source = self._text[self._at : end]
            self._at = end
            return source, value

    def _skip_blanks(self) -> None:
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or not self._read_on():
                return

    def _read_on(self) -> bool:
        """Read more, at least as much as is held, so that a long value takes few attempts. Return False at the end."""
        data = self._file.read(max(_READ_BYTES, len(self._text) - self._at))
        if not data:
            return False
        self._text = self._text[self._at :] + self._decoder.decode(data)
        self._at = 0
        return True
