"""The prepared folder: token ids on the disk, ready to be memory-mapped.

    train.tokens, validation.tokens         uint16 or uint32, little-endian: the documents one after the other
    train.documents, validation.documents   uint64, little-endian: the first token of each document, ascending from 0
    train.loss_mask, validation.loss_mask   uint8, 1 for each token in the loss; absent if every token is
    tokens.json                             the header: format, sizes, tokenizer, fingerprint

`StreamWriter` takes the encoded source in order, whatever the sides; `divide` copies it to the two sides.

Invariant: no document or token is lost, except the end of text after the last text of a side, which separates nothing;
none is added, except an end of text after the first part of a document that is cut. Memory does not grow with the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from workbench.data.split import Sides, choose_sides
from workbench.data.tokenizers import Tokenizer
from workbench.errors import ConfigurationError
from workbench.system.files import sync, write_atomically
from workbench.system.foreign import as_kind, parse_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 3
SIDES = ("train", "validation")
DOCUMENT = np.dtype([("tokens", "<u8"), ("share", "<f8"), ("is_text", "u1"), ("is_masked", "u1")])
"""A document of the stream. `is_text`: its last token is an end of text that only separates it from the next document.
`is_masked`: it has a loss mask, and so may not be cut."""
_DTYPES = {2: "uint16", 4: "uint32"}
_READ_BYTES = 1 << 20
_COPY_TOKENS = 1 << 22
_COPY_DOCUMENTS = 1 << 18


@dataclass(frozen=True)
class Header:
    """The content of tokens.json."""

    tokenizer: str
    tokenizer_fingerprint: str
    vocabulary_size: int
    train_tokens: int
    train_documents: int
    validation_tokens: int
    validation_documents: int
    documents: int
    """Documents on both sides; one that is cut counts once."""
    has_loss_mask: bool
    fingerprint: str
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""
    version: int = FORMAT_VERSION
    dtype: str = "uint16"
    byte_order: str = "little"

    @property
    def token_bytes(self) -> int:
        return 2 if self.dtype == "uint16" else 4

    @property
    def held_out(self) -> float:
        """The fraction of the tokens that is for validation."""
        return self.validation_tokens / (self.train_tokens + self.validation_tokens)

    def sizes(self) -> dict[str, int]:
        """Return the folder's files, each with its size in bytes."""
        sizes = {}
        for side in SIDES:
            tokens = getattr(self, f"{side}_tokens")
            sizes[f"{side}.tokens"] = tokens * self.token_bytes
            sizes[f"{side}.documents"] = getattr(self, f"{side}_documents") * 8
            if self.has_loss_mask:
                sizes[f"{side}.loss_mask"] = tokens
        return sizes


def token_dtype(tokenizer: Tokenizer) -> Any:
    """Return the NumPy type that holds every id of `tokenizer`: uint16 or uint32, little-endian."""
    return np.dtype("<u2" if tokenizer.vocabulary_size <= 1 << 16 else "<u4")


@dataclass
class Encoded:
    """A part of the source as tokens."""

    ids: Any
    """[tokens] of the tokenizer's `token_dtype`."""
    mask: Any | None
    """uint8 [tokens], 1 for a token in the loss; None if every token is."""
    documents: Any
    """DOCUMENT [documents]."""
    continues: bool
    """The first of `documents` belongs to the last document of the part before."""


class StreamWriter:
    """Takes the parts of an encoded source in order and keeps them in files in `folder`."""

    def __init__(self, folder: Path, dtype: Any) -> None:
        self._folder = folder
        self._dtype = dtype
        self._files = contextlib.ExitStack()
        self._tokens = self._open("tokens")
        self._table = self._open("documents")
        self._mask: BinaryIO | None = None
        self._last = np.empty(0, DOCUMENT)
        self._count = 0

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
        for suffix in ("tokens", "documents", "loss_mask"):
            self._path(suffix).unlink(missing_ok=True)

    def append(self, part: Encoded) -> None:
        """Raises OSError if the disk is full."""
        self._tokens.write(part.ids)
        if part.mask is not None and self._mask is None:
            self._mask = self._open("loss_mask")
            _write_ones(self._mask, self._count)
        if self._mask is not None and part.mask is not None:
            self._mask.write(part.mask)
        elif self._mask is not None:
            _write_ones(self._mask, len(part.ids))
        self._count += len(part.ids)
        documents = part.documents
        if part.continues:
            self._last["tokens"] += documents["tokens"][0]
            documents = documents[1:]
        if len(documents):
            self._table.write(self._last.tobytes())
            self._table.write(documents[:-1].tobytes())
            self._last = documents[-1:].copy()

    def divide(self, tokenizer: Tokenizer, fraction: float, notes: Sequence[str]) -> Header:
        """Write the prepared folder's files beside the stream and return their header, which is on the disk last.

        Raises:
            OSError: the files cannot be written.
            ConfigurationError: the stream has no document, or only one that may not be cut.
        """
        self._table.write(self._last.tobytes())
        self._files.close()
        if not self._path("documents").stat().st_size:
            raise ConfigurationError("data.source has no text: its records and files are empty")
        table = np.memmap(self._path("documents"), DOCUMENT, "r")
        sides = _sides(table, fraction)
        ids = np.memmap(self._path("tokens"), self._dtype, "r")
        mask = None if self._mask is None else np.memmap(self._path("loss_mask"), np.uint8, "r")
        with (
            _Side(self._folder, "train", ids, mask) as train,
            _Side(self._folder, "validation", ids, mask) as held,
        ):
            if sides.cut < 0:
                _copy(table, sides.held, (train, held), 0, 0, len(table))
            else:
                at = _copy(table, sides.held, (train, held), 0, 0, sides.cut)
                stop = at + int(table["tokens"][sides.cut])
                is_text = bool(table["is_text"][sides.cut])
                train.copy(at, stop - sides.tail, np.array([at]), is_text=False)
                train.end_text(tokenizer.end_of_text)
                held.copy(stop - sides.tail, stop, np.array([stop - sides.tail]), is_text=is_text)
                _copy(table, sides.held, (train, held), stop, sides.cut + 1, len(table))
        header = Header(
            tokenizer=tokenizer.spec,
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocabulary_size=tokenizer.vocabulary_size,
            train_tokens=train.tokens,
            train_documents=train.documents,
            validation_tokens=held.tokens,
            validation_documents=held.documents,
            documents=len(table),
            has_loss_mask=mask is not None,
            fingerprint=_fingerprint(self._folder, tokenizer, (train, held)),
            notes=list(notes),
            dtype=_DTYPES[self._dtype.itemsize],
        )
        _write_header(self._folder, header)
        return header

    def _path(self, suffix: str) -> Path:
        return self._folder / f"stream.{suffix}"

    def _open(self, suffix: str) -> BinaryIO:
        return self._files.enter_context(self._path(suffix).open("wb"))


def _sides(table: Any, fraction: float) -> Sides:
    tokens = table["tokens"]
    if fraction in (0.0, 1.0):
        return Sides(np.full(len(table), fraction == 1.0))
    if len(table) == 1:
        if table["is_masked"][0]:
            raise ConfigurationError(
                "data.source has one record only: training and validation need one each; add records"
            )
        # The end of text after it separates nothing, and so does not count.
        length = int(tokens[0]) - int(table["is_text"][0])
        tail = min(max(1, round(length * fraction)), max(length - 1, 0)) + int(table["is_text"][0])
        return Sides(np.zeros(1, bool), 0, tail)
    return choose_sides(table["share"], tokens, table["is_masked"] == 0, fraction)


class _Side:
    """The files of one side, to which ranges of the stream are copied."""

    def __init__(self, folder: Path, name: str, ids: Any, mask: Any | None) -> None:
        self.tokens = self.documents = 0
        self.paths = [folder / f"{name}.tokens"] + ([] if mask is None else [folder / f"{name}.loss_mask"])
        self._arrays = [ids] if mask is None else [ids, mask]
        self._files = contextlib.ExitStack()
        self._outputs: list[BinaryIO] = [self._files.enter_context(path.open("wb")) for path in self.paths]
        self._starts: BinaryIO = self._files.enter_context((folder / f"{name}.documents").open("wb"))
        self._last = (0, False)

    def __enter__(self) -> _Side:
        return self

    def __exit__(self, *_: object) -> None:
        begin, is_text = self._last
        if is_text and self.tokens - begin > 1:
            # The end of text after the last text separates nothing.
            self.tokens -= 1
            for output, array in zip(self._outputs, self._arrays, strict=True):
                output.truncate(self.tokens * array.itemsize)
        self._files.close()

    def copy(self, start: int, stop: int, starts: Any, *, is_text: bool) -> None:
        """Append tokens `start` to `stop` of the stream, with documents at `starts`; `is_text` is of the last one."""
        for first in range(start, stop, _COPY_TOKENS):
            for output, array in zip(self._outputs, self._arrays, strict=True):
                output.write(array[first : min(first + _COPY_TOKENS, stop)])
        begins = starts + (self.tokens - start)
        self._starts.write(begins.astype("<u8"))
        self._last = (int(begins[-1]), is_text)
        self.tokens += stop - start
        self.documents += len(starts)

    def end_text(self, end_of_text: int) -> None:
        """Append an end of text to the last document, which is a text from now on."""
        for output, array, value in zip(self._outputs, self._arrays, (end_of_text, 1), strict=False):
            output.write(np.array([value], array.dtype).tobytes())
        self.tokens += 1
        self._last = (self._last[0], True)


def _copy(table: Any, held: Any, sides: tuple[_Side, _Side], at: int, first: int, last: int) -> int:
    """Copy documents `first` to `last`, which begin at token `at`, to their sides. Return the token after them."""
    for begin in range(first, last, _COPY_DOCUMENTS):
        rows = table[begin : min(begin + _COPY_DOCUMENTS, last)]
        stops = at + np.cumsum(rows["tokens"].astype(np.int64))
        starts = np.append(at, stops[:-1])
        side = held[begin : begin + len(rows)]
        for a, b in pairwise([0, *(np.flatnonzero(np.diff(side)) + 1).tolist(), len(rows)]):
            sides[int(side[a])].copy(
                int(starts[a]), int(stops[b - 1]), starts[a:b], is_text=bool(rows["is_text"][b - 1])
            )
        at = int(stops[-1])
    return at


def _write_ones(file: BinaryIO, count: int) -> None:
    for first in range(0, count, _READ_BYTES):
        file.write(b"\1" * min(_READ_BYTES, count - first))


def _fingerprint(folder: Path, tokenizer: Tokenizer, sides: Sequence[_Side]) -> str:
    """Return a hash of the tokens and loss masks of both sides and of what the ids mean. Raises OSError."""
    kind = tokenizer.spec
    if kind != "bytes":
        kind = f"{tokenizer.vocabulary_size} {tokenizer.end_of_text}"
    digest = hashlib.blake2b(f"1 {kind}".encode(), digest_size=16)
    for paths in zip(*(side.paths for side in sides), strict=True):
        for side, path in zip(sides, paths, strict=True):
            with path.open("rb") as file:
                while data := file.read(_READ_BYTES):
                    digest.update(data)
            digest.update(side.tokens.to_bytes(8, "little"))
    return digest.hexdigest()


def _write_header(folder: Path, header: Header) -> None:
    """Write tokens.json when everything else in `folder` has reached the disk. Raises OSError."""
    for name in header.sizes():
        sync(folder / name)
    write_atomically(folder / "tokens.json", json.dumps(asdict(header), indent=1), durable=True)


def read_header(folder: Path) -> Header | None:
    """Return the header of a prepared folder; None if there is none, or sizes or documents do not match it."""
    try:
        header = as_kind(Header, parse_json((folder / "tokens.json").read_bytes()))
        is_whole = (
            header.version == FORMAT_VERSION
            and header.byte_order == "little"
            and header.dtype in _DTYPES.values()
            and all((folder / name).stat().st_size == size for name, size in header.sizes().items())
            and all(_are_in_order(folder, header, side) for side in SIDES)
        )
    except (OSError, ValueError):
        return None
    return header if is_whole else None


def _are_in_order(folder: Path, header: Header, side: str) -> bool:
    """Return whether a side's documents begin at its first token and one after the other. Raises OSError."""
    starts = np.fromfile(folder / f"{side}.documents", "<u8")
    tokens: int = getattr(header, f"{side}_tokens")
    if not tokens:
        return not len(starts)
    return bool(len(starts) and starts[0] == 0 and (starts[1:] > starts[:-1]).all() and starts[-1] < tokens)


def map_side(folder: Path, header: Header, side: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return token ids, document starts and loss mask of one side, memory-mapped; do not write to them."""
    import torch

    tokens = getattr(header, f"{side}_tokens")
    documents = getattr(header, f"{side}_documents")

    def mapped(suffix: str, size: int, dtype: torch.dtype) -> Tensor:
        if not size:  # nothing can be mapped of an empty file
            return torch.empty(0, dtype=dtype)
        return torch.from_file(str(folder / f"{side}.{suffix}"), shared=False, size=size, dtype=dtype)

    return (
        mapped("tokens", tokens, torch.uint16 if header.token_bytes == 2 else torch.uint32),
        mapped("documents", documents, torch.uint64),
        mapped("loss_mask", tokens, torch.uint8) if header.has_loss_mask else None,
    )
