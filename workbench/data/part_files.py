"""What was made of one part of a source: its tokens, which of them are learnt, and the documents they make up.

    NAME.tokens      uint16 or uint32 [tokens]
    NAME.counted     uint8 [tokens], 0 or 1; absent where every token is learnt
    NAME.documents   DOCUMENT [documents], in the order of the tokens
    NAME.json        how many there are, checksums, and what the user should know

Invariant: NAME.json appears last and with a rename, so that a part that has one is done.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

DOCUMENT = np.dtype([("tokens", "<u8"), ("share", "<f8"), ("begins", "u1"), ("is_text", "u1")])
"""`tokens`: how many it has here. `share`: decides its side. `begins`: 0 where it began in an earlier part. `is_text`:
its last token is an end of text that only stands between documents."""
_FLUSH_TOKENS = 1 << 18


@dataclass
class PartFiles:
    """A part that is done, as its files say."""

    path: Path
    """Without the suffix."""
    tokens: int
    documents: int
    counted: bool
    notes: list[str] = field(default_factory=list)


class PartWriter:
    """Writes the files of one part. As a context manager; `finish` makes the part done, else nothing is left of it.

    Args:
        path: of the files, without suffix.
        dtype: uint16 or uint32, little-endian.
    """

    def __init__(self, path: Path, dtype: Any) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._ids: list[int] = []
        self._documents: list[tuple[int, float, bool, bool]] = []
        self._counted: BinaryIO | None = None
        self._here = 0
        self.tokens = 0
        """Written so far."""
        self.notes: dict[str, None] = {}
        self._checksums = {"tokens": 0, "counted": 0}
        self._files = contextlib.ExitStack()

    @property
    def scratch(self) -> Path:
        """A file that whoever writes the part may use, and leaves none of."""
        return file_of(self._path, "text")

    def __enter__(self) -> PartWriter:
        self._tokens: BinaryIO = self._files.enter_context(file_of(self._path, "tokens").open("wb"))
        self._table: BinaryIO = self._files.enter_context(file_of(self._path, "documents").open("wb"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()
        if not file_of(self._path, "json").exists():
            remove_part(self._path)

    def write(self, ids: Sequence[int], counted: Sequence[bool] | None = None) -> None:
        """Tokens of the document that is open, with their marks (None: all are learnt)."""
        if counted is not None and self._counted is None and not all(counted):
            self._flush()
            self._counted = self._files.enter_context(file_of(self._path, "counted").open("wb"))
            self._write_ones(self.tokens)
        if self._counted is not None:
            self._flush()
            marks = np.ones(len(ids), np.uint8) if counted is None else np.array(counted, np.uint8)
            self._write_counted(marks.tobytes())
        self._ids += ids
        self._here += len(ids)
        self.tokens += len(ids)
        if len(self._ids) >= _FLUSH_TOKENS:
            self._flush()

    def write_packed(self, data: bytes) -> None:
        """Tokens in the bytes that the file has; all of them are learnt."""
        self._flush()
        count = len(data) // self._dtype.itemsize
        self._put(data)
        if self._counted is not None:
            self._write_ones(count)
        self._here += count
        self.tokens += count

    def close_document(self, share: float, *, begins: bool = True, is_text: bool = False) -> None:
        """What was written since the last one is a document, or what this part has of it."""
        if self._here:
            self._documents.append((self._here, share, begins, is_text))
            self._here = 0
        if len(self._documents) >= 1 << 14:
            self._write_table()

    def finish(self) -> None:
        self._flush()
        self._write_table()
        documents = self._table.tell() // DOCUMENT.itemsize
        has_marks = self._counted is not None
        self._files.close()
        header = {
            "dtype": self._dtype.str,
            "tokens": self.tokens,
            "documents": documents,
            "counted": has_marks,
            "checksums": self._checksums,
            "notes": list(self.notes),
        }
        temporary = file_of(self._path, "json.part")
        temporary.write_text(json.dumps(header), encoding="utf-8")
        temporary.replace(file_of(self._path, "json"))

    def _flush(self) -> None:
        if self._ids:
            self._put(np.array(self._ids, self._dtype).tobytes())
            self._ids.clear()

    def _put(self, data: bytes) -> None:
        self._tokens.write(data)
        self._checksums["tokens"] = zlib.crc32(data, self._checksums["tokens"])

    def _write_ones(self, count: int) -> None:
        for first in range(0, count, 1 << 20):
            self._write_counted(b"\1" * min(1 << 20, count - first))

    def _write_counted(self, data: bytes) -> None:
        assert self._counted is not None
        self._counted.write(data)
        self._checksums["counted"] = zlib.crc32(data, self._checksums["counted"])

    def _write_table(self) -> None:
        self._table.write(np.array(self._documents, DOCUMENT).tobytes())
        self._documents.clear()


def read_part(path: Path, dtype: Any, *, whole: bool = True) -> PartFiles | None:
    """The part whose files lie at `path`; None where it is not done, or its files are not as long as it says.

    `whole`: nor where they do not have its checksums.
    """
    itemsize = np.dtype(dtype).itemsize
    try:
        header = json.loads(file_of(path, "json").read_bytes())
        part = PartFiles(path, header["tokens"], header["documents"], header["counted"], header["notes"])
        sizes = {"tokens": part.tokens * itemsize, "documents": part.documents * DOCUMENT.itemsize}
        if part.counted:
            sizes["counted"] = part.tokens
        fits = header["dtype"] == np.dtype(dtype).str and all(
            file_of(path, suffix).stat().st_size == size for suffix, size in sizes.items()
        )
        sums = header["checksums"]
        if fits and whole:
            fits = all(_checksum(file_of(path, suffix)) == sums[suffix] for suffix in sizes if suffix in sums)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return part if fits else None


def remove_part(path: Path) -> None:
    for suffix in ("json", "json.part", "tokens", "counted", "documents", "text"):
        with contextlib.suppress(OSError):
            file_of(path, suffix).unlink()


def file_of(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            checksum = zlib.crc32(data, checksum)
    return checksum
