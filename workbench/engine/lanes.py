"""Lanes as threads: each runs its tasks one after the other, in the order they were handed over.

Lane threads do no torch arithmetic: they copy through the device seam and call the host optimizer, both of which
release the GIL and bring no second OpenMP pool to life.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from workbench.engine.device import Device
from workbench.timeline import Lane

THREADED = (Lane.DOWNLOAD, Lane.UPDATE, Lane.UPLOAD)


class LaneThreads:
    """One daemon thread a lane, started at the first task it gets; `close` ends them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._queues: dict[Lane, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: dict[Lane, threading.Thread] = {}
        self._lock = threading.Lock()

    def submit(self, lane: Lane, work: Callable[[], None]) -> None:
        """Queue `work`, which must not raise, behind what the lane already has."""
        if lane not in self._threads:
            with self._lock:
                if lane not in self._threads:
                    self._start(lane)
        self._queues[lane].put(work)

    def _start(self, lane: Lane) -> None:
        self._queues[lane] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(lane,), name=f"lane-{lane.value}", daemon=True)
        self._threads[lane] = thread
        thread.start()

    def _run(self, lane: Lane) -> None:
        work_queue = self._queues[lane]
        while (work := work_queue.get()) is not None:
            self._device.before_task(lane)
            work()

    def close(self) -> None:
        """Let each lane finish what it has and end its thread; idempotent."""
        with self._lock:
            for work_queue in self._queues.values():
                work_queue.put(None)
            for thread in self._threads.values():
                thread.join()
            self._queues.clear()
            self._threads.clear()
