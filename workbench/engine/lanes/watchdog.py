"""Watches the lanes: one that works on a single task for too long is named, and the step that waits for it fails.

A thread cannot be ended from outside; what it can do is keep everybody else from waiting for ever in silence.

Invariant: it does not keep alive whom it would tell, so that an engine that is dropped can be collected.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from workbench.engine.lanes.execution import LaneError
from workbench.engine.lanes.lane_threads import LaneThreads


class Watchdog:
    """Calls `stuck`, a bound method, with an error, once, when a lane has been on one task for longer than `limit_s`.

    A limit of 0 never does.
    """

    def __init__(self, lanes: LaneThreads, limit_s: float, stuck: Callable[[LaneError], None]) -> None:
        self._lanes = lanes
        self._limit_s = limit_s
        self._stuck = weakref.WeakMethod(stuck)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if limit_s > 0:
            self._thread = threading.Thread(target=self._run, name="lane-watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(min(self._limit_s / 4, 5.0)):
            stuck = self._stuck()
            if stuck is None:
                return
            now = time.perf_counter()
            for lane, (what, since) in self._lanes.at_work().items():
                if now - since > self._limit_s:
                    stuck(
                        LaneError(
                            f"lane {lane.value}: {what} has been stuck for {now - since:.0f} s (the watchdog allows "
                            f"{self._limit_s:g} s)"
                        )
                    )
                    return
            del stuck

    def close(self) -> None:
        """End the thread; idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
