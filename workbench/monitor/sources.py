"""One thing that is read over and over in a thread of its own, so that a reading which hangs delays nothing else.

Invariant: `latest` never waits, and whatever a reading raises, the thread goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Reading(Generic[T]):
    value: T
    time: float
    """When the reading was done, seconds of the monotonic clock."""
    number: int
    """1 for the first."""


class Source(Generic[T]):
    """Calls `read` every `interval_s`, then `finish` once, always in the same daemon thread.

    `first`: called there after the first reading. `done`: notified after each. A reading that takes longer than the
    interval puts off the next.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        interval_s: float,
        done: threading.Condition,
        finish: Callable[[], object] = lambda: None,
        first: Callable[[], object] = lambda: None,
    ) -> None:
        self._read = read
        self._interval_s = interval_s
        self._done = done
        self._finish = finish
        self._first = first
        self.stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"monitor-{name}", daemon=True)
        self.latest: Reading[T] | None = None
        """The newest reading; None before the first."""
        self.problem = ""
        """What the last reading raised, which none should; empty where it did not."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Read now."""
        self._wake.set()

    def stop(self) -> None:
        """Read no more; does not wait."""
        self.stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it has. One that hangs is left behind: it is a daemon."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _work(self) -> None:
        number = 0
        try:
            while not self.stopping:
                began = time.monotonic()
                try:
                    value = self._read()
                except Exception as error:
                    self.problem = f"{type(error).__name__}: {error}"
                else:
                    number += 1
                    self.problem = ""
                    self.latest = Reading(value, time.monotonic(), number)
                    if number == 1:
                        self._first()
                with self._done:
                    self._done.notify_all()
                self._wake.wait(max(0.0, began + self._interval_s - time.monotonic()))
                self._wake.clear()
        finally:
            self._finish()
