"""Carries a step out: every lane is a thread, and a task of the timeline starts when all that it waits for is done.

Compute tasks are completed by the engine, as the model runs; all others are performed here. Tasks of the compute lane
that are host work (and every task of a `serial` step) run inline, on the thread that made them ready. Lane threads do
no torch arithmetic: they copy through the device seam, read and write files and call the host optimizer, all of which
release the GIL and bring no second OpenMP pool to life.

A copy is begun by its task and lands later: its lane begins the next one first, so that the link does not stand still
while the lane wakes. A task is done when it has landed.

Invariant: a task's `perform` is called exactly once, after all its waits, and never after a task has failed.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workbench.engine.devices.device import Device, Landing
from workbench.system.processor import name_this_thread
from workbench.timeline import Kind, Lane, Task, Timeline

COMPUTED = (Kind.FORWARD, Kind.BACKWARD)
COPIED = (Kind.DOWNLOAD, Kind.UPLOAD)
CLOSE_TIMEOUT_S = 5.0

_Work = tuple[int, int, str, Callable[[], Landing | None], bool]
"""Its turn, its number among all work, what it is, what does it, and whether that only begins it."""
LAST = sys.maxsize


class LaneError(RuntimeError):
    """A lane's task failed; the message names lane, stage, unit and chunk, the cause is chained."""


@dataclass(frozen=True)
class Span:
    """One piece of work on a lane; `start_s` and `stop_s` are readings of time.perf_counter()."""

    lane: Lane
    kind: Kind
    unit: int | None
    chunk: int | None
    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        return self.stop_s - self.start_s


@dataclass
class _Awaited:
    """Something to do when so many tasks more are done: nobody is woken before."""

    missing: int
    action: Callable[[], None]


class StepExecution:
    """One step on its way. `perform` does a task's work and is called from lane threads.

    `cancel` is given a failed task's error: whoever waits for what the task would have given goes on with that.
    """

    def __init__(
        self,
        timeline: Timeline,
        lanes: LaneThreads,
        perform: Callable[[Task], Landing | None],
        *,
        inline: bool,
        cancel: Callable[[LaneError], None] = lambda failure: None,
    ) -> None:
        self.timeline = timeline
        self.spans: list[Span] = []
        self._lanes = lanes
        self._perform = perform
        self.inline = inline
        self._cancel = cancel
        self._lock = threading.Lock()
        self._missing = list(timeline.wait_counts)
        self._followers = timeline.followers
        self._done = [False] * len(timeline.tasks)
        self._failure: LaneError | None = None
        self._local = threading.local()
        self._awaited: dict[int, list[_Awaited]] = {}
        """By a task that is not done: who waits for it."""
        self._asleep: list[threading.Event] = []
        self._landed_s: dict[Lane, float] = {}
        """When a lane's last copy has landed: the next one's time begins there."""

    def start(self) -> None:
        """Start what waits for nothing."""
        self._launch([t.index for t in self.timeline.tasks if not t.waits and t.kind not in COMPUTED])

    def complete(self, index: int) -> None:
        """Mark a task as done and start what it alone held back. Completing a task twice is a bug."""
        inline: list[int] = []
        with self._lock:
            assert not self._done[index], f"task {index} completed twice"
            assert not self._missing[index], f"task {index} completed before what it waits for"
            self._done[index] = True
            for follower in self._followers[index]:
                self._missing[follower] -= 1
                if self._missing[follower] == 0 and self.timeline.tasks[follower].kind not in COMPUTED:
                    inline.append(follower)
            due = []
            for awaited in self._awaited.pop(index, ()):
                awaited.missing -= 1
                if not awaited.missing:
                    due.append(awaited.action)
            if self._failure is not None:
                return
        for action in due:
            action()
        self._launch(inline)

    def when_done(self, indices: Iterable[int], action: Callable[[], None]) -> None:
        """Call `action` when all of `indices` are done: now, or later from the thread that completes the last one.

        It is never called once a task has failed.
        """
        with self._lock:
            if self._failure is not None:
                return
            missing = {index for index in indices if not self._done[index]}
            awaited = _Awaited(len(missing), action)
            for index in missing:
                self._awaited.setdefault(index, []).append(awaited)
        if not missing:
            action()

    def _launch(self, ready: list[int]) -> None:
        here = []
        for follower in ready:
            task = self.timeline.tasks[follower]
            if self.inline or task.lane is Lane.COMPUTE:
                here.append(follower)
            else:
                # Updates that are left when backward is over go in forward order, as the next forward needs them.
                in_order = task.lane is Lane.UPDATE and not self.timeline.update_of_last
                turn = follower if in_order else 0
                begin = functools.partial(self._begin, task)
                self._lanes.submit(task.lane, _name(task), begin, turn, lands=task.kind in COPIED)
        self._run_inline(here)

    def is_done(self, index: int) -> bool:
        """Return True where a task has been completed."""
        return self._done[index]

    def are_done(self, indices: Iterable[int]) -> bool:
        """Return True where all of `indices` are completed, and no task has failed."""
        return self._failure is None and all(self._done[i] for i in indices)

    def wait(self, indices: Iterable[int]) -> None:
        """Return when all of `indices` are done. Raises LaneError when any task of the step has failed."""
        woken = threading.Event()
        with self._lock:
            self._asleep.append(woken)
            if self._failure is not None:
                woken.set()
        self.when_done(indices, woken.set)
        woken.wait()
        with self._lock:
            self._asleep.remove(woken)
        if self._failure is not None:
            raise self._failure

    def wait_all(self) -> None:
        """Return when every task is done. Raises LaneError when any has failed."""
        self.wait(range(len(self.timeline.tasks)))

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def fail(self, failure: LaneError) -> None:
        """Start no further task: the step cannot be finished, and whoever waits meets `failure`.

        Tasks already handed to a lane return at once.
        """
        with self._lock:
            self._failure = self._failure or failure
            for woken in self._asleep:
                woken.set()

    def _run_inline(self, ready: list[int]) -> None:
        # A task run here completes, which calls back into complete(): the outermost call of a thread drains the heap,
        # so that tasks run in the timeline's order and the stack stays flat.
        heap: list[int] | None = getattr(self._local, "heap", None)
        if heap is not None:
            for index in ready:
                heapq.heappush(heap, index)
            return
        if not ready:
            return
        heap = self._local.heap = sorted(ready)
        try:
            while heap:
                land = self._begin(self.timeline.tasks[heapq.heappop(heap)])
                if land is not None:
                    land()
        finally:
            self._local.heap = None

    def _begin(self, task: Task) -> Landing | None:
        """Do a task, or begin it and return what ends it."""
        if self._failure is not None:
            return None
        start = time.perf_counter()
        try:
            if not self.inline and task.lane is not Lane.COMPUTE:
                self._lanes.prepare(task.lane)
            land = self._perform(task)
        except BaseException as error:
            self._task_failed(task, error)
            return None
        if land is not None:
            return functools.partial(self._land, task, start, land)
        self._end(task, start)
        return None

    def _land(self, task: Task, start: float, land: Landing) -> None:
        try:
            land()
        except BaseException as error:
            self._task_failed(task, error)
            return
        # What a lane has begun goes one after the other: a copy's own time begins when the one before it has landed.
        start = max(start, self._landed_s.get(task.lane, start))
        self._landed_s[task.lane] = time.perf_counter()
        self._end(task, start)

    def _task_failed(self, task: Task, error: BaseException) -> None:
        failure = LaneError(f"lane {task.lane.value}: {_name(task)} failed: {error}")
        failure.__cause__ = error
        self.fail(failure)
        self._cancel(failure)

    def _end(self, task: Task, start: float) -> None:
        # A lane of copies does no work for the verdict: it waits for the device.
        if not (task.kind is Kind.VERDICT and task.lane is Lane.DOWNLOAD):
            self.spans.append(Span(task.lane, task.kind, task.unit, task.chunk, start, time.perf_counter()))
        self.complete(task.index)


def _name(task: Task) -> str:
    place = "" if task.unit is None else f" of unit {task.unit}"
    return task.kind.value + place + ("" if task.chunk is None else f", chunk {task.chunk}")


def _nothing() -> None: ...


class LaneThreads:
    """One daemon thread a lane, started at the first task it gets; `close` ends them, and so does the owner's end."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._queues: dict[Lane, queue.SimpleQueue[_Work]] = {}
        self._numbers = itertools.count()
        self._threads: dict[Lane, threading.Thread] = {}
        self._at_work: dict[Lane, tuple[str, float]] = {}
        self._stuck = False
        self._closing = False
        self._lock = threading.Lock()

    def submit(
        self,
        lane: Lane,
        what: str,
        work: Callable[[], Landing | None],
        turn: int = 0,
        *,
        lands: bool = False,
    ) -> None:
        """Queue `work`, which must not raise, behind what the lane has of the same or an earlier `turn`.

        `what` names it in errors. `lands`: it returns what waits for its end, before which the lane begins the next
        such work, and no other.
        """
        if lane not in self._threads:
            with self._lock:
                if self._closing:
                    return
                if lane not in self._threads:
                    self._start(lane)
        self._queues[lane].put((turn, next(self._numbers), what, work, lands))

    def prepare(self, lane: Lane) -> None:
        """Called by a lane's work first: the device takes the lane's thread for its own."""
        self._device.before_task(lane)

    def at_work(self) -> dict[Lane, tuple[str, float]]:
        """Return the task of each busy lane, and when it began (time.perf_counter())."""
        return dict(self._at_work)

    def _start(self, lane: Lane) -> None:
        self._queues[lane] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(lane,), name=f"lane-{lane.value}", daemon=True)
        self._threads[lane] = thread
        thread.start()

    def _run(self, lane: Lane) -> None:
        name_this_thread(f"lane-{lane.value}")
        work_queue = self._queues[lane]
        heap: list[_Work] = []
        begun: tuple[str, Landing] | None = None
        while True:
            while not work_queue.empty() or not (heap or begun):
                heapq.heappush(heap, work_queue.get())
            next_begun = None
            if heap and (begun is None or heap[0][-1]):
                turn, _, what, work, _ = heapq.heappop(heap)
                if turn == LAST:
                    return
                self._at_work[lane] = (what, time.perf_counter())
                land = work()
                next_begun = None if land is None else (what, land)
                # Not held while the lane waits for its next task: it may keep a step's memory alive.
                del work, land
            if begun is not None:
                self._at_work[lane] = (begun[0], time.perf_counter())
                begun[1]()
            begun = next_begun
            del next_begun
            self._at_work.pop(lane, None)

    def abort(self) -> None:
        """A lane is stuck: `close` will not wait for it for ever."""
        self._stuck = True

    def end(self) -> None:
        """Tell each lane's thread to end after what it has, without waiting for it: safe in a finalizer; idempotent."""
        for work_queue in list(self._queues.values()):
            work_queue.put((LAST, next(self._numbers), "", _nothing, False))

    def close(self) -> bool:
        """Let each lane finish what it has and end its thread; idempotent.

        A lane that is stuck is waited for a few seconds and then left behind; False where that was so.
        """
        with self._lock:
            self._closing = True
        self.end()
        # Not within the lock: a lane's last task may hand work to a lane that has not begun, which is dropped.
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
