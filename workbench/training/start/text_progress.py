"""How far the text is, told in a line now and then while it is prepared.

Invariant: a preparation that takes no longer than a moment tells nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 5.0


class TextProgress:
    """Called with what is being done, the bytes done and the bytes there are; tells it every five seconds.

    Args:
        tell: takes a line.
        check: called each time, and may raise to break off.
        clock: seconds.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        check: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._check = check
        self._clock = clock
        self._what = ""
        self._began = self._told = clock()
        self._first = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._check is not None:
            self._check()
        now = self._clock()
        if what != self._what:
            # What an earlier preparation had done when it was killed does not count for the rate.
            self._what, self._began, self._first = what, now, done
        elif now - self._told >= _EVERY_S:
            self._told = now
            self._tell(self._line(done, total, now - self._began))

    def _line(self, done: int, total: int, elapsed_s: float) -> str:
        line = f"{self._what}: {done / max(1, total):.0%}, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        rate = (done - self._first) / elapsed_s if elapsed_s > 0 else 0.0
        if done >= total or rate <= 0:
            return line
        left = (total - done) / rate
        wait = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
        return f"{line}, {rate / 1e6:.1f} MB/s, {wait} left"
