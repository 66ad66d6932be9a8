"""What tests of every screen need: a monitor that samples nothing, an application for one screen, and what is seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.monitor.samples import MonitorSample

NEVER_S = 1e6
"""An interval that no test lives to see the end of: looks are then asked for."""


class NoMonitor:
    """Nothing is sampled, unless a test gives a sample."""

    def __init__(self, latest: MonitorSample | None = None) -> None:
        self.latest = latest

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None: ...


async def until(pilot: Pilot[None], met: Callable[[], bool]) -> None:
    """Let the application run until something holds, then pause."""
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        await asyncio.sleep(0.005)
    await pilot.pause()


def text_of(app: App[Any]) -> str:
    """Return all characters on the screen, line by line."""
    strips = (
        app.screen._compositor.render_strips()
    )  # Textual has no public way but a screenshot, which takes long
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def picture(widget: Widget) -> list[str]:
    """Return what the widget draws, its border too, as the screen would show it."""
    strips = widget.render_lines(widget.outer_size.region)
    return ["".join(segment.text for segment in strip) for strip in strips]
