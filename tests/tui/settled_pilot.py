"""A pilot that waits until the screen has settled: nothing queued, laid out and painted.

Textual's own waits until what was queued has been handled once, and then until the process uses little processor
time. What the handling asked for in its turn (a layout, the sizes it gives, the paint) may then still be to come,
and on a busy machine a process that gets no turn uses little time as well. Threads are not waited for: `settled` does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.widget import Widget

Wait = Callable[[Pilot[Any], float], Awaitable[bool]]
LONGEST_S = 30.0
SOON_S = 0.1
"""A timer that ends so soon after it was set is part of what is going on."""


def at_rest(pump: MessagePump) -> bool:
    """Whether a widget, screen or application has nothing to handle and asks for nothing to be drawn."""
    if pump.message_queue_size or pump._next_callbacks:
        return False
    return not isinstance(pump, Widget) or not (
        pump._layout_required or pump._repaint_required or pump._scroll_required or pump._recompose_required
    )


def until_settled(wait: Wait) -> Wait:
    """The wait for a pilot's screen, repeated until all of it is at rest.

    Twice in a row: what is in the midst of a message when it is seen at rest has ended that before the next wait has,
    and what that asked for is then seen. Raises AssertionError for a screen that never rests.
    """

    async def settled(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
        deadline = time.monotonic() + LONGEST_S
        rested: tuple[MessagePump, ...] = ()
        while await wait(pilot, timeout):
            if pilot.app._exit:
                return True  # what is left undrawn then is never drawn
            pumps = _pumps(pilot)
            restless = [pump for pump in pumps if not at_rest(pump)]
            screen = pilot.app.screen
            if restless or screen._dirty_widgets or screen._callbacks:
                pumps = ()
            elif pumps == rested:
                return True
            rested = pumps
            assert time.monotonic() < deadline, f"does not come to rest: {restless or screen}"
        return False

    return settled


SETTLING = until_settled(Pilot._wait_for_screen)
"""What stands in the place of `Pilot._wait_for_screen`."""


async def settled(pilot: Pilot[Any], but: Collection[str] = ()) -> None:
    """Until nothing goes on any more: no worker, no timer that ends in a moment, nothing to handle or to draw.

    `but`: groups of workers that wait for an answer, and are not waited for. A worker tells what it found before it
    has ended, so that nothing is left to come when none is there after the screen has settled.
    """
    deadline = time.monotonic() + 2 * LONGEST_S
    while True:
        await pilot.pause()
        if not await pilot._wait_for_screen() or pilot.app._exit:
            return
        busy = [each for each in pilot.app.workers if not each.is_finished and each.group not in but]
        if not busy and not any(map(_acts_soon, _pumps(pilot))):
            return
        assert time.monotonic() < deadline, f"it goes on: {busy}"
        await asyncio.sleep(0.002)


def _pumps(pilot: Pilot[Any]) -> tuple[MessagePump, ...]:
    """The application and all that its screen consists of."""
    screen = pilot.app.screen
    screen._on_timer_update()
    return (pilot.app, *screen.walk_children(with_self=True))


def _acts_soon(pump: MessagePump) -> bool:
    return any(
        timer._repeat == 0
        and timer._interval <= SOON_S
        and timer._task is not None
        and not timer._task.done()
        for timer in pump._timers
    )
