"""Parts of a source worked through by several threads, and what they report heard by the one that waits.

Threads and not processes: the tokenizers library lets other threads run while it works, they share one tokenizer, and
nothing has to be sent, killed or waited for. Invariant: an error is that of the first part in order that has one,
whatever thread meets it first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

_HEARD_EVERY_S = 0.2


class InterruptedWorkError(Exception):
    """Raised in a thread whose work is not wanted any more."""


class Tally:
    """Bytes done, added up by many threads."""

    def __init__(self, done: int, hear: Callable[[int], None]) -> None:
        self._done = done
        self._heard = -1
        self._hear = hear
        self._lock = threading.Lock()
        self._over = threading.Event()

    def add(self, amount: int) -> None:
        """Called by the threads. Raises InterruptedWorkError where the work is not wanted any more."""
        with self._lock:
            self._done += amount
        if self._over.is_set():
            raise InterruptedWorkError

    def tell(self) -> None:
        """Called by the one that waits, who alone hears of progress."""
        with self._lock:
            done = self._done
        if done != self._heard:
            self._heard = done
            self._hear(done)

    def stop(self) -> None:
        self._over.set()


def work_through(parts: Sequence[T], work: Callable[[T], None], tally: Tally, threads: int) -> None:
    """Do `work` for each of `parts`. What it raises is raised when the other threads have stopped."""
    executor = ThreadPoolExecutor(max(1, threads), thread_name_prefix="tokenize")
    waiting: deque[Future[None]] = deque()
    left = iter(parts)
    try:
        while True:
            while len(waiting) < 2 * max(1, threads) and (part := next(left, None)) is not None:
                waiting.append(executor.submit(work, part))
            if not waiting:
                break
            wait([waiting[0]], _HEARD_EVERY_S, FIRST_COMPLETED)
            tally.tell()
            while waiting and waiting[0].done():
                waiting.popleft().result()
    finally:
        if waiting:
            tally.stop()
        executor.shutdown(wait=True, cancel_futures=True)
    tally.tell()
