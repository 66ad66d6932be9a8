"""Concurrent work in virtual time: queues of work that share the host's cores and memory, and the link.

Work of one queue runs one after the other, different queues side by side. How fast each goes is the plan's own rule
(`plan.sharing`), applied again whenever something begins or ends.

Invariant: time goes on only to where nobody can add work any more, so that no end is ever taken back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from workbench.plan.sharing import Demand, shared_speeds


class Work:
    """Work of `seconds` alone, which takes `demand` of what is shared and begins when `after` is over.

    `ends_at`: infinite until it is over. `busy_s`: how long its queue has worked by then.
    """

    __slots__ = (
        "after",
        "began_at",
        "busy_s",
        "demand",
        "ends_at",
        "expected_s",
        "followers",
        "seconds",
        "speed",
        "waiting",
    )

    def __init__(self, seconds: float = 0.0, demand: Demand = (), after: Work | None = None) -> None:
        self.seconds = seconds
        self.demand = demand
        self.after = after
        self.ends_at = math.inf
        self.busy_s = 0.0
        self.began_at = math.inf
        self.expected_s = math.inf
        """When it ends if nothing else begins or ends before."""
        self.speed = 1.0
        self.followers: list[Hashable] = []
        """Queues whose first waits for it."""
        self.waiting: list[Any] = []
        """Threads that wait for it."""


class FluidTime:
    """All queues. `wake` is called with a thread that waited for work, and the moment at which that was over."""

    def __init__(self, wake: Callable[[Any, float], None]) -> None:
        self._wake = wake
        self._queues: dict[Hashable, deque[Work]] = {}
        self._running: dict[Hashable, Work] = {}
        self._busy_s: dict[Hashable, float] = {}
        self._woken = 0
        self.now_s = 0.0
        """When the last work ended."""

    def add(self, queue: Hashable, work: Work, now_s: float) -> None:
        """Put work at the end of a queue, now."""
        waiting = self._queues.setdefault(queue, deque())
        waiting.append(work)
        if len(waiting) == 1:
            self._begin([queue], now_s)

    def run_until(self, time_s: float) -> bool:
        """Go on to `time_s`, but no further than to where a thread is woken; return True if one is."""
        woken = self._woken
        while self._running:
            queue, work = min(self._running.items(), key=lambda item: item[1].expected_s)
            now_s = work.expected_s
            if now_s > time_s:
                break
            self.now_s = now_s
            self._begin(self._end(queue, now_s), now_s, shared_anew=bool(work.demand))
            if self._woken > woken:
                return True
        return False

    def _begin(self, queues: list[Hashable], now_s: float, shared_anew: bool = False) -> None:
        """Begin the first of each of `queues`, and what may begin with it."""
        while queues:
            queue = queues.pop()
            if not self._queues[queue]:
                continue
            first = self._queues[queue][0]
            if first.after is not None and first.after.ends_at > now_s:
                first.after.followers.append(queue)
                continue
            if first.seconds <= 0:
                queues += self._end(queue, now_s)
                continue
            first.began_at = now_s
            first.expected_s = now_s + first.seconds
            self._running[queue] = first
            shared_anew = shared_anew or bool(first.demand)
        if shared_anew:
            self._share(now_s)

    def _end(self, queue: Hashable, now_s: float) -> list[Hashable]:
        """End the first of `queue`, and return the queues that may go on."""
        work = self._queues[queue].popleft()
        if self._running.pop(queue, None) is not None:
            self._busy_s[queue] = self._busy_s.get(queue, 0.0) + now_s - work.began_at
        work.ends_at = now_s
        work.busy_s = self._busy_s.get(queue, 0.0)
        for thread in work.waiting:
            self._wake(thread, now_s)
        self._woken += len(work.waiting)
        return [queue, *work.followers]

    def _share(self, now_s: float) -> None:
        """Give all that run the speed that is left to them, and the end that follows from it."""
        sharing = [work for work in self._running.values() if work.demand]
        speeds = shared_speeds(tuple([work.demand for work in sharing])) or (1.0,) * len(sharing)
        for work, speed in zip(sharing, speeds, strict=True):
            if speed != work.speed:
                work.expected_s = now_s + (work.expected_s - now_s) * work.speed / speed
                work.speed = speed
