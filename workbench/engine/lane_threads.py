"""Lanes as threads: each runs its tasks one after the other, in the order they were handed over.

Lane threads do no torch arithmetic: they copy through the device seam, read and write files and call the host
optimizer, all of which release the GIL and bring no second OpenMP pool to life.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable

from workbench.engine.devices.device import Device
from workbench.timeline import Lane

CLOSE_TIMEOUT_S = 5.0

_Work = tuple[str, Callable[[], None]]


class LaneError(RuntimeError):
    """A lane's task failed; the message names lane, stage, unit and chunk, the cause is chained."""


class LaneThreads:
    """One daemon thread a lane, started at the first task it gets; `close` ends them, and so does the owner's end."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._queues: dict[Lane, queue.SimpleQueue[_Work | None]] = {}
        self._threads: dict[Lane, threading.Thread] = {}
        self._at_work: dict[Lane, tuple[str, float]] = {}
        self._stuck = False
        self._lock = threading.Lock()

    def submit(self, lane: Lane, what: str, work: Callable[[], None]) -> None:
        """Queue `work`, which must not raise, behind what the lane already has. `what` names it in errors."""
        if lane not in self._threads:
            with self._lock:
                if lane not in self._threads:
                    self._start(lane)
        self._queues[lane].put((what, work))

    def at_work(self) -> dict[Lane, tuple[str, float]]:
        """Return the task of each busy lane, and when it began (time.perf_counter())."""
        return dict(self._at_work)

    def _start(self, lane: Lane) -> None:
        self._queues[lane] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(lane,), name=f"lane-{lane.value}", daemon=True)
        self._threads[lane] = thread
        thread.start()

    def _run(self, lane: Lane) -> None:
        work_queue = self._queues[lane]
        while (item := work_queue.get()) is not None:
            what, work = item
            self._at_work[lane] = (what, time.perf_counter())
            self._device.before_task(lane)
            work()
            # Not held while the lane waits for its next task: it may keep a step's memory alive.
            del item, work
            self._at_work.pop(lane, None)

    def abort(self) -> None:
        """A lane is stuck: `close` will not wait for it for ever."""
        self._stuck = True

    def end(self) -> None:
        """Tell each lane's thread to end after what it has, without waiting for it: safe in a finalizer; idempotent."""
        for work_queue in list(self._queues.values()):
            work_queue.put(None)

    def close(self) -> bool:
        """Let each lane finish what it has and end its thread; idempotent.

        A lane that is stuck is waited for a few seconds and then left behind; False where that was so.
        """
        with self._lock:
            self.end()
            for thread in self._threads.values():
                thread.join(CLOSE_TIMEOUT_S if self._stuck else None)
            self._threads = {lane: t for lane, t in self._threads.items() if t.is_alive()}
            self._queues = {lane: self._queues[lane] for lane in self._threads}
            return not self._threads


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
