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
    origin = series.positions.origin(axis)
    start = series.first_at(origin + scale.low, axis)
    stop = series.first_at(math.nextafter(origin + scale.high, math.inf), axis, start)
    columns = []
    for x, first, last in _stretches(series, axis, scale, origin, start, stop, width):
        extremes = series.window(first, last)
        if extremes is not None:
            columns.append(Column(x, first, last, *extremes))
    return Shown(curve, start, stop, columns)


def column_of(place: float, scale: Scale, width: int) -> int:
    """The column of dots that a place falls into; far outside it is held near."""
    share = min(1e3, max(-1e3, scale.share(place)))
    return width - 1 if share == 1 else math.floor(share * width)


def value_range(parts: Sequence[Shown], *, log: bool, with_spikes: bool) -> tuple[float, float] | None:
    """The least and greatest value to make room for; with `log` of those above zero. None: there is none.

    Without spikes the blocks of 32 points around them do not count, unless nothing else is shown.
    """
    lows: list[float] = []
    highs: list[float] = []
    for part in parts:
        series = part.curve.series
        spikes = [] if with_spikes else series.spikes
        for column in part.columns:
            extremes: tuple[float, float] | None = (column.low, column.high)
            if spikes:
                extremes = _calm_extremes(series, column, spikes)
            if extremes is not None:
                lows.append(extremes[0])
                highs.append(extremes[1])
    if log:
        lows = [value for value in (*lows, *highs) if value > 0]
        highs = lows
    if lows:
        return min(lows), max(highs)
    return None if with_spikes else value_range(parts, log=log, with_spikes=True)


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


def _stretches(
    series: Series, axis: Axis, scale: Scale, origin: float, start: int, stop: int, width: int
) -> list[tuple[int, int, int]]:
    """(column, start, stop) of each column that has points, from the left."""
    stretches: list[tuple[int, int, int]] = []
    if stop - start <= 2 * width:
        places = series.positions.along(axis)
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
        last = stop if x == width - 1 else series.first_at(origin + scale.value((x + 1) / width), axis, first)
        last = min(last, stop)
        if last > first:
            stretches.append((x, first, last))
            first = last
    return stretches


def _calm_extremes(series: Series, column: Column, spikes: Sequence[int]) -> tuple[float, float] | None:
    """The extremes of a column without the blocks that have a spike."""
    pieces = []
    at = column.start
    for spike in spikes[bisect_left(spikes, column.start // BLOCK * BLOCK) :]:
        block = spike // BLOCK * BLOCK
        if block >= column.stop:
            break
        pieces.append(series.window(at, block))
        at = max(at, block + BLOCK)
    if at == column.start:
        return column.low, column.high
    pieces.append(series.window(at, column.stop))
    known = [piece for piece in pieces if piece is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
