"""What tests of every screen need: a monitor that samples nothing, waiting, and what is to be seen."""

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
    """Nothing is sampled."""

    latest: MonitorSample | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None: ...


async def until(pilot: Pilot[None], met: Callable[[], bool]) -> None:
    """Let messages pass until something holds."""
    deadline = time.monotonic() + 20
    while True:
        await pilot.pause()
        if met():
            return
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        await asyncio.sleep(0.002)


def text_of(app: App[Any]) -> str:
    """All characters on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def picture(widget: Widget) -> list[str]:
    """What the widget draws, its border too, as the screen would show it."""
    strips = widget.render_lines(widget.outer_size.region)
    return ["".join(segment.text for segment in strip) for strip in strips]
