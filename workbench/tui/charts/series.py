"""One quantity over a run as it grows: where its points lie, its values, their average, and what stands out.

`Positions` hold where points lie (step, tokens, time), once for all the series of a run; a `Series` holds one value a
point. Both only take in: averages and spikes are worked out when a chart first looks, so that a series that nobody
looks at costs a copy of its values. Invariant: a value that is not finite stays in the series and is listed in `marks`;
it changes neither averages nor extremes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Axis = Literal["step", "tokens", "time"]
AXES: tuple[Axis, ...] = ("step", "tokens", "time")
Floats = NDArray[np.float64]
Points = NDArray[np.intp]

BLOCK = 32
"""Points that are judged together for spikes, and from one kept average to the next."""
DEVIATIONS = 8.0
"""A spike stands at least this many standard deviations above the middle of the values before it."""
CALM_BLOCKS = 4
"""Nothing is judged before this many blocks have shown how far values usually range."""
NEW_LEVEL_BLOCKS = 2
"""A rise that lasts longer is a new level, not a spike."""
_RANGE_IN_DEVIATIONS = 4.086
"""The mean range of 32 normal values (Tippett 1925; d2 of the control chart for ranges, n = 32)."""


class _Column:
    """An array that grows at its end."""

    def __init__(self) -> None:
        self._data: Floats = np.empty(64)
        self.count = 0

    @property
    def values(self) -> Floats:
        """A view; valid until the column grows."""
        return self._data[: self.count]

    def extend(self, values: ArrayLike) -> None:
        more = np.asarray(values, dtype=np.float64)
        end = self.count + len(more)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)))
            grown[: self.count] = self.values
            self._data = grown
        self._data[self.count : end] = more
        self.count = end


class Positions:
    """The places of the points of one or several series. Along each axis positions never fall."""

    def __init__(self) -> None:
        self._axes: dict[Axis, _Column] = {axis: _Column() for axis in AXES}

    def __len__(self) -> int:
        return self._axes["step"].count

    def extend(
        self, steps: Sequence[float] | Floats, tokens: ArrayLike | None = None, times: ArrayLike | None = None
    ) -> None:
        """Add many points. Raises ValueError where the lengths differ.

        What is not known, or lies before the point before it (a clock that was set back), takes the place of the point
        before it, so that a place can be searched for.
        """
        found = {"step": steps, "tokens": tokens, "time": times}
        columns = {
            axis: np.full(len(steps), np.nan) if found[axis] is None else np.asarray(found[axis], np.float64)
            for axis in AXES
        }
        for axis, values in columns.items():
            if len(values) != len(steps):
                raise ValueError(f"{len(values)} positions by {axis} for {len(steps)} steps")
        for axis, values in columns.items():
            column = self._axes[axis]
            known = np.where(np.isfinite(values), values, -np.inf)
            before = column.values[-1] if column.count else -np.inf
            rising = np.maximum.accumulate(np.maximum(known, before))
            column.extend(np.where(np.isfinite(rising), rising, 0.0))

    def along(self, axis: Axis) -> Floats:
        """Return the positions along one axis, as a view that is not to be changed."""
        return self._axes[axis].values

    def origin(self, axis: Axis) -> float:
        """Return what relative positions count from: the first moment along time, 0 otherwise."""
        places = self.along(axis)
        return float(places[0]) if axis == "time" and len(places) else 0.0


class Series:
    """One value a point of `positions`, which several series may share.

    `smoothing` is s, the share that the average keeps of itself at each point, in [0, 1); 0: there is no average.
    With `find_spikes` values that stand out upwards are listed in `spikes`.

    The average is debiased (Kingma and Ba 2015, "Adam: a method for stochastic optimization", section 3):
    m_t = s m_(t-1) + (1 - s) y_t from m_0 = 0, and the average is m_t / (1 - s^t), t counting finite values alone.
    """

    def __init__(
        self, positions: Positions | None = None, *, smoothing: float = 0.0, find_spikes: bool = False
    ) -> None:
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1): {smoothing}")
        self.positions = Positions() if positions is None else positions
        self.smoothing = smoothing
        self.find_spikes = find_spikes
        self._values = _Column()
        self._marks: Points = np.empty(0, np.intp)
        self._marked = 0
        """The number of values that have been searched for marks."""
        self._ends = _Column()
        """m after every whole block."""
        self._spikes = _Spikes()

    def __len__(self) -> int:
        """Return the number of points that have both a place and a value."""
        return min(self._values.count, len(self.positions))

    @property
    def values(self) -> Floats:
        """All values, as a view; they grow through `extend` alone."""
        return self._values.values

    def extend(self, values: ArrayLike) -> None:
        """Add the values of the next positions."""
        self._values.extend(values)

    @property
    def marks(self) -> Points:
        """The points whose value is not finite, in order."""
        if self._marked < self._values.count:
            fresh = np.flatnonzero(~np.isfinite(self.values[self._marked :])) + self._marked
            self._marks = np.concatenate([self._marks, fresh])
            self._marked = self._values.count
        return self._marks

    @property
    def spikes(self) -> Points:
        """The points that stand out upwards, in order; each is found when its block of 32 is whole."""
        if self.find_spikes:
            self._spikes.grow(self)
        return np.asarray(self._spikes.found, np.intp)

    @property
    def last(self) -> float | None:
        """The newest value, NaN included; None before the first."""
        return float(self.values[len(self) - 1]) if len(self) else None

    def finite(self, start: int, stop: int) -> Floats:
        """Return the values of the points start to stop, without stop; NaN for those that are not finite."""
        values, marks = self.values[start:stop], self.marks
        if np.searchsorted(marks, start) == np.searchsorted(marks, stop):
            return values
        return np.where(np.isfinite(values), values, np.nan)

    def lowest(self) -> int | None:
        """Return the point of the least finite value; None where there is none."""
        values = self.finite(0, len(self))
        return None if not len(values) or np.isnan(values).all() else int(np.nanargmin(values))

    def averages_at(self, points: ArrayLike) -> Floats:
        """Return the debiased average at each of these points; NaN before the first finite value."""
        at = np.asarray(points, np.intp)
        self._grow_averages()
        # From the last whole block before each point on, with a weight for each value since.
        blocks = (at + 1) // BLOCK
        since = (at + 1) % BLOCK
        means = np.concatenate([[0.0], self._ends.values])[blocks] * self.smoothing**since
        offsets = np.arange(BLOCK)
        steps_ago = since[:, None] - 1 - offsets
        weights = np.where(
            steps_ago >= 0, (1 - self.smoothing) * self.smoothing ** np.maximum(steps_ago, 0.0), 0.0
        )
        values = self.values[np.minimum(blocks[:, None] * BLOCK + offsets, max(0, len(self.values) - 1))]
        with np.errstate(all="ignore"):
            means += np.where(weights > 0, weights * values, 0.0).sum(axis=1)
        for row in np.flatnonzero(~np.isfinite(means)):
            first = int(blocks[row]) * BLOCK
            before = float(self._ends.values[blocks[row] - 1]) if blocks[row] else 0.0
            means[row] = self._follow(before, self.values[first : int(at[row]) + 1])
        counts = at + 1 - np.searchsorted(self.marks, at, side="right")
        with np.errstate(all="ignore"):
            debiased: Floats = np.where(
                counts > 0, means / (1 - self.smoothing ** counts.astype(float)), np.nan
            )
        return debiased

    def average_at(self, point: int) -> float:
        """Return the debiased average at one point."""
        return float(self.averages_at([point])[0])

    def first_at(self, place: float, axis: Axis, low: int = 0) -> int:
        """Return the first point, from `low` on, that does not lie before `place` along the axis."""
        places = self.positions.along(axis)[: len(self)]
        return max(min(low, len(self)), int(np.searchsorted(places, place)))

    def _grow_averages(self) -> None:
        """Keep the average's m at the end of every block that is whole."""
        first, last = self._ends.count, len(self.values) // BLOCK
        if first == last:
            return
        blocks = self.values[first * BLOCK : last * BLOCK].reshape(-1, BLOCK)
        weights = (1 - self.smoothing) * self.smoothing ** np.arange(BLOCK - 1, -1, -1.0)
        with np.errstate(all="ignore"):
            added = (blocks * weights).sum(axis=1)
        mean = float(self._ends.values[-1]) if first else 0.0
        kept = self.smoothing**BLOCK
        ends = []
        for block, add in enumerate(added.tolist()):
            then = kept * mean + add
            # A block with a value that is not finite, or with huge ones, is gone through value by value.
            mean = then if abs(then) < np.inf else self._follow(mean, blocks[block])
            ends.append(mean)
        self._ends.extend(ends)

    def _follow(self, mean: float, values: Floats) -> float:
        for value in values[np.isfinite(values)].tolist():
            mean = self.smoothing * mean + (1 - self.smoothing) * value
        return mean


class _Spikes:
    """Judges a series block by block from the blocks' extremes alone: `found` lists at most one point a block.

    A block's greatest value is a spike where it lies DEVIATIONS standard deviations above the middle of the last block
    without one. The deviation comes from an exponential average of those blocks' ranges. Invariant: what is a spike
    depends only on the values before the end of its block, never on how they arrived.
    """

    def __init__(self) -> None:
        self.found: list[int] = []
        self._judged = 0
        self._calm = self._raised = 0
        self._middle = self._range = 0.0

    def grow(self, series: Series) -> None:
        """Judge the blocks that are new."""
        last = len(series.values) // BLOCK
        if last == self._judged:
            return
        blocks = series.finite(self._judged * BLOCK, last * BLOCK).reshape(-1, BLOCK)
        lows, highs = np.fmin.reduce(blocks, axis=1).tolist(), np.fmax.reduce(blocks, axis=1).tolist()
        for block, (low, high) in enumerate(zip(lows, highs, strict=True)):
            if low != low:
                continue  # no value of it is finite
            limit = self._middle + DEVIATIONS / _RANGE_IN_DEVIATIONS * self._range
            if high > limit and self._calm >= CALM_BLOCKS and self._raised < NEW_LEVEL_BLOCKS:
                self._raised += 1
                self.found.append((self._judged + block) * BLOCK + int(np.nanargmax(blocks[block])))
                continue
            self._raised = 0
            self._calm += 1
            self._range += (high - low - self._range) * (1 / self._calm if self._calm < 10 else 0.1)
            self._middle = low + (high - low) / 2
        self._judged = last
