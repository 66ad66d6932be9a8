"""A small application that shows one widget at a size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from rich.cells import cell_len
from screen_host import picture
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.tui.glyphs import BLOCKS, PLAIN

SIZES = ((20, 3), (40, 10), (120, 40))
BOXES = pytest.mark.parametrize(
    ("size", "glyphs"),
    [(SIZES[0], BLOCKS), (SIZES[1], PLAIN), (SIZES[2], BLOCKS)],
    ids=["small", "plain", "large"],
)

AnyWidget = TypeVar("AnyWidget", bound=Widget)


class OneWidget(App[None]):
    """Shows one widget, as large as it is told to be."""

    def __init__(self, widget: Widget, width: int, height: int) -> None:
        super().__init__()
        self.widget = widget
        widget.styles.width, widget.styles.height = width, height

    def compose(self) -> ComposeResult:
        yield self.widget


@asynccontextmanager
async def shown_widget(
    widget: AnyWidget, size: tuple[int, int]
) -> AsyncIterator[tuple[Pilot[None], AnyWidget]]:
    """Show the widget on a screen a little larger than itself."""
    width, height = size
    async with OneWidget(widget, width, height).run_test(size=(width + 2, height + 2)) as pilot:
        await pilot.pause()
        yield pilot, widget


def drawn(widget: AnyWidget, size: tuple[int, int], prepare: Callable[[AnyWidget], object]) -> list[str]:
    """Return the picture of the widget after `prepare`."""

    async def draw() -> list[str]:
        async with shown_widget(widget, size) as (pilot, shown):
            prepare(shown)
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()
            return picture(shown)

    return asyncio.run(draw())


def check_box(rows: list[str], size: tuple[int, int], *, ascii_only: bool) -> None:
    """Check that rows are exactly as large as asked for, and in plain mode without a character above U+007F."""
    assert [cell_len(row) for row in rows] == [size[0]] * size[1]
    if ascii_only:
        assert all(row.isascii() for row in rows), [row for row in rows if not row.isascii()]
