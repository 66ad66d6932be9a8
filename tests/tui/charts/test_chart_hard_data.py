"""Whatever the data, the size and the view are, a chart draws exactly its box and raises nothing."""

from __future__ import annotations

import math
import random

import pytest
from rich.cells import cell_len
from rich.style import Style

from workbench.tui.charts.chart import read_out
from workbench.tui.charts.plot import Curve, Frame, Look, draw, newest_value
from workbench.tui.charts.scale import View, bounds_of
from workbench.tui.charts.series import AXES, Series
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs

STYLE = Style()
LOOK = Look(STYLE, STYLE, STYLE, STYLE, STYLE, (Style(color="cyan"), Style(color="red")))
ODD = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, -1e308, 1e-308, 5e-324]
NAMES = [
    "loss",
    "",
    "a run with a name that is far too long to be shown",
    "Läufer",
    "数据",
    "tab\there",
    "[b]",
]


def some_series(chance: random.Random) -> Series:
    """Empty, one point, all equal, only odd values, noise with holes, on places that may be unknown or repeat."""
    count = chance.choice([0, 1, 2, 31, 33, 300, 2_000])
    kind = chance.randrange(5)
    if kind == 0:
        values = [chance.choice(ODD)] * count
    elif kind == 1:
        values = [chance.choice(ODD) for _ in range(count)]
    elif kind == 2:
        values = [-chance.random() for _ in range(count)]
    else:
        values = [
            chance.choice(ODD) if chance.random() < 0.03 else chance.gauss(3, 0.1) for _ in range(count)
        ]
    series = Series(smoothing=chance.choice([0.0, 0.9, 0.98]), find_spikes=chance.random() < 0.5)
    first = chance.choice([0, 1, 10**9])
    places = [first + chance.choice([0, 1]) * at for at in range(count)]
    unknown = [chance.choice([math.nan, math.inf, float(at)]) for at in range(count)]
    series.positions.extend(sorted(places), chance.choice([None, unknown]), chance.choice([None, unknown]))
    series.extend(values)
    return series


def some_view(chance: random.Random, series: list[Series]) -> View:
    view = View(chance.choice(AXES), chance.random() < 0.3, chance.choice([0, 0, 10, 100_000]))
    for _ in range(chance.randrange(4)):
        bounds = bounds_of(series, view) or (0.0, 1.0)
        if chance.random() < 0.7:
            view.zoom(chance.choice([0.001, 0.5, 2.0]), chance.random(), bounds)
        else:
            view.pan(chance.choice([-math.inf, -0.3, 0.3, math.inf]), bounds)
    return view


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "ascii"])
def test_a_chart_draws_exactly_its_box(glyphs: Glyphs, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        series = [some_series(chance) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        curves = [
            Curve(chance.choice(NAMES), one, chance.choice(["line", "line", "marks"])) for one in series
        ]
        view = some_view(chance, series)
        scale = view.scale(bounds_of(series, view) or (0.0, 1.0))
        width, height = chance.choice([0, 1, 5, 20, 24, 58, 118]), chance.choice([0, 1, 2, 3, 5, 8, 30])
        cursor = chance.choice([None, scale.value(chance.uniform(-0.5, 1.5))])
        unit = chance.choice(["", "s"])
        frame = Frame(
            curves, scale, view.axis, chance.random() < 0.4, chance.random() < 0.5, unit, cursor=cursor
        )
        plot = draw(frame, LOOK, glyphs, width, height)
        rows = ["".join(segment.text for segment in row) for row in plot.rows]
        assert [cell_len(row) for row in rows] == [width] * height
        assert all(row.isprintable() for row in rows)
        if glyphs.ascii:
            assert "".join(rows).isascii()
        assert read_out(curves, 0.0 if cursor is None else cursor, view.axis, unit)
        assert all(newest_value(one, unit) or one.last is None for one in series)
