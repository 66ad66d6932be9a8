"""A source cut into parts, each of which is encoded by itself: by any thread, in any order, and once.

Invariant: the parts follow from the source alone, never from the machine, so that a preparation that was killed finds
the parts that are done. A text longer than a piece is cut at multiples of `WHOLE` from its beginning, whatever the
parts are, so that the tokens do not depend on them either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.data.sources import Document
from workbench.data.split import Piece, document_share
from workbench.data.tokenizers.pretrained_tokenizer import WHOLE

_PARTS = 64
"""A small source has so many parts, for as many threads."""
_SMALLEST, _LARGEST = 1 << 18, 1 << 24
"""Bytes of text in a part."""

TRAINING, VALIDATION = 2.0, -1.0
"""The shares of what goes to one side whatever the fraction is."""


@dataclass(frozen=True)
class TextSpan:
    """Bytes `begin` to `end` of a text that goes from `start` to `stop` of its file."""

    path: Path
    start: int
    stop: int
    begin: int
    end: int
    share: float


@dataclass(frozen=True)
class TextPart:
    spans: tuple[TextSpan, ...]

    @property
    def size(self) -> int:
        return sum(span.end - span.begin for span in self.spans)


@dataclass(frozen=True)
class CompressedTextPart:
    """A whole compressed text: there is no beginning in its middle."""

    path: Path
    compression: str
    size: int
    share: float


@dataclass(frozen=True)
class LinesPart:
    """The JSON lines that begin in bytes `begin` to `end`; all of a compressed file, whose bytes these are not."""

    path: Path
    compression: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class ArrayPart:
    """A JSON file that is one array of records."""

    path: Path
    compression: str
    size: int


@dataclass(frozen=True)
class ParquetPart:
    path: Path
    row_group: int
    first_row: int
    size: int


@dataclass(frozen=True)
class HubPart:
    """Rows `begin` to `end` of a dataset of the hub."""

    name: str
    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class TokensPart:
    """Tokens `begin` to `end` of an array of tokens; those from `start` to `stop` go to the side of `share`."""

    path: Path
    start: int
    stop: int
    begin: int
    end: int
    share: float
    size: int


Part = TextPart | CompressedTextPart | LinesPart | ArrayPart | ParquetPart | HubPart | TokensPart


def part_bytes(total: int) -> int:
    """Bytes of text in one part of a source of `total` bytes: a multiple of the pieces that a text is encoded in."""
    wanted = min(max(total // _PARTS, _SMALLEST), _LARGEST)
    return -(-wanted // WHOLE) * WHOLE


def text_parts(texts: Iterable[tuple[Piece, float]], length: int) -> Iterator[TextPart]:
    """Texts with their shares, in parts of about `length` bytes."""
    spans: list[TextSpan] = []
    room = length
    for piece, share in texts:
        begin = piece.start
        while begin < piece.stop:
            # A long text is cut at multiples of the piece length alone; what is short goes on in the same part.
            whole = max(room // WHOLE, 0 if spans else 1) * WHOLE
            end = piece.stop if piece.stop - begin <= max(room, whole) else begin + whole
            if end > begin:
                path = piece.document.path
                spans.append(TextSpan(path, piece.start, piece.stop, begin, end, share))
                room -= end - begin
                begin = end
            if begin < piece.stop or room <= 0:
                yield TextPart(tuple(spans))
                spans, room = [], length
    if spans:
        yield TextPart(tuple(spans))


def parts_of_files(
    documents: Sequence[Document], texts: dict[Document, list[tuple[Piece, float]]]
) -> list[Part]:
    """The parts of `documents`, in their order.

    Args:
        texts: of every text that is not compressed, the pieces to be taken with their shares.
    """
    length = part_bytes(sum(document.size for document in documents))
    parts: list[Part] = []
    waiting: list[tuple[Piece, float]] = []
    for document in documents:
        if document in texts:
            waiting += texts[document]
            continue
        parts += text_parts(waiting, length)
        waiting = []
        parts += _parts_of(document, length)
    parts += text_parts(waiting, length)
    return parts


def _parts_of(document: Document, length: int) -> Iterator[Part]:
    path, size, compression = document.path, document.size, document.compression
    if document.kind == "text":
        yield CompressedTextPart(path, compression, size, document_share(document.name))
    elif document.kind == "array":
        yield ArrayPart(path, compression, size)
    elif document.kind == "lines":
        step = size if compression else length
        for begin in range(0, size, step):
            yield LinesPart(path, compression, begin, min(begin + step, size))
    elif document.kind == "parquet":
        from workbench.data.sources.tables import parquet_parts

        yield from parquet_parts(path)
    else:
        raise AssertionError(document.kind)
