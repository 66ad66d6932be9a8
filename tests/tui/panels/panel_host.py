"""A small application that shows one panel at a size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from screen_host import picture
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

SIZES = ((20, 3), (40, 10), (80, 24), (120, 40))

AnyWidget = TypeVar("AnyWidget", bound=Widget)


class OneWidget(App[None]):
    """Shows one widget, as large as it is told to be."""

    def __init__(self, widget: Widget, width: int, height: int) -> None:
        super().__init__()
        self.widget = widget
        widget.styles.width, widget.styles.height = width, height

    def compose(self) -> ComposeResult:
        yield self.widget


def with_widget(
    widget: AnyWidget,
    size: tuple[int, int],
    scenario: Callable[[Pilot[None], AnyWidget], Awaitable[None]],
) -> None:
    """Run the scenario with the widget on a screen a little larger than itself."""

    async def run() -> None:
        width, height = size
        app = OneWidget(widget, width, height)
        async with app.run_test(size=(width + 2, height + 2)) as pilot:
            await pilot.pause()
            await scenario(pilot, widget)

    asyncio.run(run())


def drawn(widget: AnyWidget, size: tuple[int, int], prepare: Callable[[AnyWidget], None]) -> list[str]:
    """The picture of the widget after `prepare`."""
    out: list[str] = []

    async def scenario(pilot: Pilot[None], shown: AnyWidget) -> None:
        prepare(shown)
        await pilot.pause()
        out.extend(picture(shown))

    with_widget(widget, size, scenario)
    return out


def check_box(rows: list[str], size: tuple[int, int], *, ascii_only: bool) -> None:
    """Exactly as large as asked for; plain mode has no character above U+007F."""
    from rich.cells import cell_len

    assert [cell_len(row) for row in rows] == [size[0]] * size[1]
    if ascii_only:
        assert all(row.isascii() for row in rows), [row for row in rows if not row.isascii()]
