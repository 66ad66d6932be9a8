"""Find the files and datasets that `data.source` names. Only the beginning of a file is read, to find its kind.

Invariant: a document's name is relative to the folder in which it was found, so that the split (`workbench.data.split`)
is the same wherever that folder is.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.config import DataConfig
from workbench.config.references import nearest_file
from workbench.data.sources.file_kinds import Kind, kind_of_file
from workbench.errors import ConfigurationError
from workbench.system.folders import expanded

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
    prepared = [source for source in config.sources if _is_prepared(source)]
    if prepared:
        if len(config.sources) > 1:
            raise ConfigurationError(
                f'data.source: "{prepared[0]}" is a prepared folder of tokens, which has its own split: it stands alone'
            )
        return SourceFiles([], prepared=expanded(prepared[0], "data.source").absolute())
    paths = [source for source in config.sources if not source.startswith(HUB)]
    documents = find_documents(paths, config.text_field) if paths else []
    hub: dict[str, Any] = {}
    for source in config.sources:
        if source.startswith(HUB):
            from workbench.data.sources.tables import open_hub

            name = source.removeprefix(HUB).strip("/")
            hub[name] = open_hub(name, config.subset, config.split)
    return SourceFiles(documents, hub)


def _is_prepared(source: str) -> bool:
    if source == "stdlib" or source.startswith(HUB):
        return False
    folder = expanded(source, "data.source")
    return (folder / "tokens.json").is_file() and (folder / "train.tokens").is_file()


def find_documents(source: str | Sequence[str], text_field: str = "text") -> list[Document]:
    """Return the documents of `source`, sorted by name, without empty ones.

    "stdlib" is the source code of this Python's standard library. Anything else is a file or a folder; in a folder,
    hidden files, binary files and links to folders are left out. `text_field` distinguishes records from other JSON.

    Raises:
        ConfigurationError: a source does not exist, cannot be read or has nothing to train on.
    """
    sources = [source] if isinstance(source, str) else list(source)
    if not sources:
        raise ConfigurationError('data.source is empty: expected "stdlib", or files and folders of text')
    found: dict[Path, Document] = {}
    for one in sources:
        for document in _stdlib() if one == "stdlib" else _from_path(one, text_field):
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


def _from_path(source: str, text_field: str) -> list[Document]:
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
        candidates = (_with_kind(source, document, text_field) for document in _walk(source, path))
        documents = [document for document in candidates if document is not None]
        if not documents:
            raise ConfigurationError(f"data.source = {source!r}: there is no text file in this folder")
        return documents
    if not stat.S_ISREG(mode.st_mode):
        raise ConfigurationError(f"data.source = {source!r}: neither a file nor a folder")
    if not mode.st_size:
        raise ConfigurationError(f"data.source = {source!r}: the file is empty")
    found = _with_kind(source, Document(path.name, path.resolve(), mode.st_size), text_field, named=True)
    if found is None:
        raise ConfigurationError(
            f"data.source = {source!r}: not a text file (it has NUL bytes); expected UTF-8 text"
        )
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


def _with_kind(source: str, document: Document, text_field: str, *, named: bool = False) -> Document | None:
    """Return `document` with its kind; None if it has nothing to train on.

    With `named` (the user named this very file) a file that is not what its suffix says is refused.
    """
    try:
        found = kind_of_file(document.path, text_field, named=named)
    except OSError as error:
        raise _unreadable(source, document.path, error) from error
    except ValueError as error:
        raise ConfigurationError(f"data.source = {source!r}: {error}") from error
    return None if found is None else replace(document, kind=found[0], compression=found[1])


def _unreadable(source: str, path: Path, error: OSError | ValueError) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or error
    return ConfigurationError(f"data.source = {source!r}: {path} cannot be read: {reason}")


def _nearest(source: str, path: Path) -> str:
    """Return advice for a source that does not exist: the file with the most similar name, or "hub:"."""
    if near := nearest_file(path):
        return f"; {near}"
    looks_like_hub = source.count("/") == 1 and not source.startswith((".", "~", "/"))
    return f'; a dataset of the hub is written "{HUB}{source}"' if looks_like_hub else ""
