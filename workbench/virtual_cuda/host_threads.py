"""The program's threads in virtual time: one runs at a time, the one whose clock is furthest behind.

Stands in for what the engine takes from `threading`, `queue` and `time`. A thread goes on until it advances its clock
or waits; whoever it wakes goes on no earlier than it did. So a program runs the same way each time. A thread's own
seconds are those of a core of its own; its `work` shares the host with what else runs (`fluid_time`).

Invariant: nothing that threads share changes between two readings of a thread that neither advances nor waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from workbench.plan.sharing import Demand
from workbench.virtual_cuda.fluid_time import FluidTime, Work

POLL_S = 1e-4
"""Of real time, between looks at what other processes have done."""


class DeadlockError(RuntimeError):
    """Every thread waits for another."""


class HostThread:
    """One thread of the program. `time_s`: its clock. `waits`: it waits to be woken; `elsewhere` says that what it
    waits for in other processes is over."""

    def __init__(self, name: str, time_s: float) -> None:
        self.name = name
        self.time_s = time_s
        self.waits = False
        self.elsewhere: Callable[[], bool] | None = None
        self.turn = threading.Event()


class HostThreads:
    """All threads of the program, and the modules that the engine takes them from."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._threads: list[HostThread] = []
        self.when_idle: Callable[[], None] = lambda: None
        """Called while all wait, some of them for other processes."""
        self._stuck = False
        """The main thread has been woken because no thread goes on."""
        main = HostThread("main", 0.0)
        self._threads.append(main)
        self._local.me = main
        self.fluid = FluidTime(self.wake_at)
        self.threading = SimpleNamespace(
            Lock=lambda: _Lock(self),
            RLock=lambda: _Lock(self),
            Condition=lambda lock=None: _Condition(self, lock),
            Event=lambda: _Event(self),
            Thread=lambda **options: _Thread(self, **options),
            local=threading.local,
            current_thread=threading.current_thread,
            get_ident=threading.get_ident,
        )
        self.queue = SimpleNamespace(SimpleQueue=lambda: _Queue(self))
        self.time = SimpleNamespace(
            perf_counter=self.now, monotonic=self.now, time=self.now, sleep=self.advance
        )

    @property
    def me(self) -> HostThread:
        """The calling thread; the main one, where a thread from elsewhere runs a finalizer."""
        me: HostThread = getattr(self._local, "me", self._threads[0])
        return me

    @property
    def on_a_lane(self) -> bool:
        """True on a thread that the program has started."""
        return self.me is not self._threads[0]

    def now(self) -> float:
        """Return the calling thread's clock, in seconds."""
        return self.me.time_s

    def advance(self, seconds: float) -> None:
        """The calling thread works for so long; threads that are behind it go first."""
        self.me.time_s += seconds
        self.pass_on()

    def work(self, seconds: float, demand: Demand) -> None:
        """The calling thread works: for `seconds` alone, for longer where others want the same."""
        work = Work(seconds, demand)
        self.fluid.add(self.me, work, self.now())
        self.wait_for(work)

    def wait_for(self, work: Work) -> None:
        """The calling thread stands still until `work` is over."""
        if work.ends_at == math.inf:
            self.me.waits = True
            work.waiting.append(self.me)
        self.pass_on()

    def pass_on(self) -> None:
        """Let the thread run that is furthest behind.

        Raises:
            DeadlockError: all of them wait.
        """
        me = self.me
        following = self._following()
        if following is None:
            me.waits = False
            raise self._deadlock()
        if following is not me and (me.waits or following.time_s < me.time_s):
            following.turn.set()
            me.turn.wait()
            me.turn.clear()
            if self._stuck:
                self._stuck = False
                raise self._deadlock()

    def _deadlock(self) -> DeadlockError:
        return DeadlockError("every thread waits: " + ", ".join(thread.name for thread in self._threads))

    def _following(self) -> HostThread | None:
        """Return the thread that is furthest behind, once all is over that ends before it goes on."""
        while True:
            elsewhere = [thread for thread in self._threads if thread.elsewhere is not None]
            for thread in elsewhere:
                if thread.elsewhere is not None and thread.elsewhere():
                    thread.elsewhere = None
                    self.wake_at(thread, self.fluid.now_s)
            ready = [thread for thread in self._threads if not thread.waits]
            first = min(ready, key=lambda thread: thread.time_s, default=None)
            if self.fluid.run_until(math.inf if first is None else first.time_s):
                continue
            if first is not None or not elsewhere:
                return first
            # The others may wait for what this device has not been asked for.
            self.when_idle()
            time.sleep(POLL_S)

    def wait_for_others(self, is_over: Callable[[], bool]) -> None:
        """The calling thread waits for other processes, for no longer than the process has something else to do."""
        self.me.waits, self.me.elsewhere = True, is_over
        self.pass_on()

    def wait_to_be_woken(self, waiting: deque[HostThread]) -> None:
        """Stand still among `waiting` until `wake` is called for the calling thread."""
        self.me.waits = True
        waiting.append(self.me)
        self.pass_on()

    def wake(self, thread: HostThread) -> None:
        """Let a thread go on, no earlier than now."""
        self.wake_at(thread, self.now())

    def wake_at(self, thread: HostThread, time_s: float) -> None:
        """Let a thread go on, no earlier than then."""
        thread.waits = False
        thread.time_s = max(thread.time_s, time_s)

    def lent(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Return `work` for a system thread that acts as the calling one, which stands still meanwhile."""
        me = self.me

        def as_me() -> Any:
            self._local.me = me
            return work()

        return as_me

    def start(self, name: str, work: Callable[[], None]) -> HostThread:
        """Begin a thread that does `work`."""
        child = HostThread(name, self.now())
        self._threads.append(child)

        def run() -> None:
            self._local.me = child
            child.turn.wait()
            child.turn.clear()
            try:
                work()
            finally:
                self._threads.remove(child)
                following = self._following()
                if following is None:
                    # What this thread would have woken is not to come: the program hears of it where it waits.
                    following, self._stuck = self._threads[0], True
                    following.waits = False
                following.turn.set()

        threading.Thread(target=run, name=name, daemon=True).start()
        return child


class _Lock:
    def __init__(self, threads: HostThreads) -> None:
        self._threads = threads
        self._owner: HostThread | None = None
        self._depth = 0
        self._waiting: deque[HostThread] = deque()

    def acquire(self) -> bool:
        me = self._threads.me
        while self._owner is not None and self._owner is not me:
            self._threads.wait_to_be_woken(self._waiting)
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            while self._waiting:
                self._threads.wake(self._waiting.popleft())

    def __enter__(self) -> _Lock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class _Condition(_Lock):
    def __init__(self, threads: HostThreads, lock: _Lock | None) -> None:
        super().__init__(threads)
        self._lock = lock
        self._sleeping: deque[HostThread] = deque()

    def acquire(self) -> bool:
        return self._lock.acquire() if self._lock is not None else super().acquire()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        else:
            super().release()

    def wait(self, timeout: float | None = None) -> bool:
        self.release()
        self._threads.wait_to_be_woken(self._sleeping)
        return self.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        while not (result := predicate()):
            self.wait()
        return result

    def notify(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._sleeping))):
            self._threads.wake(self._sleeping.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._sleeping))


class _Event:
    def __init__(self, threads: HostThreads) -> None:
        self._changed = _Condition(threads, None)
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            self._changed.wait_for(self.is_set)
        return True


class _Queue:
    def __init__(self, threads: HostThreads) -> None:
        self._items: deque[Any] = deque()
        self._changed = _Condition(threads, None)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.notify()

    def get(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class _Thread:
    def __init__(
        self,
        threads: HostThreads,
        *,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self.name = name
        self._threads = threads
        self._target, self._args = target, args
        self._over = _Event(threads)

    def start(self) -> None:
        def work() -> None:
            try:
                self._target(*self._args)
            finally:
                self._over.set()

        self._threads.start(self.name, work)

    def join(self, timeout: float | None = None) -> None:
        self._over.wait()

    def is_alive(self) -> bool:
        return not self._over.is_set()
