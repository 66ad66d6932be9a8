"""What a chart says in words: its newest value, what stands under the cursor, how its axes are set.

Invariant: a value that is not finite is said as such (NaN, inf), never left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.tui.charts.curves import Curve
from workbench.tui.charts.series import Axis, Series
from workbench.tui.charts.short_figures import readout, short, short_time
from workbench.tui.charts.view import View


def newest_value(series: Series, unit: str = "") -> str:
    """The newest average, where there is one and the newest value is finite, else that value; empty without values."""
    if series.last is None:
        return ""
    point = len(series) - 1
    value = float(series.values[point])
    if series.smoothing and math.isfinite(value):
        value = series.average_at(point)
    return said_value(value, unit, digits=5)


def read_out(curves: Sequence[Curve], place: float, axis: Axis, unit: str) -> list[str]:
    """The point nearest to a place: where it lies, then each curve's value there and its average."""
    said: list[str] = []
    for curve in curves:
        series = curve.series
        if not len(series):
            continue
        point = nearest_point(series, place, axis)
        if not said:
            said.append(f"{axis} {said_place(place_of(series, point, axis), axis)}")
        said.append(f"{curve.name} {said_value(float(series.values[point]), unit)}")
        if series.smoothing and curve.form == "line":
            said.append(f"average {said_value(series.average_at(point), unit)}")
    return said or ["no values yet"]


def settings(view: View, *, log_y: bool, with_spikes: bool) -> list[str]:
    """How the axes are set, as far as it is not the usual."""
    said = [f"by {view.axis}"]
    if view.log:
        said.append(f"log {view.axis}")
    if log_y:
        said.append("log values")
    if view.skip:
        said.append(f"without the first {view.skip:,}")
    if with_spikes:
        said.append("room for spikes")
    if view.part is not None:
        said.append("zoomed" if view.follows else "zoomed, not following")
    return said


def nearest_point(series: Series, place: float, axis: Axis) -> int:
    """The point of a series, which has one, that lies nearest to a place relative to the axis's origin."""
    after = min(series.first_at(place + series.positions.origin(axis), axis), len(series) - 1)
    before = max(0, after - 1)
    nearer = place - place_of(series, before, axis) < place_of(series, after, axis) - place
    return before if nearer else after


def place_of(series: Series, point: int, axis: Axis) -> float:
    """Where a point lies, relative to the axis's origin."""
    return float(series.positions.along(axis)[point]) - series.positions.origin(axis)


def said_place(place: float, axis: Axis) -> str:
    if axis == "time":
        return short_time(place)
    return f"{place:,.0f}" if axis == "step" else short(place)


def said_value(value: float, unit: str, digits: int = 6) -> str:
    """The value with its unit: "s" is a length of time, "%" a share, "e" a number with an exponent and no unit.

    A rate is without digits that only flicker.
    """
    if math.isnan(value):
        return "NaN"
    if unit == "s" and math.isfinite(value):
        return short_time(value)
    if unit == "e" and math.isfinite(value):
        return f"{value:.2e}"
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit and 1 <= abs(value) < 1e12:
        return f"{value:,.{0 if abs(value) >= 100 else 1}f} {unit}"
    return f"{readout(value, digits)} {unit}".rstrip()
