"""A curve of a chart, and what of it falls into each column of dots.

Invariant: every point of what is shown falls into exactly one column, so that no extreme is lost however many points a
column holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from workbench.tui.charts.scale import Scale
from workbench.tui.charts.series import BLOCK, Axis, Floats, Points, Series


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
    """Return what `width` columns of dots show of a curve."""
    series = curve.series
    start, stop = _shown_points(series, axis, scale)
    if start >= stop or width < 1:
        return Shown(curve, start, stop, [])
    places = series.positions.along(axis)[start:stop]
    firsts = np.concatenate(
        [[0], np.searchsorted(places, _edges(series, axis, scale, width)), [stop - start]]
    )
    x = np.flatnonzero(firsts[1:] > firsts[:-1])
    values = series.finite(start, stop)
    lows, highs = np.fmin.reduceat(values, firsts[x]), np.fmax.reduceat(values, firsts[x])
    found = zip(
        x.tolist(),
        (start + firsts[x]).tolist(),
        (start + firsts[x + 1]).tolist(),
        lows.tolist(),
        highs.tolist(),
        strict=True,
    )
    return Shown(curve, start, stop, [Column(*column) for column in found if column[3] == column[3]])


def column_of(place: float, scale: Scale, width: int) -> int:
    """Return the column that a place falls into; beyond the axis one beyond the picture, but not far from it."""
    share = min(1e3, max(-1e3, scale.share(place)))
    return width - 1 if share == 1 else math.floor(share * width)


def value_range(
    curves: Sequence[Curve], axis: Axis, scale: Scale, *, log: bool, with_spikes: bool
) -> tuple[float, float] | None:
    """Return the least and greatest value shown, to make room for; with `log` of those above zero. None without any.

    Without spikes the blocks of 32 points around them do not count, unless nothing else is shown.
    """
    pieces = []
    for curve in curves:
        series = curve.series
        start, stop = _shown_points(series, axis, scale)
        values = series.finite(start, stop)
        if not with_spikes:
            values = values[_calm(series.spikes, start, stop)]
        if log:
            values = values[values > 0]
        if len(values) and not math.isnan(low := float(np.fmin.reduce(values))):
            pieces.append((low, float(np.fmax.reduce(values))))
    if pieces:
        return min(low for low, _ in pieces), max(high for _, high in pieces)
    return None if with_spikes else value_range(curves, axis, scale, log=log, with_spikes=True)


def marked_columns(points: Points, part: Shown, axis: Axis, scale: Scale, width: int) -> list[int]:
    """Return the columns of those of the points, which are sorted, that are shown; each once."""
    series = part.curve.series
    shown = points[(points >= part.start) & (points < part.stop)]
    places = series.positions.along(axis)[shown]
    columns = np.searchsorted(_edges(series, axis, scale, width), places, side="right")
    return [int(column) for column in np.unique(columns)]


def _edges(series: Series, axis: Axis, scale: Scale, width: int) -> Floats:
    """Return where the columns behind the first begin."""
    origin = series.positions.origin(axis)
    return np.array([origin + scale.value(column / width) for column in range(1, width)])


def _shown_points(series: Series, axis: Axis, scale: Scale) -> tuple[int, int]:
    """Return the points from the scale's low end to its high end, both shown."""
    origin = series.positions.origin(axis)
    start = series.first_at(origin + scale.low, axis)
    return start, series.first_at(math.nextafter(origin + scale.high, math.inf), axis, start)


def _calm(spikes: Points, start: int, stop: int) -> slice | Points:
    """Return what chooses the points, counted from `start`, whose block has no spike."""
    near = spikes[(spikes >= start // BLOCK * BLOCK) & (spikes < stop)]
    if not len(near):
        return slice(None)
    points = np.arange(start, stop)
    return points[~np.isin(points // BLOCK, near // BLOCK)] - start
