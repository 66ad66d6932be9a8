"""Values that stand out upwards from those before them, such as a loss that jumps.

Judged block by block of 32 values from the blocks' extremes alone. Invariant: what is a spike depends only on the
values before the end of its block, never on how they arrived.
"""

from __future__ import annotations

from array import array

from workbench.tui.charts.extremes import BLOCK

DEVIATIONS = 8.0
"""A spike stands at least this many standard deviations above the middle of the values before it."""
CALM_BLOCKS = 4
"""Nothing is judged before this many blocks have shown how far values usually range."""
NEW_LEVEL_BLOCKS = 2
"""A rise that lasts longer is a new level, not a spike."""
_RANGE_IN_DEVIATIONS = 4.086
"""The mean range of 32 normal values (Tippett 1925; d2 of the control chart for ranges, n = 32)."""


class Spikes:
    """`found` lists the points, at most one a block, in order.

    A block's greatest value is a spike where it lies DEVIATIONS standard deviations above the middle of the last block
    without one. The deviation comes from an exponential average of those blocks' ranges.
    """

    def __init__(self) -> None:
        self.found: array[int] = array("L")
        self._judged = 0
        self._calm = self._raised = 0
        self._middle = self._range = 0.0

    def grow(self, values: array[float], lows: array[float], highs: array[float]) -> None:
        """Judge the blocks that are new; low above high: a block without a finite value."""
        fresh = zip(lows[self._judged :], highs[self._judged :], strict=True)
        for block, (low, high) in enumerate(fresh, self._judged):
            if low > high:
                continue
            limit = self._middle + DEVIATIONS / _RANGE_IN_DEVIATIONS * self._range
            if high > limit and self._calm >= CALM_BLOCKS and self._raised < NEW_LEVEL_BLOCKS:
                self._raised += 1
                start = block * BLOCK
                self.found.append(values.index(high, start, start + BLOCK))
                continue
            self._raised = 0
            self._calm += 1
            self._range += (high - low - self._range) * (1 / self._calm if self._calm < 10 else 0.1)
            self._middle = low + (high - low) / 2
        self._judged = len(lows)
