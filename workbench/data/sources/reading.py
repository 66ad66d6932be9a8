"""Read a source an item at a time: blocks of text, records, and blocks of ready token ids.

Invariant: memory holds one item, however large the source is; whatever cannot be read becomes a ConfigurationError or
a record with an error, with the file and the line or row.
"""

from __future__ import annotations

import codecs
import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from workbench.data import RecordError, kind_of
from workbench.data.sources import DAMAGED, Document, SourceFiles, open_bytes
from workbench.data.sources.tables import hub_rows, parquet_rows
from workbench.data.split import TRAINING, VALIDATION, document_share
from workbench.data.tokenizers import ByteTokenizer, Tokenizer, text_blocks
from workbench.errors import ConfigurationError
from workbench.system.foreign import parse_json

_CHUNK_BYTES = 1 << 18
_CHUNK_ITEMS = 1024
_READ_BYTES = 1 << 20
LONGEST = 1 << 28
"""Bytes of the longest record. A file with a longer one is taken for something other than records."""
_BLANKS = " \t\r\n"
_TOKENS = 1 << 20
"""Ready tokens in a block."""

T = TypeVar("T")


@dataclass(frozen=True)
class TextBlock:
    """A text document, or a part of a long one."""

    text: str | bytes
    """Bytes for the byte tokenizer, else a str."""
    share: float
    """Decides the side, see `workbench.data.split`."""
    begins: bool
    """The document begins with this block."""
    ends: bool


@dataclass(frozen=True)
class Record:
    """A JSON object or a row of a table: one document."""

    place: str
    """File and line, or file and number, for messages."""
    source: bytes
    """The bytes that decide the side; a JSON line's own bytes."""
    value: Any = None
    """The parsed record; None if `source` is still to be parsed."""
    error: str = ""
    """The reason why there is no record here; empty if there is one."""

    def parsed(self) -> Any:
        """Return the record's fields. Raises RecordError if there is no record."""
        if self.error:
            raise RecordError(self.error)
        return parse_object(self.source) if self.value is None else self.value


@dataclass(frozen=True)
class TokenBlock:
    """Token ids of a .npy file, all for one side. Documents in it end with the end of text."""

    ids: Any
    """uint16 or uint32 [tokens]."""
    share: float
    begins: bool
    """A document begins with this block."""
    ends: bool
    """The side's part of the file ends with this block."""


Item = TextBlock | Record | TokenBlock
Chunk = tuple[list[Item], int]
"""Items, and the bytes of the source that they stand for."""


class SourceReader:
    """Reads `source`.

    Args:
        tokenizer: decides whether text is read as bytes, and where ready tokens are cut. Without one, ready tokens are
            left out.
        validation_fraction: the fraction of ready tokens that is held out.
    """

    def __init__(
        self, source: SourceFiles, tokenizer: Tokenizer | None = None, validation_fraction: float = 0.0
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._fraction = validation_fraction
        self.total = sum(d.size for d in source.documents) + sum(map(_hub_bytes, source.hub.values()))
        """Bytes of the source on the disk."""
        self.notes: dict[str, None] = {}
        """Sentences for the user about what was read so far."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield all items in chunks that are worth a thread's call; their sizes add up to `total`.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        chunk: list[Item] = []
        size = held = 0
        for item, part in self._sized_items():
            chunk.append(item)
            size += part
            held += _item_bytes(item)
            if held >= _CHUNK_BYTES or len(chunk) >= _CHUNK_ITEMS:
                yield chunk, size
                chunk, size, held = [], 0, 0
        if chunk:
            yield chunk, size

    def records(self) -> Iterator[Iterator[Record]]:
        """Yield an iterator over the records for every file and dataset that holds records."""
        for document in self._source.documents:
            if document.kind not in ("text", "tokens"):
                yield _records(document)
        for name, dataset in self._source.hub.items():
            yield _rows(hub_rows(name, dataset))

    def _sized_items(self) -> Iterator[tuple[Item, int]]:
        for document in self._source.documents:
            yield from _sized(self._items(document), document.size)
        for name, dataset in self._source.hub.items():
            yield from _sized(_rows(hub_rows(name, dataset)), _hub_bytes(dataset))

    def _items(self, document: Document) -> Iterator[Item]:
        if document.kind == "text":
            return self._text(document)
        if document.kind == "tokens":
            if self._tokenizer is None:
                return iter(())
            return _token_blocks(document, self._tokenizer, self._fraction)
        return _records(document)

    def _text(self, document: Document) -> Iterator[TextBlock]:
        share = document_share(document.name)
        with _opened(document) as file:
            pieces: Iterable[str | bytes] = iter(lambda: file.read(_READ_BYTES), b"")
            if not isinstance(self._tokenizer, ByteTokenizer):
                pieces = text_blocks(self._decoded(file, document.path))
            begins = True
            for text, ends in _with_last(pieces):
                yield TextBlock(text, share, begins, ends)
                begins = False

    def _decoded(self, file: BinaryIO, path: Path) -> Iterator[str]:
        """Yield the text of `file`; a file that is not UTF-8 gets a note, and U+FFFD for the wrong bytes."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        data = None
        while data != b"":
            data = file.read(_READ_BYTES)
            state = decoder.getstate()
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError:
                self.notes[f"{path} is not all UTF-8: U+FFFD stands for the rest"] = None
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
                decoder.setstate(state)
                text = decoder.decode(data, final=not data)
            if text:
                yield text


@contextlib.contextmanager
def _opened(document: Document) -> Iterator[BinaryIO]:
    """Open a document's file, decompressed. Errors of opening and reading it become a ConfigurationError."""
    try:
        with open_bytes(document.path, document.compression) as file:
            yield file
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"data.source: {document.path} cannot be read: {reason}") from error


def _records(document: Document) -> Iterator[Record]:
    if document.kind == "lines":
        return _lines(document)
    if document.kind == "array":
        return _array(document)
    return _rows(parquet_rows(document.path))


def _lines(document: Document) -> Iterator[Record]:
    with _opened(document) as file:
        for number, line in json_lines(file):
            place = f"{document.path}:{number}"
            if len(line) > LONGEST:
                what = f"the line has more than {LONGEST >> 20} MiB: expected a JSON object on each line"
                yield Record(place, b"", error=what)
            else:
                yield Record(place, line)


def _array(document: Document) -> Iterator[Record]:
    number = 0
    with _opened(document) as file:
        try:
            for source, value in array_items(file):
                number += 1
                place, content = f"{document.path}: record {number}", source.encode("utf-8", "surrogatepass")
                try:
                    yield Record(place, content, as_object(value))
                except RecordError as error:
                    yield Record(place, content, error=str(error))
        except RecordError as error:
            yield Record(f"{document.path}: record {number + 1}", b"", error=str(error))


def _rows(rows: Iterable[tuple[str, Any]]) -> Iterator[Record]:
    for place, row in rows:
        content = json.dumps(row, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")
        yield Record(place, content, row)


def _hub_bytes(dataset: Any) -> int:
    """Return the bytes of a hub dataset's table, at least 1."""
    return max(1, int(dataset.data.nbytes))


def _token_blocks(
    document: Document, tokenizer: Tokenizer, validation_fraction: float
) -> Iterator[TokenBlock]:
    """Yield the ids of a .npy file. Its last `validation_fraction` is for validation.

    Raises:
        ConfigurationError: the file cannot be read, or an id is outside the tokenizer's vocabulary.
    """
    try:
        tokens = np.load(document.path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigurationError(f"data.source: {document.path} cannot be read: {error}") from error
    border = _border(tokens, tokenizer.end_of_text, validation_fraction)
    for start, stop, share in ((0, border, TRAINING), (border, len(tokens), VALIDATION)):
        for begin, end in pairwise([*range(start, stop, _TOKENS), stop]):
            ids = np.array(tokens[begin:end])
            if int(ids.max()) >= tokenizer.vocabulary_size:
                place = begin + int(ids.argmax())
                raise ConfigurationError(
                    f"data.source: {document.path}: token {place} is {int(ids.max()):,}, and the vocabulary of "
                    f'data.tokenizer = "{tokenizer.spec}" has {tokenizer.vocabulary_size:,}; name the tokenizer that '
                    "the tokens were made with"
                )
            begins = begin == start or int(tokens[begin - 1]) == tokenizer.end_of_text
            yield TokenBlock(ids, share, begins, end == stop)


def _border(tokens: Any, end_of_text: int, validation_fraction: float) -> int:
    """Return the index at which validation begins.

    It is the beginning of the document nearest to the fraction's place, if one holds out between half and twice the
    fraction, else the place itself.
    """
    count = len(tokens)
    wanted = max(1, round(count * validation_fraction))
    at = count - wanted
    first, last = max(1, at - wanted), min(count - 1, at + wanted // 2)
    begins = first + np.flatnonzero(tokens[first - 1 : last] == end_of_text)
    return int(begins[np.abs(begins - at).argmin()]) if len(begins) else at


def _item_bytes(item: Item) -> int:
    """Return about how many bytes an item has."""
    if isinstance(item, TokenBlock):
        return int(item.ids.nbytes)
    return len(item.text if isinstance(item, TextBlock) else item.source)


def _sized(items: Iterable[Item], total: int) -> Iterator[tuple[Item, int]]:
    """Yield `items` with sizes that add up to `total`: a compressed file holds more bytes than it has on the disk."""
    left = total
    for item, is_last in _with_last(items):
        size = left if is_last else min(_item_bytes(item), left)
        left -= size
        yield item, size


def _with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Yield each of `items`, and True with the last one."""
    iterator = iter(items)
    for item in iterator:
        for following in iterator:
            yield item, False
            item = following
        yield item, True


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in `line`. Raises RecordError if there is none."""
    try:
        return as_object(parse_json(line))
    except UnicodeDecodeError as error:
        raise RecordError(f"byte {error.start + 1} of the line is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:
        raise RecordError(f"not JSON that can be read: {error}") from error


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
    text = _JsonText(file)
    text.take("\ufeff")
    if not text.take("["):
        raise RecordError("expected an array of objects")
    is_first = True
    while not text.take("]"):
        if not is_first and not text.take(","):
            raise RecordError("not JSON: expected a comma or the end of the array")
        is_first = False
        yield text.value()


class _JsonText:
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
                    raise RecordError(f"not JSON: {error.msg}") from error
                continue
            except (ValueError, RecursionError) as error:
                raise RecordError(f"not JSON that can be read: {error}") from error
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
