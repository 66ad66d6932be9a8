"""The chart in an application: every key does its work, the mouse too, and nothing is drawn twice or out of its box."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import pytest
from rich.segment import Segment
from screen_host import picture
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.pilot import Pilot

from workbench.tui.charts import plot
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.plot import Curve
from workbench.tui.charts.series import Series
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs

BOTH = pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "ascii"])


class OneChart(App[None]):
    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.chart = chart

    def compose(self) -> ComposeResult:
        yield self.chart


def losses(count: int = 1_000, *, smoothing: float = 0.9) -> Series:
    """A falling loss with noise, a spike at 60 % and a NaN at 80 %."""
    chance = random.Random(18)
    series = Series(smoothing=smoothing, find_spikes=True)
    steps = array("d", range(count))
    series.positions.extend(steps, [512 * step for step in steps], [1e9 + 0.5 * step for step in steps])
    values = [2 + 8 * math.exp(-step / 50) + chance.gauss(0, 0.05) for step in range(count)]
    if count >= 200:
        values[count * 6 // 10], values[count * 8 // 10] = 99.0, math.nan
    series.extend(values)
    return series


def drawn(chart: Chart) -> list[str]:
    return [chart.render_line(y).text for y in range(chart.size.height)]


@asynccontextmanager
async def played(chart: Chart) -> AsyncIterator[tuple[Pilot[None], Chart]]:
    """Show the chart, focused."""
    async with OneChart(chart).run_test(size=(80, 24)) as pilot:
        chart.focus()
        await pilot.pause()
        yield pilot, chart


def cursor_of(chart: Chart) -> float:
    assert chart.cursor is not None
    return chart.cursor


def settings(chart: Chart) -> str:
    return str(chart.border_subtitle)


def shown(chart: Chart) -> tuple[float, float]:
    bounds = (0.0, len(chart.curves[0].series) - 1.0)
    scale = chart.view.scale(bounds)
    return scale.low, scale.high


async def test_plus_minus_and_0_zoom_in_and_out_and_show_all() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        await pilot.press("+")
        assert shown(chart) == pytest.approx((333, 999))
        assert chart.border_subtitle == "by step · zoomed"
        await pilot.press("=", "-")
        assert shown(chart) == pytest.approx((333, 999))
        await pilot.press("0")
        assert shown(chart) == (0, 999)
        assert chart.border_subtitle == "by step"


@pytest.mark.parametrize(("back", "ahead"), [("left", "right"), ("h", "l"), ("home", "end")])
async def test_arrows_and_letters_pan_and_a_view_at_the_end_follows(back: str, ahead: str) -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        await pilot.press("+", "+", back)
        low, high = shown(chart)
        assert high < 999
        assert "not following" in settings(chart)
        await pilot.press(ahead)
        assert shown(chart)[0] > low
        await pilot.press(ahead, "end")
        assert settings(chart).endswith("zoomed")
        series = chart.curves[0].series
        series.positions.extend([2_000])
        series.extend([1.0])
        chart.changed()
        assert chart.view.scale((0, 2_000)).high == pytest.approx(2_000)


async def test_the_cursor_reads_out_and_moves_by_keys() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        values = chart.curves[0].series.values
        await pilot.press("c")
        assert f"step 999 · loss {values[999]:.6g}" in settings(chart)
        assert f"average {chart.curves[0].series.average_at(999):.6g}" in settings(chart)
        assert any("│" in line for line in drawn(chart))
        await pilot.press("comma")
        assert cursor_of(chart) < 999
        await pilot.press("full_stop")
        assert cursor_of(chart) == pytest.approx(999)
        await pilot.press("c")
        assert chart.border_subtitle == "by step"


async def test_the_cursor_goes_from_point_to_point_where_they_are_far_apart() -> None:
    async with played(Chart("loss", [Curve("loss", losses(5))])) as (pilot, chart):
        await pilot.press("c", "comma", "comma")
        assert settings(chart).startswith("step 2 ")
        await pilot.press("full_stop")
        assert settings(chart).startswith("step 3 ")


async def test_a_cursor_that_leaves_the_view_takes_it_along() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        await pilot.press("c", "+", "+", "+")
        low, _ = shown(chart)
        for _ in range(90):
            chart.action_step_cursor(-1)
        assert cursor_of(chart) < low
        assert shown(chart)[0] <= cursor_of(chart)


async def test_x_goes_through_the_axes_and_keeps_the_points_in_view() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        await pilot.press("+", "left", "c", "comma")
        before = chart.view.part
        cursor = cursor_of(chart)
        assert before is not None
        await pilot.press("x")
        assert chart.view.part == pytest.approx([512 * math.ceil(end) for end in before])
        assert cursor_of(chart) == pytest.approx(512 * math.ceil(cursor))
        await pilot.press("c")
        assert "by tokens" in settings(chart)
        await pilot.press("x", "0")
        assert "by time" in settings(chart)
        assert "8min" in drawn(chart)[-1]
        await pilot.press("x")
        assert "by step" in settings(chart)


async def test_g_and_shift_g_make_the_axes_logarithmic() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        linear = drawn(chart)
        await pilot.press("g")
        assert "log values" in settings(chart)
        assert drawn(chart) != linear
        await pilot.press("g", "G")
        assert "log step" in settings(chart)
        assert "100" in drawn(chart)[-1]
        await pilot.press("G")
        assert drawn(chart) == linear


async def test_s_skips_the_start_so_that_it_does_not_flatten_the_rest() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        assert any(line.startswith("10") for line in drawn(chart))
        await pilot.press("s", "s")
        assert "without the first 100" in settings(chart)
        assert not any(line.startswith("10") for line in drawn(chart))
        await pilot.press("s")
        assert chart.view.skip == 0


async def test_o_makes_room_for_spikes_that_are_marked_otherwise() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        lines = drawn(chart)
        assert lines[0].count("↑") == 1
        assert lines[-2].count("✗") == 1
        assert not any("100" in line for line in lines[:-1])
        await pilot.press("o")
        assert any(line.startswith("100") for line in drawn(chart))
        assert "room for spikes" in settings(chart)


def test_every_binding_has_an_id_of_its_own_and_an_action() -> None:
    bindings = [binding for binding in Chart.BINDINGS if isinstance(binding, Binding)]
    assert len({binding.id for binding in bindings}) == len(Chart.BINDINGS)
    for binding in bindings:
        assert binding.id and binding.id.startswith("chart.")
        assert callable(getattr(Chart, f"action_{binding.action.partition('(')[0]}"))


async def test_the_wheel_zooms_under_the_pointer_and_a_click_sets_the_cursor() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        await pilot.click(chart, offset=(40, 10))
        middle = cursor_of(chart)
        assert 400 < middle < 600
        await pilot.hover(chart, offset=(60, 10))
        assert cursor_of(chart) > middle
        await pilot.press("c")
        await pilot.hover(chart, offset=(20, 10))
        assert chart.cursor is None

        async def turn(wheel: type[events.MouseEvent]) -> None:
            chart.post_message(wheel(chart, 40, 10, 0, 0, 0, False, False, False))
            await pilot.pause()

        await turn(events.MouseScrollUp)
        low, high = shown(chart)
        assert high - low == pytest.approx(666)
        assert low + 0.5 * (high - low) == pytest.approx(middle, abs=20)
        await turn(events.MouseScrollRight)
        assert shown(chart)[0] > low
        await turn(events.MouseScrollLeft)
        assert shown(chart) == pytest.approx((low, high))
        await turn(events.MouseScrollDown)
        assert chart.view.part is None


async def test_the_title_names_the_newest_value_and_the_average_and_new_data_changes_it() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (_, chart):
        series = chart.curves[0].series
        assert chart.border_title == f"loss {series.values[999]:.5g} avg {series.average_at(999):.5g}"
        series.positions.extend([1_000])
        series.extend([math.nan])
        chart.changed()
        assert str(chart.border_title).startswith("loss NaN avg ")


async def test_brackets_in_a_name_are_not_read_as_markup() -> None:
    chart = Chart("loss [red]", [Curve("run [bold]x", losses(10))])
    async with played(chart) as (pilot, _):
        await pilot.press("c")
        rows = picture(chart)
        assert "loss [red]" in rows[0] and "run [bold]x" in rows[-1]


async def test_it_is_drawn_again_only_when_something_changed() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):
        drawn(chart)
        with mock.patch("workbench.tui.charts.chart.draw", wraps=plot.draw) as draw:
            drawn(chart)
            drawn(chart)
            assert draw.call_count == 0
            chart.changed()
            drawn(chart)
            assert draw.call_count == 1
            await pilot.resize_terminal(60, 16)
            await pilot.pause()
            drawn(chart)
            assert draw.call_count == 2


async def test_a_theme_changes_the_picture_that_was_kept() -> None:
    async with played(Chart("loss", [Curve("loss", losses())])) as (pilot, chart):

        def styles() -> list[object]:
            return [
                segment.style
                for y in range(chart.size.height)
                for segment in list[Segment](chart.render_line(y))
            ]

        dark = styles()
        pilot.app.theme = "textual-light"
        await pilot.pause()
        assert styles() != dark


@BOTH
async def test_several_curves_are_told_apart_without_colour(glyphs: Glyphs) -> None:
    second = Series()
    second.positions.extend([0, 999])
    second.extend([5.0, 4.0])
    validation = Series()
    validation.positions.extend([100, 400, 700])
    validation.extend([7.0, 6.0, 5.5])
    curves = [
        Curve("first", losses()),
        Curve("second", second),
        Curve("validation", validation, form="marks"),
    ]
    async with played(Chart("loss", curves, glyphs=glyphs)) as (_, chart):
        lines = drawn(chart)
        assert chart.border_title == "loss"
        if glyphs.ascii:
            assert "* first" in lines[0]
            assert "+ second" in lines[0]
            assert any("*" in line for line in lines[1:-1])
            assert any("+" in line for line in lines[1:-1])
        else:
            assert "A first" in lines[0]
            assert "B second" in lines[0]
            assert any(line.endswith("A") for line in lines[1:-1])
            assert any(line.endswith("B") for line in lines[1:-1])
        sign = "o" if glyphs.ascii else "●"
        assert f"{sign} validation" in lines[0]
        assert sum(line.count(sign) for line in lines[1:-1]) == 3


async def test_a_line_stops_at_a_value_that_is_not_finite() -> None:
    series = Series()
    series.positions.extend([0, 10, 50, 90, 100])
    series.extend([1.0, 1.0, math.nan, 1.0, 1.0])
    async with played(Chart("flat", [Curve("flat", series)], glyphs=PLAIN)) as (_, chart):
        line = next(line for line in drawn(chart) if "*" in line)
        assert 10 < line.count("*") < 50
        assert "x" in drawn(chart)[-2]


@pytest.mark.parametrize(
    ("values", "log_y", "said"),
    [
        ([], False, "no values yet"),
        ([math.nan, math.inf], False, "no finite value here"),
        ([0.0, -1.0], True, "no value above zero for a logarithmic axis"),
    ],
)
async def test_where_nothing_can_be_drawn_a_sentence_says_why(
    values: list[float], log_y: bool, said: str
) -> None:
    series = Series()
    series.positions.extend(range(len(values)))
    series.extend(values)
    async with played(Chart("loss", [Curve("loss", series)], log_y=log_y)) as (_, chart):
        assert any(said in line for line in drawn(chart))
