"""The least and greatest value of any stretch of a growing array, without looking at each value.

A pyramid: the extremes of every 32 values, of every 32 of those, and so on. Only whole blocks are kept, so that
appending never changes one. Invariant: `window` gives what a search through all values would; values that are not
finite do not count.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

BLOCK = 32
_NONE = (math.inf, -math.inf)


class Extremes:
    """Over `values`, an array of floats that others append to; 0.5 bytes a value beside the values themselves."""

    def __init__(self, values: array[float]) -> None:
        self._values = values
        self._levels: list[tuple[array[float], array[float]]] = []

    def grow(self) -> None:
        """Take in what was appended since the last time."""
        values = self._values
        below: tuple[array[float], array[float]] = (values, values)
        level = 0
        while len(below[0]) >= BLOCK:
            if level == len(self._levels):
                self._levels.append((array("d"), array("d")))
            lows, highs = self._levels[level]
            start, stop = len(lows) * BLOCK, len(below[0]) // BLOCK * BLOCK
            if start == stop:
                return
            if level == 0 and not math.isfinite(sum(values[start:stop])):
                for at in range(start, stop, BLOCK):
                    low, high = _finite_extremes(values[at : at + BLOCK])
                    lows.append(low)
                    highs.append(high)
            else:
                under_lows, under_highs = below
                lows.extend([min(under_lows[at : at + BLOCK]) for at in range(start, stop, BLOCK)])
                highs.extend([max(under_highs[at : at + BLOCK]) for at in range(start, stop, BLOCK)])
            below = self._levels[level]
            level += 1

    def cut(self, count: int) -> None:
        """Forget all after the first `count` values, before they are taken from the array."""
        for lows, highs in self._levels:
            count //= BLOCK
            del lows[count:], highs[count:]

    @property
    def blocks(self) -> tuple[array[float], array[float]]:
        """The least and the greatest value of every whole block, inf and -inf where none is finite."""
        return self._levels[0] if self._levels else (array("d"), array("d"))

    def window(self, start: int, stop: int) -> tuple[float, float] | None:
        """The least and the greatest finite value of values[start:stop]; None where there is none."""
        start, stop = max(0, start), min(stop, len(self._values))
        if start >= stop:
            return None
        low, high = _NONE
        lows = highs = self._values
        for next_lows, next_highs in self._levels:
            first, last = -(-start // BLOCK), stop // BLOCK
            if last - first < 1 or last > len(next_lows):
                break
            for a, b in ((start, first * BLOCK), (last * BLOCK, stop)):
                if a < b:
                    edge_low, edge_high = self._least_and_greatest(lows, highs, a, b)
                    low, high = min(low, edge_low), max(high, edge_high)
            lows, highs, start, stop = next_lows, next_highs, first, last
        edge_low, edge_high = self._least_and_greatest(lows, highs, start, stop)
        low, high = min(low, edge_low), max(high, edge_high)
        return (low, high) if low <= high else None

    def _least_and_greatest(
        self, lows: array[float], highs: array[float], start: int, stop: int
    ) -> tuple[float, float]:
        if lows is highs:
            part = lows[start:stop]
            if not math.isfinite(sum(part)):
                return _finite_extremes(part)
            return min(part), max(part)
        return min(lows[start:stop]), max(highs[start:stop])


def _finite_extremes(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else _NONE
