"""Training and validation: which document goes where.

A document's side depends on its name alone, so that adding a file moves no other one across.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.data.sources import Document
from workbench.errors import ConfigurationError


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop` of a document."""

    document: Document
    start: int
    stop: int


@dataclass(frozen=True)
class Split:
    training: tuple[Piece, ...]
    validation: tuple[Piece, ...]


def split(documents: Sequence[Document], validation_fraction: float) -> Split:
    """Put about `validation_fraction` of the documents aside for validation, at least one on either side.

    A single document is cut: its end is the validation text. Raises ConfigurationError for a fraction that is
    not between 0 and 1, and for a document too short to be cut.
    """
    if not 0 < validation_fraction < 1:
        raise ConfigurationError(
            f"data.validation_fraction = {validation_fraction}: expected more than 0 and less than 1"
        )
    if len(documents) == 1:
        return _cut(documents[0], validation_fraction)
    ranked = sorted(documents, key=lambda document: (_share(document.name), document.name))
    aside = sum(_share(document.name) < validation_fraction for document in ranked)
    aside = min(max(aside, 1), len(ranked) - 1)
    held = set(ranked[:aside])
    return Split(
        tuple(Piece(document, 0, document.size) for document in documents if document not in held),
        tuple(Piece(document, 0, document.size) for document in documents if document in held),
    )


def _share(name: str) -> float:
    """A number in [0, 1) that only the name decides."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def _cut(document: Document, validation_fraction: float) -> Split:
    size = document.size
    at = size - max(1, round(size * validation_fraction))
    try:
        with document.path.open("rb") as file:
            file.seek(max(0, at - 3))
            before = file.read(min(at, 3) + 1)
    except OSError as error:
        raise ConfigurationError(
            f"data.source: {document.path} cannot be read: {error.strerror or error}"
        ) from error
    while at > 0 and len(before) > 1 and before[-1] & 0xC0 == 0x80:  # inside a UTF-8 character
        before, at = before[:-1], at - 1
    if at <= 0:
        raise ConfigurationError(
            f"data.source: {document.path} has {size} bytes; too short to cut a validation text from"
        )
    return Split((Piece(document, 0, at),), (Piece(document, at, size),))
