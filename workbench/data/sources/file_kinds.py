"""The kind of a file: text, records (JSON lines or one JSON array), a parquet table, or token ids.

The suffix suggests the kind and the first bytes confirm it. Invariant: any other file is text, or left out if it has a
NUL byte, so that every folder can be walked.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from workbench.data.records import CHAT_FIELDS

Kind = Literal["text", "lines", "array", "parquet", "tokens"]

_HEAD_BYTES = 8192
"""A file with a NUL byte among these first bytes is not text (git's rule)."""
_JSON_HEAD_BYTES = 1 << 18
_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, ValueError, OSError)
"""The errors of reading a file that is damaged or cannot be read."""
_LINES = (".jsonl", ".ndjson")
_JSON_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_bytes(path: Path, compression: str) -> BinaryIO:
    """Open a file for reading, decompressed. Raises OSError."""
    opened = _OPENERS[compression](path) if compression else path.open("rb")
    return cast(BinaryIO, opened)


def kind_of_file(path: Path, text_field: str, *, named: bool = False) -> tuple[Kind, str] | None:
    """Return the kind of `path` and the suffix of its compression; None if it has nothing to train on.

    Args:
        text_field: the field that distinguishes records from other JSON.
        named: the user named this very file, which then must be what its suffix says.

    Raises:
        ValueError: it is not; the message says why.
        OSError: the file cannot be read.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _OPENERS else ""
    suffix = suffixes[-1] if suffixes else ""
    is_json = suffix == ".json"
    head = _head(path, compression, _JSON_HEAD_BYTES if is_json else _HEAD_BYTES, named=named)
    if head is None:
        return None
    if not compression and (suffix == ".parquet" or suffix == ".npy"):
        return _binary(path, suffix, head, named=named)
    if b"\0" in head[:_HEAD_BYTES]:
        return None
    if suffix in _LINES:
        return "lines", compression
    if is_json:
        return _json(path, compression, head, text_field, named=named)
    return "text", compression


def _head(path: Path, compression: str, size: int, *, named: bool) -> bytes | None:
    if not compression:
        with path.open("rb") as file:
            return file.read(size)
    path.open("rb").close()  # an error of the file system keeps its own message
    try:
        with open_bytes(path, compression) as file:
            return file.read(size)
    except DAMAGED as error:
        if named:
            raise ValueError(f"{path} is no whole {compression} file: {error}") from error
        return None


def _binary(path: Path, suffix: str, head: bytes, *, named: bool) -> tuple[Kind, str] | None:
    if suffix == ".parquet":
        if head.startswith(b"PAR1"):
            return "parquet", ""
        wrong = f"{path} is no parquet file: it does not begin with PAR1"
    else:
        wrong = _why_no_tokens(path)
        if not wrong:
            return "tokens", ""
    if named:
        raise ValueError(wrong)
    return None


def _why_no_tokens(path: Path) -> str:
    """Return why a .npy file holds no token ids; empty if it does."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        return f"{path} is no array of NumPy: {error}"
    if array.ndim != 1 or array.dtype not in (np.dtype("<u2"), np.dtype("<u4")):
        return (
            f"{path} has the shape {list(array.shape)} and the type {array.dtype}: expected token ids, one dimension "
            "of uint16 or uint32"
        )
    return "" if len(array) else f"{path} has no tokens"


def _json(
    path: Path, compression: str, head: bytes, text_field: str, *, named: bool
) -> tuple[Kind, str] | None:
    kind = _kind_of_json(head, text_field, named=named)
    if kind is not None:
        return kind, compression
    if named:
        raise ValueError(
            f"{path} holds no records: expected a JSON object on each line, or one array of objects; to train on it as "
            "text, call it .txt"
        )
    return "text", compression


def _kind_of_json(head: bytes, text_field: str, *, named: bool) -> Kind | None:
    text = head.removeprefix(_BYTE_ORDER_MARK).lstrip(_JSON_BLANKS)
    if text.startswith(b"["):
        inside = text[1:].lstrip(_JSON_BLANKS)
        try:
            first, _ = json.JSONDecoder().raw_decode(inside.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            # The first record is longer than the part that was read, or this is no JSON.
            return "array" if inside.startswith(b"{") and len(head) == _JSON_HEAD_BYTES else None
        return "array" if _is_record(first, text_field, named=named) else None
    line, end, _ = text.partition(b"\n")
    if not end and len(head) == _JSON_HEAD_BYTES:
        return "lines" if line.startswith(b"{") else None
    try:
        return "lines" if _is_record(json.loads(line), text_field, named=named) else None
    except (ValueError, RecursionError):
        return None


def _is_record(value: Any, text_field: str, *, named: bool) -> bool:
    known = {text_field, "prompt", *CHAT_FIELDS}
    return isinstance(value, dict) and (named or not known.isdisjoint(value))
