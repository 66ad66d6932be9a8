"""Training and validation: which document goes where.

A document's side depends on its name alone, a record's on what it says, so that adding one moves no other one across.
Only where whole documents do not come near the fraction that was asked for, one that is text is cut and its end held
out. Invariant: the sides follow from the documents and the fraction, never from threads, parts or the machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.data.sources import Document
from workbench.errors import ConfigurationError

NEAR_FRACTION = 0.02
"""Of the tokens: so much more than asked for may be held out for documents to stay whole."""


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop` of a document."""

    document: Document
    start: int
    stop: int


@dataclass(frozen=True)
class Split:
    """One text, cut in two."""

    training: Piece
    validation: Piece


@dataclass(frozen=True)
class Sides:
    """Which documents are for validation, counted from 0."""

    held: Any
    """bool [documents]: held out whole."""
    cut: int = -1
    """The document whose end is held out, its beginning being for training; -1 where none is."""
    tail: int = 0
    """How many tokens of it are held out."""
    by_name: bool = True
    """Whether all that counted was each document's share."""


def is_near(held: float, fraction: float) -> bool:
    """Whether a part of the tokens that is held out is near the `fraction` that was asked for."""
    return fraction / 2 <= held <= _most(fraction)


def _most(fraction: float) -> float:
    return min(max(2 * fraction, fraction + NEAR_FRACTION), (1 + fraction) / 2)


def sides_by_name(shares: Any, fraction: float) -> Any:
    """bool [documents]: those whose share is below `fraction`, at least one on either side. `shares`: float64."""
    held = shares < fraction
    if not held.any():
        held[int(shares.argmin())] = True
    elif held.all():
        held[int(shares.argmax())] = False
    return held


def choose_sides(shares: Any, tokens: Any, may_be_cut: Any, fraction: float) -> Sides:
    """Put about `fraction` of the tokens aside for validation.

    Where names alone do not come near it, texts are taken in the order of their shares until half of it is there; one
    that would be too much is cut, so that exactly `fraction` is held out.

    Args:
        shares: float64 [documents, two or more], see `share_of`. Outside [0, 1): the side is given.
        tokens: int64 [documents], more than 0.
        may_be_cut: bool [documents]. The side of others is that of their share.
    """
    held = sides_by_name(shares, fraction)
    total = int(tokens.sum())
    free = may_be_cut & (tokens > 1) & (shares >= 0) & (shares < 1)
    if is_near(int(tokens[held].sum()) / total, fraction) or not free.any():
        return Sides(held)
    held &= ~free
    there = int(tokens[held].sum())
    for number in np.lexsort((np.arange(len(shares)), shares)).tolist():
        if there >= fraction / 2 * total:
            break
        if not free[number]:
            continue
        length = int(tokens[number])
        if there + length > _most(fraction) * total:
            tail = min(max(1, round(fraction * total) - there), length - 1)
            return Sides(held, number, tail, by_name=False)
        held[number] = True
        there += length
    return Sides(held, by_name=False)


def document_share(name: str) -> float:
    """A number in [0, 1) that only the document's name decides."""
    return share_of(name.encode("utf-8", "surrogateescape"))


def share_of(content: bytes) -> float:
    """A number in [0, 1) that only `content` decides: a document's name, or all of a record, so that the records around
    it do not matter and two that are the same are never on different sides."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48


def cut_text(document: Document, validation_fraction: float) -> Split:
    """The only text of a source, cut between two characters: its last `validation_fraction` is for validation.

    Raises ConfigurationError where it is too short for that.
    """
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
    return Split(Piece(document, 0, at), Piece(document, at, size))
