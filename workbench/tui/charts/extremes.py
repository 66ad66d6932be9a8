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
        self._whole = True
        """Whether all values so far are finite: then no stretch has to be looked through for others."""

    def grow(self, *, whole: bool) -> None:
        """Take in what was appended since the last time; `whole`: whether all of it is finite."""
        values = self._values
        self._whole = self._whole and whole
        below: tuple[array[float], array[float]] = (values, values)
        level = 0
        while len(below[0]) >= BLOCK:
            if level == len(self._levels):
                self._levels.append((array("d"), array("d")))
            lows, highs = self._levels[level]
            start, stop = len(lows) * BLOCK, len(below[0]) // BLOCK * BLOCK
            if start == stop:
                return
            if level == 0 and not self._whole:
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
        whole = self._whole
        for next_lows, next_highs in self._levels:
            first, last = -(-start // BLOCK), stop // BLOCK
            # A short stretch is quicker searched than cut into edges and blocks.
            if stop - start <= 4 * BLOCK or last > len(next_lows):
                break
            for a, b in ((start, first * BLOCK), (last * BLOCK, stop)):
                if a < b:
                    if whole:
                        edge_low, edge_high = min(lows[a:b]), max(highs[a:b])
                    else:
                        edge_low, edge_high = _finite_extremes(lows[a:b])
                    if edge_low < low:
                        low = edge_low
                    if edge_high > high:
                        high = edge_high
            # Above the values themselves blocks without a finite one are inf and -inf, which change nothing.
            whole = True
            lows, highs, start, stop = next_lows, next_highs, first, last
        if whole:
            edge_low, edge_high = min(lows[start:stop]), max(highs[start:stop])
        else:
            edge_low, edge_high = _finite_extremes(lows[start:stop])
        low, high = min(low, edge_low), max(high, edge_high)
        return (low, high) if low <= high else None

    def window_above_zero(self, start: int, stop: int) -> tuple[float, float] | None:
        """Like `window`, of the values above zero alone.

        In a stretch of more than 4,096 values the least may be too great: of a block that also has values at or below
        zero only the greatest is known.
        """
        found = self.window(start, stop)
        if found is None or found[1] <= 0 or found[0] > 0:
            return found if found is not None and found[0] > 0 else None
        high = found[1]
        start, stop = max(0, start), min(stop, len(self._values))
        if stop - start <= 4096:
            return min(value for value in self._values[start:stop] if value > 0), high
        first, last = -(-start // BLOCK), stop // BLOCK
        lows, highs = self.blocks
        pairs = zip(lows[first:last], highs[first:last], strict=True)
        return min((low if low > 0 else top for low, top in pairs if top > 0), default=high), high


def _finite_extremes(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else _NONE
