"""What falls into each column of dots: all points, once, with nothing lost."""

from __future__ import annotations

import math
import random

import pytest
from rich.style import Style

from workbench.tui.charts.plot import (
    Curve,
    Frame,
    Look,
    draw,
    marked_columns,
    row_labels,
    shown_part,
    value_range,
)
from workbench.tui.charts.scale import Scale
from workbench.tui.charts.series import Axis, Positions, Series
from workbench.tui.glyphs import BLOCKS


def run_of(values: list[float], *, find_spikes: bool = False) -> Series:
    series = Series(find_spikes=find_spikes)
    count = len(values)
    series.positions.extend(
        range(count), [10 * at for at in range(count)], [1e9 + 2 * at for at in range(count)]
    )
    series.extend(values)
    return series


@pytest.mark.parametrize("axis", ["step", "tokens", "time"])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("count", [3, 150, 5_000])
def test_every_point_shown_is_in_one_column_with_its_extremes(axis: Axis, log: bool, count: int) -> None:
    chance = random.Random(14)
    values = [chance.gauss(0, 1) if chance.random() > 0.01 else math.nan for _ in range(count)]
    series = run_of(values)
    per_step = {"step": 1, "tokens": 10, "time": 2}[axis]
    for _ in range(20):
        a, b = sorted(chance.uniform(0, count * per_step) for _ in "ab")
        scale = Scale.fit(a, b, log=log)
        width = chance.randrange(1, 160)
        part = shown_part(Curve("y", series), axis, scale, width)
        inside = [at for at in range(count) if scale.low <= at * per_step <= scale.high]
        assert list(range(part.start, part.stop)) == inside
        listed = [at for column in part.columns for at in range(column.start, column.stop)]
        assert listed == sorted(set(listed))
        assert {at for at in inside if math.isfinite(values[at])} <= set(listed)
        assert [column.x for column in part.columns] == sorted({column.x for column in part.columns})
        for column in part.columns:
            assert 0 <= column.x < width
            here = [value for value in values[column.start : column.stop] if math.isfinite(value)]
            assert (column.low, column.high) == (min(here), max(here))


def test_a_spike_takes_no_room_unless_it_is_asked_for() -> None:
    chance = random.Random(15)
    values = [3 + chance.gauss(0, 0.1) for _ in range(1_000)]
    values[500], values[503] = 90.0, 50.0
    curve = Curve("loss", run_of(values, find_spikes=True))
    scale = Scale.fit(0, 999)
    low, high = value_range([curve], "step", scale, log=False, with_spikes=False) or (0, 0)
    assert (low, high) == (min(values), max(value for value in values if value < 50))
    assert value_range([curve], "step", scale, log=False, with_spikes=True) == (min(values), 90.0)
    near = Scale.fit(499, 501)
    assert value_range([curve], "step", near, log=False, with_spikes=False) == (min(values[499:502]), 90.0)


def test_a_logarithmic_range_leaves_out_what_is_not_above_zero() -> None:
    curve = Curve("rate", run_of([0.0, -2.0, 1e-4, 1e-3, math.nan]))
    assert value_range([curve], "step", Scale.fit(0, 9), log=True, with_spikes=True) == (1e-4, 1e-3)
    none = Curve("rate", run_of([0.0, -2.0]))
    assert value_range([none], "step", Scale.fit(0, 9), log=True, with_spikes=True) is None
    both = value_range([none, curve], "step", Scale.fit(0, 9), log=True, with_spikes=True)
    assert both == (1e-4, 1e-3)


def test_marked_points_are_found_in_their_columns_however_many_there_are() -> None:
    chance = random.Random(17)
    for share in (0.001, 0.5, 1.0):
        values = [math.nan if chance.random() < share else 1.0 for _ in range(5_000)]
        series = run_of(values)
        part = shown_part(Curve("y", series), "step", Scale.fit(1_000, 3_999), 100)
        columns = marked_columns(series.marks, part, "step", Scale.fit(1_000, 3_999), 100)
        wanted = {int((at - 1_000) / 2_999 * 100) for at in range(1_000, 3_999) if math.isnan(values[at])}
        assert set(columns) == wanted
        assert len(columns) == len(set(columns))


def test_areas_are_stacked_and_each_is_what_is_above_the_one_before() -> None:
    positions = Positions()
    positions.extend(range(100))
    low, high = Series(positions), Series(positions)
    low.extend([1.0] * 100)
    high.extend([4.0] * 100)
    base = Style(color="white")
    colours = (Style(color="red"), Style(color="green"))
    look = Look(base, base, base, base, base, colours)
    curves = (Curve("compute", low, "area"), Curve("step", high, "area"))
    plot = draw(Frame(curves, Scale(0, 99), "step"), look, BLOCKS, 60, 24)
    shown = [
        segments
        for segments in plot.rows
        if any(s.style and s.style.color in (c.color for c in colours) for s in segments)
    ]
    names = [
        {s.style.color.name for s in row if s.style and s.style.color and "⠀" < s.text[:1] <= "⣿"}
        for row in shown
    ]
    rows = [row for row in names if row]
    red = sum(row == {"red"} for row in rows)
    green = sum("green" in row for row in rows)
    assert red and green and rows[0] == {"green"} and rows[-1] == {"red"}
    assert red / (red + green) == pytest.approx(0.25, abs=0.1), "from zero on, a quarter of the step"


@pytest.mark.parametrize("value", [3e-4, 430_000.0, 0.0])
def test_a_vertical_axis_always_has_two_labels(value: float) -> None:
    for low, high in ((value, value), (0.0, value or 1.0), (value, 1.07 * value + 1e-9)):
        for height in (2, 3, 5, 9):
            assert len(row_labels(Scale.fit(low, high, margin=0.04), height, "")) >= 2
