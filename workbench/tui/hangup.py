"""A terminal that goes away while the screen is shown. No textual.

When a terminal is closed the system sends SIGHUP and, right behind it, SIGCONT to whoever is in it. Textual takes that
for the return from a suspension and begins anew on the terminal that is gone: a thread that writes there ends at once,
and the end of the application waits for it for ever. Invariant: only a terminal that is there is begun on anew.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def ignore_continuing_without_terminal() -> None:
    """Let what handles SIGCONT now handle it only while standard input is a terminal. For the main thread."""
    handle = signal.getsignal(signal.SIGCONT)
    if not callable(handle):
        return

    def continue_if_there(number: int, frame: FrameType | None) -> None:
        if _is_there():
            handle(number, frame)

    signal.signal(signal.SIGCONT, continue_if_there)


def _is_there() -> bool:
    """Whether standard input is a terminal; one that was hung up is none any more."""
    try:
        return sys.__stdin__ is not None and os.isatty(sys.__stdin__.fileno())
    except (OSError, ValueError):
        return False
