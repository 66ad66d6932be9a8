"""Boxes that keep their rows show what Textual would draw anew, after whatever changes, and repaint no other row."""

from __future__ import annotations

import asyncio

import pytest
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.widget import Widget

from workbench.tui.charts.chart import Chart
from workbench.tui.charts.curves import Curve
from workbench.tui.charts.series import Series
from workbench.tui.glyphs import BLOCKS
from workbench.tui.kept_lines import KeptLines
from workbench.tui.panels.drawing import Line
from workbench.tui.panels.panel import Panel


class Words(Panel):
    """One word a line."""

    TITLE = "Words"

    def __init__(self, *words: str) -> None:
        super().__init__(BLOCKS)
        self.words = list(words)

    def heading(self) -> tuple[str, ...]:
        return (self.words[0],)

    def lines(self, width: int, height: int) -> list[Line]:
        return [self.write(word, "good" if word.isupper() else "dim") for word in self.words]


class Group(Container, KeptLines):
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


def kept(widget: Widget) -> list[list[Segment]]:
    """As the widget gives them to the screen, what it keeps among them."""
    return [list(strip) for strip in widget.render_lines(widget.outer_size.region)]


def anew(widget: Widget) -> list[list[Segment]]:
    """As Textual draws them where nothing is kept."""
    widget._styles_cache.clear()
    return [list(strip) for strip in Widget.render_lines(widget, widget.outer_size.region)]


def test_after_every_change_the_rows_are_those_that_textual_draws() -> None:
    async def scenario() -> None:
        app = Boxes()
        async with app.run_test(size=(60, 20)) as pilot:

            async def check(what: str) -> None:
                for widget in (app.panel, app.chart, app.group):
                    assert kept(widget) == anew(widget), f"{what}: {widget}"
                await pilot.pause()
                for widget in (app.panel, app.chart, app.group):
                    assert kept(widget) == anew(widget), f"{what}, a picture later: {widget}"

            await pilot.pause()
            await check("at first")
            app.panel.words[1] = "2"
            app.panel.changed()
            await check("a row")
            app.panel.words[0] = "a longer title"
            app.panel.changed()
            await check("a row and the title")
            app.chart.curves[0].series.positions.append(50)
            app.chart.curves[0].series.append(9.0)
            app.chart.data_changed()
            await check("a point")
            app.chart.focus()
            await check("the focus")
            await pilot.press("c", "plus")
            await check("cursor and zoom")
            app.theme = "textual-light"
            await check("the theme")
            app.panel.add_class("padded")
            app.panel.words[2] = "padded"
            app.panel.changed()
            await check("padding")
            app.panel.set_classes("tinted")
            await check("a tint")
            app.panel.words[2] = "tinted"
            app.panel.changed()
            await check("a row of a tinted box")
            app.panel.set_classes("")
            app.group.styles.opacity = 0.5
            app.panel.words[2] = "faint"
            app.panel.changed()
            await check("opacity around it")
            app.group.styles.opacity = 1.0
            await check("opaque again")
            assert app.chart._frame is not None, "nothing was gained"
            await pilot.resize_terminal(40, 30)
            await check("the size")

    asyncio.run(scenario())


def test_without_colours_changed_rows_have_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario() -> None:
        app = Boxes()
        async with app.run_test(size=(60, 20)) as pilot:
            await pilot.pause()
            kept(app.panel)
            app.panel.words[1] = "BAD"
            app.panel.changed()
            assert kept(app.panel) == anew(app.panel)

    asyncio.run(scenario())


def test_only_rows_that_changed_are_repainted() -> None:
    async def scenario() -> None:
        app = Boxes()
        async with app.run_test(size=(60, 20)) as pilot:
            await pilot.pause()
            before = app.panel.render_lines(app.panel.outer_size.region)
            app.panel._exchange_repaint_regions()
            app.panel.changed()
            assert not app.panel._exchange_repaint_regions()
            app.panel.words[1:] = ["2", "3"]
            app.panel.changed()
            (region,) = app.panel._exchange_repaint_regions()
            assert (region.y, region.height) == (2, 2)
            after = app.panel.render_lines(app.panel.outer_size.region)
            changed = [y for y, (old, new) in enumerate(zip(before, after, strict=True)) if old is not new]
            assert changed == [2, 3]

    asyncio.run(scenario())


def test_a_panel_that_nobody_sees_draws_nothing_until_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        app = Boxes()
        async with app.run_test(size=(60, 20)) as pilot:
            await pilot.pause()
            app.group.display = False
            await pilot.pause()
            drawn: list[int] = []
            lines = app.panel.lines
            monkeypatch.setattr(
                app.panel, "lines", lambda width, height: drawn.append(1) or lines(width, height)
            )
            app.panel.words[0] = "hidden"
            app.panel.changed()
            await pilot.pause()
            assert not drawn
            app.group.display = True
            await pilot.pause()
            assert drawn and any("hidden" in segment.text for segment in kept(app.panel)[1])

    asyncio.run(scenario())
