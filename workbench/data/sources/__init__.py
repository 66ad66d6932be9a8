"""Find the files and datasets that `data.source` names, and the kind of each file: text, records (JSON lines or one
JSON array), a parquet table, or token ids. The suffix suggests the kind, and the first bytes confirm it.

Invariant: any other file is text, or left out if it has a NUL byte, so that every folder can be walked. A document's
name is relative to the folder in which it was found, so that the split (`workbench.data.split`) is the same wherever
that folder is.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import stat
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from workbench.config import DataConfig
from workbench.config.references import nearest_file
from workbench.data.records import RECORD_FIELDS
from workbench.data.sources.tables import open_hub
from workbench.errors import ConfigurationError, brief
from workbench.system.folders import expanded

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
HUB = "hub:"
_STDLIB_LEFT_OUT = frozenset(
    ["site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3"]
)
"""Installed packages, and the tests: distributions package those apart, so that one Python would give different texts,
and some have wrong encodings on purpose. Python 3.13 has no lib2to3."""


@dataclass(frozen=True)
class Document:
    """A file. A text file is one document, a file of records or tokens holds many."""

    name: str
    """The path relative to the folder in which it was found, with "/" as the separator."""
    path: Path
    size: int
    """Bytes on the disk."""
    kind: Kind = "text"
    compression: str = ""
    """".gz", ".bz2" or ".xz"; empty if it is not compressed."""


@dataclass(frozen=True)
class SourceFiles:
    """Everything that `data.source` names."""

    documents: list[Document]
    hub: dict[str, Any] = field(default_factory=dict)
    """The `datasets.Dataset` of each hub dataset by its name, in the order of `data.source`."""
    prepared: Path | None = None
    """A prepared folder, which is then the only source."""

    @property
    def has_records(self) -> bool:
        return bool(self.hub) or any(d.kind not in ("text", "tokens") for d in self.documents)

    def key(self, *options: object) -> str:
        """Return a name for what is made of this source with these options, which changes if either changes.

        Raises:
            ConfigurationError: a file is gone.
        """
        digest = hashlib.sha256(json.dumps(options).encode())
        for line in self._identity():
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return digest.hexdigest()[:32]

    def _identity(self) -> Iterator[str]:
        for document in self.documents:
            try:
                modified = document.path.stat().st_mtime_ns
            except OSError as error:
                raise ConfigurationError(
                    f"data.source: {document.path} cannot be read: {error.strerror or error}"
                ) from error
            place = [document.kind, document.name, str(document.path)]
            yield json.dumps([*place, document.size, modified])
        for name, dataset in self.hub.items():
            yield json.dumps([HUB, name, getattr(dataset, "_fingerprint", ""), len(dataset)])


def find_source(config: DataConfig) -> SourceFiles:
    """Find what `config.source` names. Raises ConfigurationError if a part of it is missing or cannot be read."""
    if "" in config.sources:
        raise ConfigurationError('data.source = "": no text to train on is named')
    prepared = [source for source in config.sources if _is_prepared(source)]
    if prepared:
        if len(config.sources) > 1:
            raise ConfigurationError(
                f'data.source: "{prepared[0]}" is a prepared folder of tokens, which has its own split: it must be '
                "the only source"
            )
        return SourceFiles([], prepared=expanded(prepared[0], "data.source").absolute())
    paths = [source for source in config.sources if not source.startswith(HUB)]
    documents = find_documents(paths, config.text_fields) if paths else []
    hub: dict[str, Any] = {}
    for source in config.sources:
        if source.startswith(HUB):
            name = source.removeprefix(HUB).strip("/")
            hub[name] = open_hub(name, config.subset, config.split)
    return SourceFiles(documents, hub)


def _is_prepared(source: str) -> bool:
    if source == "stdlib" or source.startswith(HUB):
        return False
    folder = expanded(source, "data.source")
    return (folder / "tokens.json").is_file() and (folder / "train.tokens").is_file()


def find_documents(source: str | Sequence[str], fields: Sequence[str] = ("text",)) -> list[Document]:
    """Return the documents of `source`, sorted by name, without empty ones.

    "stdlib" is the source code of this Python's standard library. Anything else is a file or a folder; in a folder,
    hidden files, binary files and links to folders are left out. `fields` distinguish records from other JSON.

    Raises:
        ConfigurationError: a source does not exist, cannot be read or has nothing to train on.
    """
    sources = [source] if isinstance(source, str) else list(source)
    if not sources:
        raise ConfigurationError('data.source is empty: expected "stdlib", or files and folders of text')
    found: dict[Path, Document] = {}
    for one in sources:
        for document in _stdlib() if one == "stdlib" else _from_path(one, fields):
            found.setdefault(document.path, document)
    return sorted(found.values(), key=lambda document: (document.name, str(document.path)))


def _stdlib() -> list[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    documents = [
        document
        for document in _walk("stdlib", root, _STDLIB_LEFT_OUT)
        if document.name.endswith(".py") and _with_kind("stdlib", document, "") is not None
    ]
    if not documents:
        raise ConfigurationError(
            f'data.source = "stdlib": this Python has no .py files in {root}; name a folder of text instead'
        )
    return documents


def _from_path(source: str, fields: Sequence[str]) -> list[Document]:
    path = expanded(source, "data.source").absolute()
    try:
        mode = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"data.source = {source!r}: there is no such file or folder{_nearest(source, path)}"
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(source, path, error) from error
    if stat.S_ISDIR(mode.st_mode):
        candidates = (_with_kind(source, document, fields) for document in _walk(source, path))
        documents = [document for document in candidates if document is not None]
        if not documents:
            raise ConfigurationError(f"data.source = {source!r}: there is no text file in this folder")
        return documents
    if not stat.S_ISREG(mode.st_mode):
        raise ConfigurationError(f"data.source = {source!r}: neither a file nor a folder")
    if not mode.st_size:
        raise ConfigurationError(f"data.source = {source!r}: the file is empty")
    found = _with_kind(source, Document(path.name, path.resolve(), mode.st_size), fields, named=True)
    assert found is not None
    return [found]


def _walk(source: str, root: Path, left_out: frozenset[str] = frozenset()) -> Iterator[Document]:
    """Yield every regular file below `root` that is neither hidden nor empty, always in the same order."""

    def refuse(error: OSError) -> None:
        raise _unreadable(source, Path(error.filename or root), error)

    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in left_out)
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith("."):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # a link to nowhere, or a file that was removed meanwhile
            except OSError as error:
                raise _unreadable(source, path, error) from error
            if stat.S_ISREG(status.st_mode) and status.st_size:
                yield Document(path.relative_to(root).as_posix(), path.resolve(), status.st_size)


def _with_kind(
    source: str, document: Document, fields: Sequence[str], *, named: bool = False
) -> Document | None:
    """Return `document` with its kind; None if it has nothing to train on.

    With `named` (the user named this very file) a file that is not what its suffix says is refused.
    """
    try:
        kind, compression = kind_of_file(document.path, fields, named=named)
    except OSError as error:
        raise _unreadable(source, document.path, error) from error
    except ValueError as error:
        if not named:
            return None
        raise ConfigurationError(f"data.source = {source!r}: {error}") from error
    return replace(document, kind=kind, compression=compression)


def _unreadable(source: str, path: Path, error: OSError | ValueError) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or error
    return ConfigurationError(f"data.source = {source!r}: {path} cannot be read: {reason}")


def _nearest(source: str, path: Path) -> str:
    """Return advice for a source that does not exist: the file with the most similar name, or "hub:"."""
    if near := nearest_file(path):
        return f"; {near}"
    looks_like_hub = source.count("/") == 1 and not source.startswith((".", "~", "/"))
    return f'; a dataset of the hub is written "{HUB}{source}"' if looks_like_hub else ""


def open_bytes(path: Path, compression: str) -> BinaryIO:
    """Open a file for reading, decompressed. Raises OSError."""
    opened = _OPENERS[compression](path) if compression else path.open("rb")
    return cast(BinaryIO, opened)


def kind_of_file(path: Path, fields: Sequence[str], *, named: bool = False) -> tuple[Kind, str]:
    """Return the kind of `path` and the suffix of its compression.

    Args:
        fields: those that distinguish records from other JSON, beside the usual ones.
        named: the user named this very file: JSON without records is no text then.

    Raises:
        ValueError: it is not what its suffix says; the message says why.
        OSError: the file cannot be read.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _OPENERS else ""
    suffix = suffixes[-1] if suffixes else ""
    head = _head(path, compression, _JSON_HEAD_BYTES if suffix == ".json" else _HEAD_BYTES)
    if suffix == ".parquet" and not compression:
        if not head.startswith(b"PAR1"):
            raise ValueError(f"{path} is not a parquet file: it does not begin with PAR1")
        return "parquet", ""
    if suffix == ".npy" and not compression:
        _check_tokens(path)
        return "tokens", ""
    if b"\0" in head[:_HEAD_BYTES]:
        raise ValueError("not a text file (it has NUL bytes); expected UTF-8 text")
    if suffix in _LINES:
        return "lines", compression
    if suffix == ".json":
        kind = _kind_of_json(head, fields, named=named)
        if kind is not None:
            return kind, compression
        if named:
            raise ValueError(
                f"{path} holds no records: expected a JSON object on each line, or one array of objects; to train on "
                "it as text, rename it to .txt"
            )
    return "text", compression


def _head(path: Path, compression: str, size: int) -> bytes:
    path.open("rb").close()  # an error of the file system keeps its own message
    try:
        with open_bytes(path, compression) as file:
            return file.read(size)
    except DAMAGED as error:
        if not compression:
            raise
        raise ValueError(f"{path} is not a complete {compression} file: {error}") from error


def _check_tokens(path: Path) -> None:
    """Raise ValueError unless a .npy file holds token ids."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # its header is Python's text, and its parser's errors are of every type
        raise ValueError(f"{path} is not a NumPy array: {brief(error)}") from error
    if array.ndim != 1 or array.dtype not in (np.dtype("<u2"), np.dtype("<u4")):
        raise ValueError(
            f"{path} has the shape {list(array.shape)} and the type {array.dtype}: expected token ids, one dimension "
            "of uint16 or uint32"
        )
    if not len(array):
        raise ValueError(f"{path} has no tokens")


def _kind_of_json(head: bytes, fields: Sequence[str], *, named: bool) -> Kind | None:
    text = head.removeprefix(_BYTE_ORDER_MARK).lstrip(_JSON_BLANKS)
    if text.startswith(b"["):
        inside = text[1:].lstrip(_JSON_BLANKS)
        try:
            first, _ = json.JSONDecoder().raw_decode(inside.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            # The first record is longer than the part that was read, or this is no JSON.
            return "array" if inside.startswith(b"{") and len(head) == _JSON_HEAD_BYTES else None
        return "array" if _is_record(first, fields, named=named) else None
    line, end, _ = text.partition(b"\n")
    if not end and len(head) == _JSON_HEAD_BYTES:
        return "lines" if line.startswith(b"{") else None
    try:
        return "lines" if _is_record(json.loads(line), fields, named=named) else None
    except (ValueError, RecursionError):
        return None


def _is_record(value: Any, fields: Sequence[str], *, named: bool) -> bool:
    known = {*fields, *RECORD_FIELDS}
    return isinstance(value, dict) and (named or not known.isdisjoint(value))
