"""A curve of a chart, and what of it falls into each column of dots.

Invariant: every point of what is shown falls into exactly one column, so that no extreme is lost however many points a
column holds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.tui.charts.extremes import BLOCK
from workbench.tui.charts.scale import Scale
from workbench.tui.charts.series import Axis, Series


@dataclass(frozen=True)
class Curve:
    """One quantity in a chart.

    `form`: "line" is a line, where the series has an average that of the average, over the values as dots; "marks" a
    sign at each point, for what is measured now and then. `colour` chooses among the chart's colours; None: by the
    curve's place in the chart. A run that keeps its number keeps its colour.
    """

    name: str
    series: Series
    form: Literal["line", "marks"] = "line"
    colour: int | None = None


class Column(NamedTuple):
    """The points start to stop, without stop, that fall into column `x`, with their extremes."""

    x: int
    start: int
    stop: int
    low: float
    high: float


class Shown(NamedTuple):
    """A curve's part within a horizontal axis. Columns without a finite value are not listed."""

    curve: Curve
    start: int
    stop: int
    columns: list[Column]


def shown_part(curve: Curve, axis: Axis, scale: Scale, width: int) -> Shown:
    """What `width` columns of dots show of a curve."""
    series = curve.series
    start, stop = _shown_points(series, axis, scale)
    columns = []
    for x, first, last in _stretches(series, axis, scale, start, stop, width):
        extremes = series.window(first, last)
        if extremes is not None:
            columns.append(Column(x, first, last, *extremes))
    return Shown(curve, start, stop, columns)


def column_of(place: float, scale: Scale, width: int) -> int:
    """The column of dots that a place falls into; far outside it is held near."""
    share = min(1e3, max(-1e3, scale.share(place)))
    return width - 1 if share == 1 else math.floor(share * width)


def value_range(
    curves: Sequence[Curve], axis: Axis, scale: Scale, *, log: bool, with_spikes: bool
) -> tuple[float, float] | None:
    """The least and greatest value shown, to make room for; with `log` of those above zero. None: there is none.

    Without spikes the blocks of 32 points around them do not count, unless nothing else is shown.
    """
    pieces = []
    for curve in curves:
        series = curve.series
        start, stop = _shown_points(series, axis, scale)
        found = [
            series.window(*stretch, above_zero=log) for stretch in _calm(series, start, stop, with_spikes)
        ]
        pieces += [piece for piece in found if piece is not None]
    if pieces:
        return min(low for low, _ in pieces), max(high for _, high in pieces)
    return None if with_spikes else value_range(curves, axis, scale, log=log, with_spikes=True)


def marked_columns(points: Sequence[int], part: Shown, axis: Axis, scale: Scale, width: int) -> list[int]:
    """The columns of those of the points, which are sorted, that are shown; each once."""
    places = part.curve.series.positions.along(axis)
    origin = part.curve.series.positions.origin(axis)
    columns: list[int] = []
    at, end = bisect_left(points, part.start), bisect_left(points, part.stop)
    while at < end and len(columns) < width:
        x = min(width - 1, max(0, column_of(places[points[at]] - origin, scale, width)))
        columns.append(x)
        # Straight to the first point of the next column: there may be a million.
        beyond = part.curve.series.first_at(origin + scale.value((x + 1) / width), axis, points[at] + 1)
        at = bisect_left(points, beyond, at + 1, end)
    return columns


def _shown_points(series: Series, axis: Axis, scale: Scale) -> tuple[int, int]:
    """The points from the scale's low end to its high end, both shown."""
    origin = series.positions.origin(axis)
    start = series.first_at(origin + scale.low, axis)
    return start, series.first_at(math.nextafter(origin + scale.high, math.inf), axis, start)


def _stretches(
    series: Series, axis: Axis, scale: Scale, start: int, stop: int, width: int
) -> list[tuple[int, int, int]]:
    """(column, start, stop) of each column that has points, from the left."""
    stretches: list[tuple[int, int, int]] = []
    places, origin = series.positions.along(axis), series.positions.origin(axis)
    if stop - start <= 2 * width:
        x, first = -1, start
        for point in range(start, stop):
            here = min(width - 1, max(0, column_of(places[point] - origin, scale, width)))
            if here > x:
                if point > first:
                    stretches.append((x, first, point))
                x, first = here, point
        if stop > first:
            stretches.append((x, first, stop))
        return stretches
    first = start
    for x in range(width):
        edge = origin + scale.value((x + 1) / width)
        last = stop if x == width - 1 else bisect_left(places, edge, first, stop)
        if last > first:
            stretches.append((x, first, last))
            first = last
    return stretches


def _calm(series: Series, start: int, stop: int, with_spikes: bool) -> list[tuple[int, int]]:
    """What is left of a stretch without the blocks that have a spike."""
    spikes = [] if with_spikes else series.spikes
    stretches = []
    for spike in spikes[bisect_left(spikes, start // BLOCK * BLOCK) : bisect_left(spikes, stop)]:
        block = spike // BLOCK * BLOCK
        stretches.append((start, block))
        start = max(start, block + BLOCK)
    return [*stretches, (start, stop)]
