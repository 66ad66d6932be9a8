"""Boxes that keep their rows show what Textual would draw anew, after whatever changes, and paint no other row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.geometry import Region
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.tui.canvas import CachedLines
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.plot import Curve
from workbench.tui.charts.series import Series
from workbench.tui.glyphs import BLOCKS
from workbench.tui.panels.panel import Line, Panel


class Painted(Widget):
    """Records what is to be painted anew."""

    def __init__(self, **options: Any) -> None:
        self.painted: list[tuple[int, int]] = []
        """(first row, rows) of every region, (0, 0) for all of the widget."""
        super().__init__(**options)

    def refresh(self, *regions: Region, **options: Any) -> Painted:
        self.painted += [(region.y, region.height) for region in regions or [Region()]]
        return super().refresh(*regions, **options)


class Words(Panel, Painted):
    """One word a line."""

    TITLE = "Words"

    def __init__(self, *words: str) -> None:
        super().__init__(BLOCKS)
        self.words = list(words)
        self.drawn = 0

    def heading(self) -> tuple[str, ...]:
        return (self.words[0],)

    def lines(self, width: int, height: int) -> list[Line]:
        self.drawn += 1
        return [self.write(word, "good" if word.isupper() else "dim") for word in self.words]


class Group(CachedLines, Container):
    pass


class Boxes(App[None]):
    CSS = "Group { padding: 1; } .padded { padding: 1 2; } .tinted { tint: red 20%; }"

    def compose(self) -> ComposeResult:
        self.panel = Words("one", "TWO", "three")
        series = Series(smoothing=0.9)
        series.positions.extend([float(step) for step in range(50)])
        series.extend([5.0 - 0.05 * step for step in range(50)])
        self.chart = Chart("Loss", [Curve("training", series)])
        self.group = Group(self.panel, self.chart)
        yield self.group


@asynccontextmanager
async def shown_boxes() -> AsyncIterator[tuple[Boxes, Pilot[None]]]:
    app = Boxes()
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        yield app, pilot


def given(widget: Widget) -> list[list[Segment]]:
    """As the widget gives its rows to the screen, what it keeps among them."""
    return [list(strip) for strip in widget.render_lines(widget.outer_size.region)]


def textuals(widget: Widget) -> list[list[Segment]]:
    """As Textual gives them."""
    return [list(strip) for strip in Widget.render_lines(widget, widget.outer_size.region)]


async def test_after_every_change_the_rows_are_those_that_textual_draws() -> None:
    async with shown_boxes() as (app, pilot):

        async def check(what: str) -> None:
            for moment in (what, f"{what}, a picture later"):
                for widget in (app.panel, app.chart, app.group):
                    assert given(widget) == textuals(widget), f"{moment}: {widget}"
                await pilot.pause()

        def write(place: int, word: str) -> None:
            app.panel.words[place] = word
            app.panel.changed()

        await check("at first")
        write(1, "2")
        await check("a row")
        write(0, "a longer title")
        await check("a row and the title")
        app.chart.curves[0].series.positions.extend([50])
        app.chart.curves[0].series.extend([9.0])
        app.chart.changed()
        await check("a point")
        app.chart.focus()
        await check("the focus")
        await pilot.press("c", "plus")
        await check("cursor and zoom")
        app.theme = "textual-light"
        await check("the theme")
        app.panel.add_class("padded")
        write(2, "padded")
        await check("padding")
        app.panel.set_classes("tinted")
        await check("a tint")
        write(2, "tinted")
        await check("a row of a tinted box")
        app.panel.set_classes("")
        app.group.styles.opacity = 0.5
        write(2, "faint")
        await check("opacity around it")
        app.group.styles.opacity = 1.0
        await check("opaque again")
        await pilot.resize_terminal(40, 30)
        await check("the size")


async def test_without_colours_changed_rows_have_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown_boxes() as (app, _):
        given(app.panel)
        app.panel.words[1] = "BAD"
        app.panel.changed()
        assert given(app.panel) == textuals(app.panel)


async def test_only_rows_that_changed_and_the_border_of_a_new_title_are_painted() -> None:
    async with shown_boxes() as (app, _):
        panel = app.panel
        for words, painted in (
            (["one", "TWO", "three"], []),
            (["one", "2", "3"], [(1, 1), (2, 1)]),
            (["1", "2", "3"], [(0, 1), (-1, 1)]),
        ):
            panel.words, panel.painted = words, []
            panel.changed()
            assert panel.painted == painted


async def test_a_panel_that_nobody_sees_draws_nothing_until_it_is_shown() -> None:
    async with shown_boxes() as (app, pilot):
        app.group.display = False
        await pilot.pause()
        before = app.panel.drawn
        app.panel.words[0] = "hidden"
        app.panel.changed()
        await pilot.pause()
        assert app.panel.drawn == before
        app.group.display = True
        await pilot.pause()
        assert any("hidden" in segment.text for segment in given(app.panel)[1])


async def test_a_style_asked_for_before_the_panel_has_its_place_is_not_kept() -> None:
    async with shown_boxes() as (app, pilot):
        panel = Words("one", "TWO")
        panel.pen("")
        await app.mount(panel)
        await pilot.pause()
        assert panel.pen("") == panel.rich_style
        assert given(panel)[1][1].style == given(app.panel)[1][1].style
