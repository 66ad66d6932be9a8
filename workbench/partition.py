"""The share of every chunk whose state a rank owns. No torch.

A chunk is cut into one stretch a rank, in rank order. Cuts lie where a partial sum of the gradient norm begins: at a
parameter's start, or at a multiple of `NORM_BLOCK` of its elements. So the partials of all ranks together are those of
one rank, and a chunk with fewer of them than there are ranks is owned by some ranks alone.

Invariant: all ranks find the same cuts, from the layout and the number of ranks alone, and no rank owns more than its
equal part of all elements and two such blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from workbench.layout import NORM_BLOCK, Chunk, Layout, Slice, Unit


@dataclass(frozen=True)
class Partition:
    """The cuts of every unit's chunks: rank r owns the elements of its unit from `cuts[r]` to `cuts[r + 1]`."""

    ranks: int
    cuts: tuple[tuple[tuple[int, ...], ...], ...]

    def owned(self, unit: Unit, rank: int) -> tuple[Chunk, ...]:
        """Return what `rank` owns of each of the unit's chunks: nothing, of some."""
        return tuple(
            _stretch(unit, chunk, *cuts[rank : rank + 2])
            for chunk, cuts in zip(unit.chunks, self.cuts[unit.index], strict=True)
        )

    def sizes(self, unit: int, chunk: int) -> list[int]:
        """Return the elements of each rank's share of a chunk."""
        cuts = self.cuts[unit][chunk]
        return [stop - start for start, stop in pairwise(cuts)]


def partition(layout: Layout, ranks: int) -> Partition:
    """Cut every chunk of `layout` for so many ranks."""
    held = [0] * ranks
    passed = 0
    units = []
    for unit in layout.units:
        chunks = []
        for chunk in unit.chunks:
            passed += chunk.elements
            cuts = _cut(list(_places(unit, chunk)), chunk, [passed / ranks - owned for owned in held])
            for rank in range(ranks):
                held[rank] += cuts[rank + 1] - cuts[rank]
            chunks.append(tuple(cuts))
        units.append(tuple(chunks))
    return Partition(ranks, tuple(units))


def _places(unit: Unit, chunk: Chunk) -> Iterator[int]:
    """Return where a chunk may be cut, its end included."""
    for part in chunk.slices:
        start = unit.segments[part.segment].offset + part.start
        yield from range(start, start + part.count, NORM_BLOCK)
    yield chunk.stop


def _cut(places: list[int], chunk: Chunk, wanted: list[float]) -> list[int]:
    """Return the cuts nearest to those by which each rank would own what it is `wanted` to."""
    cuts = [chunk.start]
    end = float(chunk.start)
    for share in wanted[:-1]:
        end += share
        after = min(bisect_left(places, end), len(places) - 1)
        nearest = min(places[max(after - 1, 0) : after + 1], key=lambda place: abs(place - end))
        cuts.append(max(nearest, cuts[-1]))
    return [*cuts, chunk.stop]


def _stretch(unit: Unit, chunk: Chunk, start: int, stop: int) -> Chunk:
    slices = []
    for part in chunk.slices:
        offset = unit.segments[part.segment].offset
        first, last = max(offset + part.start, start), min(offset + part.start + part.count, stop)
        if first < last:
            slices.append(Slice(part.segment, first - offset, last - first))
    return replace(chunk, start=start, stop=stop, slices=tuple(slices))
