"""The debiased exponential average of a growing array, at any of its points.

m_t = s m_(t-1) + (1 - s) y_t from m_0 = 0, and the average is m_t / (1 - s^t), which takes out the pull of the zero at
the start (Kingma and Ba 2015, "Adam: a method for stochastic optimization", section 3). Kept is m at the end of every
8 values, a byte a value; what lies between is worked out when asked for. Invariant: a value that is not finite is no t:
the average before it stands.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

STRIDE = 8
"""Values from one kept m to the next."""


class Average:
    """Over `values`, which others append to, and `marks`, the sorted places of those that are not finite.

    `smoothing` is s, the share that the average keeps of itself at each value, in [0, 1).
    """

    def __init__(self, values: array[float], marks: array[int], smoothing: float) -> None:
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1): {smoothing}")
        self.smoothing = smoothing
        self._values = values
        self._marks = marks
        self._ends = array("d")
        """m after every whole block."""

    def grow(self) -> None:
        """Take in what was appended since the last time."""
        keep, take = self.smoothing, 1 - self.smoothing
        mean = self._ends[-1] if self._ends else 0.0
        start = len(self._ends) * STRIDE
        fresh = self._values[start : len(self._values) // STRIDE * STRIDE]
        ends = []
        # One turn for eight values: a million take a fraction of a second.
        for eight in zip(*[iter(fresh)] * STRIDE, strict=True):
            a, b, c, d, e, f, g, h = eight
            then = keep * mean + take * a
            then = keep * then + take * b
            then = keep * then + take * c
            then = keep * then + take * d
            then = keep * then + take * e
            then = keep * then + take * f
            then = keep * then + take * g
            then = keep * then + take * h
            mean = then if math.isfinite(then) else self._follow(mean, eight)[-1]
            ends.append(mean)
        self._ends.extend(ends)

    def cut(self, count: int) -> None:
        """Forget all after the first `count` values."""
        del self._ends[count // STRIDE :]

    def at(self, point: int) -> float:
        """The average at one point; NaN before the first finite value. Quickest at the last of every 8 points."""
        block = min((point + 1) // STRIDE, len(self._ends))
        mean = self._ends[block - 1] if block else 0.0
        if block * STRIDE <= point:
            mean = self._follow(mean, self._values[block * STRIDE : point + 1])[-1]
        return self._debiased(mean, point + 1 - bisect_right(self._marks, point))

    def between(self, start: int, stop: int) -> list[float]:
        """The average at each of the points start to stop, without stop."""
        block = min(start // STRIDE, len(self._ends))
        mean = self._ends[block - 1] if block else 0.0
        means = self._follow(mean, self._values[block * STRIDE : stop])[start - block * STRIDE :]
        marked = bisect_left(self._marks, start)
        averages = []
        for point, mean in enumerate(means, start):
            marked += marked < len(self._marks) and self._marks[marked] == point
            averages.append(self._debiased(mean, point + 1 - marked))
        return averages

    def _debiased(self, mean: float, count: int) -> float:
        """m after `count` finite values without the pull of its start."""
        return mean / (1 - self.smoothing**count) if count else math.nan

    def _follow(self, mean: float, values: Sequence[float]) -> list[float]:
        keep, take = self.smoothing, 1 - self.smoothing
        means = []
        for value in values:
            if math.isfinite(value):
                mean = keep * mean + take * value
            means.append(mean)
        return means
