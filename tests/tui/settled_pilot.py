"""Waiting, by what is public in Textual, until a screen has settled: its picture no longer changes.

Textual's own pause lets the messages that are queued be handled once, and waits until the process uses little
processor time. What the handling asked for in its turn (a layout, the sizes it gives, the paint) may then still be to
come, and on a busy machine a process that gets no turn uses little time as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from screen_host import text_of
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.worker import Worker, get_current_worker

LONGEST_S = 60.0
SOON_S = 0.1
"""A timer that ends so soon after it was set is part of what is going on."""
_once = Pilot.pause
_push_screen_wait = App.push_screen_wait
_asking: set[Worker[Any]] = set()
"""The workers that wait for the user's answer."""


async def push_screen_wait(app: App[Any], screen: Screen[Any] | str) -> Any:
    """Push a screen and return its answer; `settled` does not wait for the calling worker meanwhile."""
    worker = get_current_worker()
    _asking.add(worker)
    try:
        return await _push_screen_wait(app, screen)
    finally:
        _asking.discard(worker)


async def pause(pilot: Pilot[Any], delay: float | None = None) -> None:
    """Pause until the picture is the same twice. Raises AssertionError where it changes for ever."""
    deadline = time.monotonic() + LONGEST_S
    before = ""
    while pilot.app.return_code is None:
        await _once(pilot, delay)
        if pilot.app.return_code is not None or (picture := text_of(pilot.app)) == before:
            return
        before = picture
        assert time.monotonic() < deadline, "the screen does not come to rest"


async def settled(pilot: Pilot[Any]) -> None:
    """Pause until no worker runs either, but those that wait for the user's answer, and no timer ends in a moment.

    A worker posts what it found before it has ended, so that nothing is left to come when none is there after a pause.
    """
    deadline = time.monotonic() + LONGEST_S
    before = None
    while pilot.app.return_code is None:
        await pause(pilot)
        busy = [each for each in pilot.app.workers if not each.is_finished and each not in _asking]
        picture = None if busy or pilot.app.return_code is not None else text_of(pilot.app)
        if picture is not None and picture == before:
            return
        before = picture
        # Timers end in their order, so that those which end sooner than this one have ended then, however late.
        await asyncio.sleep(0.005 if busy else 1.2 * SOON_S)
        assert time.monotonic() < deadline, f"it goes on: {busy}"


def and_then_pause(act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return `Pilot.press` or the like with a pause behind it."""

    async def acted(pilot: Pilot[Any], *arguments: Any, **options: Any) -> Any:
        result = await act(pilot, *arguments, **options)
        await pause(pilot)
        return result

    return acted


App.push_screen_wait = push_screen_wait  # type: ignore[method-assign,assignment]
