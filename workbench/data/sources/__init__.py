"""Which documents `data.source` means. It finds and names files; it reads no more of them than tells what they hold.

A document's name is relative to where it was found, so that the split (`workbench.data.split`) is the same
wherever the folder lies.
"""

from __future__ import annotations

import difflib
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.data.sources.file_kinds import Kind, kind_of_file
from workbench.errors import ConfigurationError
from workbench.system.folders import expanded

HUB = "hub:"
_STDLIB_LEFT_OUT = frozenset(
    ["site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3"]
)
"""What is installed beside the library is none of it. Its tests hold wrong encodings on purpose, and
distributions package them apart, so that one Python would give different texts. lib2to3 left with 3.13."""


@dataclass(frozen=True)
class Document:
    """A file: one document where it is text, many where it holds records or tokens."""

    name: str
    """Relative to the folder it was found in, with "/" between the parts."""
    path: Path
    size: int
    """Bytes, as they lie on the disk."""
    kind: Kind = "text"
    compression: str = ""
    """The suffix that says how it is compressed; empty where it is not."""


def find_documents(source: str | Sequence[str], text_field: str = "text") -> list[Document]:
    """The documents of `source`, sorted by name, none of them empty.

    "stdlib" is the source of this interpreter's standard library. Anything else is a file, or a folder that
    is walked without its hidden files, its binary files and linked folders. `text_field` tells records from other
    JSON. Raises ConfigurationError where a source is missing, cannot be read or has nothing to train on.
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
        if document.name.endswith(".py") and _looked_at("stdlib", document, "") is not None
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
        looked_at = (_looked_at(source, document, text_field) for document in _walk(source, path))
        documents = [document for document in looked_at if document is not None]
        if not documents:
            raise ConfigurationError(f"data.source = {source!r}: there is no text file in this folder")
        return documents
    if not stat.S_ISREG(mode.st_mode):
        raise ConfigurationError(f"data.source = {source!r}: neither a file nor a folder")
    if not mode.st_size:
        raise ConfigurationError(f"data.source = {source!r}: the file is empty")
    found = _looked_at(source, Document(path.name, path.resolve(), mode.st_size), text_field, named=True)
    if found is None:
        raise ConfigurationError(
            f"data.source = {source!r}: not a text file (it has NUL bytes); expected UTF-8 text"
        )
    return [found]


def _walk(source: str, root: Path, left_out: frozenset[str] = frozenset()) -> Iterator[Document]:
    """Every regular file below `root` that is neither hidden nor empty, always in the same order."""

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


def _looked_at(source: str, document: Document, text_field: str, *, named: bool = False) -> Document | None:
    """`document` with what it holds; None where that is nothing to train on.

    `named`: the user named the very file, so that what its suffix promises and it does not hold is refused.
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
    try:
        names = [entry.name for entry in os.scandir(path.parent)]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"; the nearest is {str(path.parent / near[0])!r}"
    looks_like_hub = source.count("/") == 1 and not source.startswith((".", "~", "/"))
    return f'; a dataset of the hub is written "{HUB}{source}"' if looks_like_hub else ""
