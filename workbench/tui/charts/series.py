"""One quantity over a run as it grows: where its points lie, its values, their average, and what stands out.

`Positions` hold where points lie (step, tokens, time), once for all the series of a run; a `Series` holds one value a
point. Both only take in: averages, extremes and spikes are worked out when a chart first looks, so that a series that
nobody looks at costs a copy of its values. Invariant: a value that is not finite stays in the series and is listed in
`marks`; it changes neither averages nor extremes.

Positions take 24 bytes a point, each series on them under 9: four series of one run, 15 a point and series.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from operator import le
from typing import Literal

from workbench.tui.charts.average import Average
from workbench.tui.charts.extremes import Extremes
from workbench.tui.charts.spikes import Spikes

Axis = Literal["step", "tokens", "time"]
AXES: tuple[Axis, ...] = ("step", "tokens", "time")
_STRETCH = 256
_NONE_GIVEN = (array("d", [math.nan]) * _STRETCH).tobytes()


class Positions:
    """Where the points of one or several series lie. Along each axis positions never fall."""

    def __init__(self) -> None:
        self._axes: dict[Axis, array[float]] = {axis: array("d") for axis in AXES}
        self._checked = dict.fromkeys(AXES, 0)

    def __len__(self) -> int:
        return len(self._axes["step"])

    def append(self, step: float, tokens: float = math.nan, time: float = math.nan) -> None:
        """One point: its step, all tokens up to it, and unix seconds."""
        self._axes["step"].append(step)
        self._axes["tokens"].append(tokens)
        self._axes["time"].append(time)

    def extend(
        self,
        steps: Sequence[float],
        tokens: Sequence[float] | None = None,
        times: Sequence[float] | None = None,
    ) -> None:
        """Many points. Fastest with arrays of float64. Raises ValueError where the lengths differ."""
        columns: dict[Axis, Sequence[float] | None] = {"step": steps, "tokens": tokens, "time": times}
        for axis, values in columns.items():
            if values is not None and len(values) != len(steps):
                raise ValueError(f"{len(values)} positions by {axis} for {len(steps)} steps")
        for axis, values in columns.items():
            self._axes[axis].extend(array("d", [math.nan]) * len(steps) if values is None else values)

    def along(self, axis: Axis) -> array[float]:
        """Positions along one axis. Not to be changed.

        What is not known, or lies before the point before it (a clock that was set back), takes the place of the
        point before it, so that a place can be searched for.
        """
        places = self._axes[axis]
        done = self._checked[axis]
        if done < len(places):
            start = max(0, done - 1)
            fresh = places[start:]
            if not math.isfinite(sum(fresh)) or not all(map(le, fresh, islice(fresh, 1, None))):
                places[start:] = array("d", _rising(fresh))
            self._checked[axis] = len(places)
        return places

    def origin(self, axis: Axis) -> float:
        """What relative positions count from: the first moment along time, 0 otherwise."""
        places = self.along(axis)
        return places[0] if axis == "time" and places else 0.0

    def cut(self, count: int) -> None:
        """Keep the first `count` points."""
        for axis, places in self._axes.items():
            del places[count:]
            self._checked[axis] = min(self._checked[axis], len(places))


class Series:
    """One value a point of `positions`, which several series may share.

    `smoothing` is the share that the average keeps of itself at each point, in [0, 1); 0: there is no average.
    With `find_spikes` values that stand out upwards are listed in `spikes`.
    """

    def __init__(
        self, positions: Positions | None = None, *, smoothing: float = 0.0, find_spikes: bool = False
    ) -> None:
        self.positions = Positions() if positions is None else positions
        self.find_spikes = find_spikes
        self.values: array[float] = array("d")
        """Append through `append` and `extend` alone."""
        self._marks: array[int] = array("L")
        self._extremes = Extremes(self.values)
        self._average = Average(self.values, self._marks, smoothing)
        self._spikes = Spikes()
        self._seen = 0

    def __len__(self) -> int:
        """How many points have both a place and a value."""
        return min(len(self.values), len(self.positions))

    @property
    def smoothing(self) -> float:
        return self._average.smoothing

    def append(self, value: float) -> None:
        """The value of the next position."""
        self.values.append(value)

    def extend(self, values: Sequence[float]) -> None:
        """The values of the next positions. Fastest with an array of float64."""
        self.values.extend(values)

    def cut(self, count: int) -> None:
        """Keep the first `count` values: a resumption does the others again."""
        self._extremes.cut(count)
        self._average.cut(count)
        self._spikes = Spikes()
        del self._marks[bisect_left(self._marks, count) :], self.values[count:]
        self._seen = min(self._seen, len(self.values))

    @property
    def marks(self) -> array[int]:
        """The points whose value is not finite, in order."""
        self._grow()
        return self._marks

    @property
    def spikes(self) -> array[int]:
        """The points that stand out upwards, in order; each is found when its block of 32 is whole."""
        self._grow()
        if self.find_spikes:
            self._spikes.grow(self.values, *self._extremes.blocks)
        return self._spikes.found

    @property
    def last(self) -> float | None:
        """The newest value, NaN included; None before the first."""
        return self.values[len(self) - 1] if len(self) else None

    def window(self, start: int, stop: int, *, above_zero: bool = False) -> tuple[float, float] | None:
        """The least and greatest finite value of the points start to stop, without stop; None where there is none.

        With `above_zero` of the values above zero, see `Extremes.window_above_zero`.
        """
        self._grow()
        stop = min(stop, len(self))
        return (
            self._extremes.window_above_zero(start, stop)
            if above_zero
            else self._extremes.window(start, stop)
        )

    def averages(self, start: int, stop: int) -> list[float]:
        """The debiased average at each of the points start to stop, without stop; NaN before the first finite value."""
        self._grow()
        start, stop = max(0, start), min(stop, len(self))
        return self._average.between(start, stop) if start < stop else []

    def average_at(self, point: int) -> float:
        """The debiased average at one point; quickest where point + 1 is a multiple of 32."""
        self._grow()
        return self._average.at(point)

    def first_at(self, place: float, axis: Axis, low: int = 0) -> int:
        """The first point, from `low` on, that does not lie before `place` along the axis."""
        return bisect_left(self.positions.along(axis), place, min(low, len(self)), len(self))

    def _grow(self) -> None:
        if self._seen == len(self.values):
            return
        fresh = self.values[self._seen :]
        whole = math.isfinite(sum(fresh))
        if not whole:
            points = enumerate(fresh, self._seen)
            self._marks.extend([point for point, value in points if not math.isfinite(value)])
        self._seen = len(self.values)
        self._extremes.grow(whole=whole)
        if self.smoothing:
            self._average.grow()


def given_rows(values: Sequence[float], *columns: Sequence[float]) -> tuple[array[float], ...]:
    """The rows whose value is not NaN: the values, then each column. For what a run records only now and then."""
    rows: list[int] = []
    data = array("d", values).tobytes()
    for start in range(0, len(values), _STRETCH):
        # Most stretches of what is recorded now and then have none.
        if data[8 * start : 8 * (start + _STRETCH)] != _NONE_GIVEN[: 8 * (len(values) - start)]:
            stretch = values[start : start + _STRETCH]
            rows += [row for row, value in enumerate(stretch, start) if value == value]
    return tuple(array("d", [column[row] for row in rows]) for column in (values, *columns))


def _rising(places: Iterable[float]) -> Iterable[float]:
    """Each place, or the highest before it where that is higher or the place is not finite; 0 before the first."""
    known = (place if math.isfinite(place) else -math.inf for place in places)
    return (max(0.0, place) if place == -math.inf else place for place in accumulate(known, max))
