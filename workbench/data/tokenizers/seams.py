"""Where a long text can be cut, so that its pieces have together the ids of the whole.

A tokenizer looks at what stands around: pieces that are encoded by themselves differ from the whole at their ends. So
the pieces overlap. A short stretch around the cut, the probe, is encoded too; it ends with the piece before the cut and
begins with the piece after it, which makes their tokens comparable from that end on without knowing which characters a
token stands for. The cut goes between two tokens on which probe and both pieces agree, where a word begins if one does.

Invariant: a seam depends on the text next to it alone, so that whoever encodes either side of it, and when, cuts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

REACHES = (512, 4096, 32_768)
"""How far a probe reaches to either side of a cut, in characters or bytes; the next is for where one finds no seam."""
_AGREEMENT = 8
"""So many tokens on either side of a cut that is inside a word must agree as well."""


_SHIFTS = (1, 2, 3)

Read = Callable[[int, int], str]


class Prober(Protocol):
    def probe(self, text: str) -> tuple[list[int], list[int | None]]:
        """The ids of `text`, and to which word of it each belongs (None where the tokenizer does not tell)."""


@dataclass(frozen=True)
class Seam:
    """Between `ids[:before]` and `ids[before:]`, the ids of the text from `first` to `last`."""

    first: int
    last: int
    ids: tuple[int, ...]
    before: int


@dataclass(frozen=True)
class Piece:
    """The text from `first` to `last`, of which the seams at its ends say what its neighbours give."""

    first: int
    last: int
    left: Seam | None
    right: Seam | None

    def trimmed(self, ids: list[int]) -> list[int] | None:
        """The piece's share of `ids`, the ids of its text; None where they are not what its seams say: the tokenizer
        looks farther than a probe does, which none is known to do but in an endless word."""
        begin, end = 0, len(ids)
        if self.left is not None:
            begin = self.left.before
            if tuple(ids[:begin]) != self.left.ids[:begin]:
                return None
        if self.right is not None:
            given = self.right.ids[self.right.before :]
            end -= len(given)
            if end < begin or tuple(ids[end:]) != given:
                return None
        return ids[begin:end]

    def middle(self) -> tuple[int, int]:
        """The text between its seams."""
        begin = self.first if self.left is None else self.left.last
        return begin, self.last if self.right is None else self.right.first

    def with_seams(self, ids: list[int]) -> list[int]:
        """The piece's share where the seams and the text between them, of which these are the ids, are taken as they
        are: nothing is lost or doubled, whatever the neighbours do."""
        left = [] if self.left is None else self.left.ids[self.left.before :]
        right = [] if self.right is None else self.right.ids[: self.right.before]
        return [*left, *ids, *right]


def pieces(
    prober: Prober,
    read: Read,
    start: int,
    stop: int,
    length: int,
    *,
    begin: int | None = None,
    end: int | None = None,
) -> Iterator[Piece]:
    """The text from `start` to `stop` in pieces of about `length`.

    Args:
        read: the text between two places.
        begin, end: only the pieces of this part of it, both multiples of `length` after `start`.
    """

    def seam(at: int) -> Seam | None:
        return find_seam(prober, read, at, start, stop, length // 2)

    at, last = start if begin is None else begin, stop if end is None else end
    left = seam(at) if at > start else None
    while at < last:
        upto = min(at + length, last)
        right = seam(upto) if upto < stop else None
        yield Piece(left.first if left else at, right.last if right else upto, left, right)
        at, left = upto, right


def find_seam(prober: Prober, read: Read, at: int, start: int, stop: int, longest: int) -> Seam | None:
    """A seam near `at` in the text from `start` to `stop`; None where there is none, as within one endless word.

    `longest`: a probe reaches no farther to either side.
    """
    for reach in REACHES:
        if reach > longest:
            break
        first, last = max(start, at - reach), min(stop, at + reach)
        ids, words = prober.probe(read(first, last))
        left, _ = prober.probe(read(max(start, first - reach), last))
        right, _ = prober.probe(read(first, min(stop, last + reach)))
        lowest = len(ids) - _common(ids[::-1], left[::-1])
        highest = _common(ids, right)
        before = _border(words, lowest, highest)
        if before is None:
            # Within a word tokens may agree by chance, as a run of one character does from every second place.
            for shift in _SHIFTS:
                shifted, _ = prober.probe(read(max(start, first - reach - shift), last))
                lowest = max(lowest, len(ids) - _common(ids[::-1], shifted[::-1]))
            before = _middle(len(ids), lowest + _AGREEMENT, highest - _AGREEMENT)
        if before is not None:
            return Seam(first, last, tuple(ids), before)
    return None


def _border(words: Sequence[int | None], lowest: int, highest: int) -> int | None:
    """The place nearest to the middle of the probe where a word begins."""
    borders = [
        place
        for place in range(max(lowest, 1), min(highest, len(words) - 1) + 1)
        if words[place] is not None and words[place - 1] is not None and words[place] != words[place - 1]
    ]
    return min(borders, key=lambda place: abs(place - len(words) // 2), default=None)


def _middle(count: int, lowest: int, highest: int) -> int | None:
    return min(max(count // 2, lowest), highest) if lowest <= highest else None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids from the beginning are the same."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
