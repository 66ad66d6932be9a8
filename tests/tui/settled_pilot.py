"""A pilot that waits until the screen has settled: nothing queued, laid out and painted.

Textual's own waits until what was queued has been handled once, and then until the process uses little processor
time. What the handling asked for in its turn (a layout, the sizes it gives, the paint) may then still be to come,
and on a busy machine a process that gets no turn uses little time as well.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.widget import Widget

Wait = Callable[[Pilot[Any], float], Awaitable[bool]]
LONGEST_S = 5.0
"""A screen that never rests, as one that moves all the time, is waited for no longer."""


def at_rest(pump: MessagePump) -> bool:
    """Whether a widget, screen or application has nothing to handle and asks for nothing to be drawn."""
    if pump.message_queue_size or pump._next_callbacks:
        return False
    return not isinstance(pump, Widget) or not (
        pump._layout_required or pump._repaint_required or pump._scroll_required or pump._recompose_required
    )


def until_settled(wait: Wait) -> Wait:
    """The wait for a pilot's screen, repeated until all of it is at rest."""

    async def settled(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
        deadline = time.monotonic() + LONGEST_S
        while await wait(pilot, timeout):
            if pilot.app._exit:
                return True  # what is left undrawn then is never drawn
            screen = pilot.app.screen
            screen._on_timer_update()
            pumps = (pilot.app, *screen.walk_children(with_self=True))
            if all(map(at_rest, pumps)) and not (screen._dirty_widgets or screen._callbacks):
                return True
            if time.monotonic() > deadline:
                return True
        return False

    return settled
