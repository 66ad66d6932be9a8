"""What a part of a source holds, as bytes of text or as records, some at a time.

Invariant: whatever cannot be read is a ConfigurationError that names the file, and the line or row where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from workbench.data.parts import ArrayPart, HubPart, LinesPart, ParquetPart, TextSpan
from workbench.data.sources.file_kinds import damaged, open_bytes
from workbench.data.sources.json_files import Found, MalformedJsonError, array_items, json_lines
from workbench.errors import ConfigurationError

READ_BYTES = 1 << 20
_INSIDE = bytes(range(0x80, 0xC0))
"""The bytes that continue a UTF-8 character."""

RecordPart = LinesPart | ArrayPart | ParquetPart | HubPart


@dataclass(frozen=True)
class Record:
    """A record as its source has it, with the bytes that decide its side."""

    value: Mapping[str, Any]
    content: bytes
    place: Callable[[], str]
    """Says where it stands; asked only when something is wrong with it."""
    wrong: str = ""
    """Why it is no record, and has no value."""


def records_of(part: RecordPart, hub: Mapping[str, Any]) -> Iterator[tuple[Record, int]]:
    """The records of a part, each with about how many bytes it has. `hub`: the datasets that parts name.

    Raises ConfigurationError for what is no record.
    """
    for record, length in every_record(part, hub):
        if record.wrong:
            raise ConfigurationError(f"data.source: {record.place()}: {record.wrong}")
        yield record, length


def every_record(part: RecordPart, hub: Mapping[str, Any]) -> Iterator[tuple[Record, int]]:
    """`records_of` with what is no record among them."""
    if isinstance(part, LinesPart):
        return _lines(part)
    if isinstance(part, ArrayPart):
        return _items(part)
    return _rows(part, hub)


def _rows(part: ParquetPart | HubPart, hub: Mapping[str, Any]) -> Iterator[tuple[Record, int]]:
    from workbench.data.sources.tables import hub_rows, parquet_rows

    rows: Iterable[tuple[str, Mapping[str, Any]]]
    rows = parquet_rows(part) if isinstance(part, ParquetPart) else hub_rows(part, hub[part.name])
    for place, row in rows:
        content = json.dumps(row, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")
        yield Record(row, content, partial(str, place)), len(content)


def _lines(part: LinesPart) -> Iterator[tuple[Record, int]]:
    def place(before: int) -> str:
        return f"{part.path}:{1 + before + (_count_lines(part.path, begin) if part.begin else 0)}"

    begin = part.begin
    with opened(part.path, part.compression) as file, damaged(part.path):
        if part.begin:
            file.seek(part.begin - 1)
            begin += len(file.readline()) - 1
        end = None if part.compression else part.end
        for before, line, found in json_lines(file, begin, end):
            yield _record(found, line, partial(place, before)), len(line)


def _items(part: ArrayPart) -> Iterator[tuple[Record, int]]:
    def place(index: int) -> str:
        return f"{part.path}: record {index + 1}"

    with opened(part.path, part.compression) as file, damaged(part.path):
        for index, text, found in array_items(file):
            content = text.encode("utf-8", "surrogatepass")
            yield _record(found, content, partial(place, index)), len(content)


def _record(found: Found, content: bytes, place: Callable[[], str]) -> Record:
    if isinstance(found, MalformedJsonError):
        return Record({}, content, place, str(found))
    return Record(found, content, place)


def character(span: TextSpan, at: int) -> int:
    """The next place after `at` where a UTF-8 character begins."""
    if not span.start < at < span.stop:
        return at
    ahead = read_bytes(span.path, at, min(at + 3, span.stop))
    return at + len(ahead) - len(ahead.lstrip(_INSIDE))


def _count_lines(path: Path, stop: int) -> int:
    count = 0
    with path.open("rb") as file:
        while stop > 0 and (data := file.read(min(stop, READ_BYTES))):
            count += data.count(b"\n")
            stop -= len(data)
    return count


def opened(path: Path, compression: str = "") -> BinaryIO:
    try:
        return open_bytes(path, compression)
    except OSError as error:
        raise unreadable(path, error) from error


def read_compressed(file: BinaryIO, path: Path) -> bytes:
    with damaged(path):
        return file.read(READ_BYTES)


def read_bytes(path: Path, begin: int, end: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) < end - begin:
        raise ConfigurationError(f"data.source: {path} became shorter while it was read")
    return data


def unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"data.source: {path} cannot be read: {error.strerror or error}")
