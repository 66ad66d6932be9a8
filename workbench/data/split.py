"""Decide which documents are for training and which for validation.

A document's side follows from a hash of its name (a record's, from its content), so that adding one document moves no
other. Only if whole documents do not come near the fraction, one text is cut and its end held out.

Invariant: the sides follow from the documents and the fraction, never from threads, blocks or the machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

TRAINING, VALIDATION = 2.0, -1.0
"""Shares of documents whose side is fixed, whatever the fraction is."""
_NEAR_FRACTION = 0.02
"""Up to this much more of the tokens than the fraction may be held out for documents to stay whole."""


@dataclass(frozen=True)
class Sides:
    """The documents for validation, by their numbers from 0."""

    held: Any
    """bool [documents]: the whole document is held out."""
    cut: int = -1
    """The document of which only the end is held out; -1 if there is none."""
    tail: int = 0
    """The tokens of that end."""


def document_share(name: str) -> float:
    """Return a number in [0, 1) that follows from a document's name."""
    return share_of(name.encode("utf-8", "surrogateescape"))


def share_of(content: bytes) -> float:
    """Return a number in [0, 1) that follows from `content`, so that equal records are always on one side."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48


def is_near(held: float, fraction: float) -> bool:
    """Return whether `held`, the fraction of the tokens that is held out, is near the `fraction` asked for."""
    return fraction / 2 <= held <= _most(fraction)


def _most(fraction: float) -> float:
    return min(max(2 * fraction, fraction + _NEAR_FRACTION), (1 + fraction) / 2)


def choose_sides(shares: Any, tokens: Any, may_be_cut: Any, fraction: float) -> Sides:
    """Hold out about `fraction` of the tokens.

    Documents whose share is below the fraction are held out, at least one and not all. If their tokens are not near the
    fraction, texts are taken in the order of their shares until half of the fraction is reached; one that would exceed
    it is cut, so that exactly `fraction` is held out.

    Args:
        shares: float64 [documents, one or more]. Outside [0, 1) the side is fixed.
        tokens: int64 or uint64 [documents], each at least 1.
        may_be_cut: bool [documents]. A document that may not be cut keeps the side of its share.
    """
    held = shares < fraction
    if not held.any():
        held[int(shares.argmin())] = True
    elif held.all():
        held[int(shares.argmax())] = False
    total = int(tokens.sum())
    if is_near(int(tokens[held].sum()) / total, fraction):
        return Sides(held)
    free = may_be_cut & (tokens > 1) & (shares >= 0) & (shares < 1)
    if not free.any():
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
            return Sides(held, number, min(max(1, round(fraction * total) - there), length - 1))
        held[number] = True
        there += length
    return Sides(held)
