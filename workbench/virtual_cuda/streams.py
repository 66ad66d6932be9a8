"""Streams and events: queues of operations that are put off, and the orders in which they are carried out.

Invariant: operations of one stream run in the order in which they were issued, and one that waits for an event runs
after all that the event was recorded behind. Nothing else is promised, as on a GPU.
"""

from __future__ import annotations

import contextlib
import enum
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from workbench.virtual_cuda.fluid_time import Work
from workbench.virtual_cuda.races import Bytes, RaceChecker, VectorClock

if TYPE_CHECKING:
    from workbench.virtual_cuda.clock import VirtualClock

LONGEST_RUN = 40
"""Operations that a random order carries out at most when one is issued."""


class Order(enum.Enum):
    """When operations that may run do run."""

    AT_ONCE = "at once"
    """Each as it is issued: what all other orders are compared with."""
    LAZY = "lazy"
    """When the host waits for them, and then those alone that it waits for."""
    COPIES_FIRST = "copies first"
    """Copies as early as they may, compute as late as it can."""
    COMPUTE_FIRST = "compute first"
    """Compute as early as it may, copies as late as they can."""
    RANDOM = "random"
    """Some of them, of any stream, after each that is issued."""


class Operation:
    """One entry of a stream: work to do, or the moment of an event, or a wait for one.

    Where it is `remote`, `work` begins what other processes take part in, and returns what ends it: something with
    `is_completed` and `wait`.
    """

    __slots__ = ("clock", "done", "landing", "name", "remote", "stream", "timed", "waits", "work")

    def __init__(
        self,
        stream: VirtualStream,
        name: str,
        work: Callable[[], Any] | None = None,
        waits: Operation | None = None,
        remote: bool = False,
    ) -> None:
        self.stream = stream
        self.name = name
        self.work = work
        self.waits = waits
        self.remote = remote
        self.landing: Any = None
        """The end of a remote one that has begun."""
        self.done = False
        self.clock: VectorClock = {}
        self.timed: Work | None = None
        """Its place in virtual time, where there is a clock."""


class VirtualStream:
    """Stands in for `torch.cuda.Stream`."""

    def __init__(self, queues: Queues, name: str) -> None:
        self.queues = queues
        self.name = name
        self.pending: deque[Operation] = deque()
        queues.add(self)

    def wait_event(self, event: VirtualEvent) -> None:
        if event.recorded is not None:
            self.queues.issue(Operation(self, "wait", waits=event.recorded))

    def wait_stream(self, other: VirtualStream) -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        event = event or VirtualEvent(self.queues)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def query(self) -> bool:
        return not self.pending

    def is_capturing(self) -> bool:
        return False


class VirtualEvent:
    """Stands in for `torch.cuda.Event`."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.recorded: Operation | None = None

    def record(self, stream: VirtualStream | None = None) -> None:
        self.recorded = Operation(stream or self._queues.current, "event")
        self._queues.issue(self.recorded)

    def wait(self, stream: VirtualStream | None = None) -> None:
        (stream or self._queues.current).wait_event(self)

    def synchronize(self) -> None:
        if self.recorded is not None:
            self._queues.finish(self.recorded)

    def query(self) -> bool:
        return self.recorded is None or self._queues.is_over(self.recorded)

    def elapsed_time(self, later: VirtualEvent) -> float:
        """Return the milliseconds from this event to a later one, in virtual time: 0 where there is no clock."""
        assert self.recorded is not None and later.recorded is not None
        if self.recorded.timed is None or later.recorded.timed is None:
            return 0.0
        return 1e3 * (later.recorded.timed.ends_at - self.recorded.timed.ends_at)


class Queues:
    """All streams of the device. A thread of its own carries operations out, as the GPU would beside the host."""

    def __init__(
        self,
        order: Order,
        seed: int,
        races: RaceChecker | None,
        clock: VirtualClock | None = None,
        values: bool = True,
    ) -> None:
        self.order = order
        self.values = values
        self.clock = clock
        self.races = races
        self.host_waits = 0
        """The number of times that the host waited for the device."""
        self.operations = 0
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._gpu = ThreadPoolExecutor(1, "virtual-gpu", initializer=_without_gradients)
        self._threads = threading.local()
        self.streams: list[VirtualStream] = []
        self.compute = VirtualStream(self, "compute")
        if clock is not None:
            clock.host.when_idle = self._go_on

    def add(self, stream: VirtualStream) -> None:
        """Take in a stream that was made."""
        with self._lock:
            self.streams.append(stream)

    @property
    def current(self) -> VirtualStream:
        """The calling thread's stream."""
        stream: VirtualStream = getattr(self._threads, "stream", self.compute)
        return stream

    @current.setter
    def current(self, stream: VirtualStream) -> None:
        self._threads.stream = stream

    def issue(
        self,
        operation: Operation,
        reads: Iterable[Bytes] = (),
        writes: Iterable[Bytes] = (),
        seconds: float = 0.0,
    ) -> None:
        """Queue an operation that takes `seconds` of virtual time, and carry out what the order wants by now."""
        if self.clock is not None:
            self.clock.place(operation, seconds)
        with self._lock:
            self.operations += operation.work is not None
            if self.races is not None:
                self.races.order(operation)
                self.races.access(operation, reads, writes)
            if not self.values:
                operation.work, operation.done = None, True
                return
            operation.stream.pending.append(operation)
            chosen = self._chosen(operation)
            if chosen:
                self._gpu.submit(chosen).result()
        if self.order is Order.AT_ONCE:
            self._carry_out(operation)

    def _chosen(self, issued: Operation) -> Callable[[], None] | None:
        if self.order is Order.COPIES_FIRST:
            return lambda: self._advance([s for s in self.streams if s is not self.compute])
        if self.order is Order.COMPUTE_FIRST:
            return lambda: self._advance([self.compute])
        if self.order is Order.RANDOM and self._random.random() < 0.5:
            return self._advance_at_random
        return None

    def finish(self, operation: Operation) -> None:
        """Return when `operation` is done: the host waits for it."""
        with self._lock:
            self.host_waits += 1
        self._carry_out(operation)
        if self.clock is not None and operation.timed is not None:
            self.clock.host.wait_for(operation.timed)
        if self.races is not None:
            with self._lock:
                self.races.host_has_waited(operation)

    def _carry_out(self, operation: Operation) -> None:
        while True:
            with self._lock:
                under_way = None if operation.done else self._gpu.submit(self._finish, operation).result()
            if under_way is None:
                return
            # Not in the lock: other processes may need another exchange of this one's to come to it.
            with _told_of(under_way):
                self.wait_for_others(under_way.landing)

    def _go_on(self) -> None:
        """Carry out all that may run."""
        with self._lock:
            self._gpu.submit(self._advance, self.streams).result()

    def wait_for_others(self, landing: Any) -> None:
        """Return when what other processes take part in has ended; `landing` is as of an `Operation`."""
        if self.clock is not None:
            self.clock.host.wait_for_others(landing.is_completed)
        landing.wait()

    def is_over(self, operation: Operation) -> bool:
        """Return True where the host would find `operation` done now."""
        return operation.done if operation.timed is None else operation.timed.ends_at < math.inf

    def finish_all(self) -> None:
        """Return when every stream is empty."""
        for stream in list(self.streams):
            stream.synchronize()

    def read(self, name: str, work: Callable[[], Any], reads: Iterable[Bytes]) -> Any:
        """Return what `work` gives on the device once the current stream is done: a read by the host."""
        self.current.synchronize()
        self.host_access(name, reads, ())
        return self._gpu.submit(work).result()

    def host_access(self, name: str, reads: Iterable[Bytes], writes: Iterable[Bytes]) -> None:
        """The host reads and writes memory that operations of the device may use."""
        if self.races is not None:
            with self._lock:
                self.races.host_access(f"{name} by the host", reads, writes)

    def close(self) -> None:
        self._gpu.shutdown()

    # On the thread of the GPU

    def _finish(self, wanted: Operation) -> Operation | None:
        """Carry out what `wanted` needs, and no more; return what other processes have not ended of it."""
        needed = [wanted]
        while needed:
            operation = needed[-1]
            if operation.done:
                needed.pop()
                continue
            head = operation.stream.pending[0]
            if head.waits is not None and not head.waits.done:
                needed.append(head.waits)
            elif not self._run(head):
                return head
        return None

    def _advance(self, streams: list[VirtualStream]) -> None:
        """Carry out all that may run on `streams` without work of others."""
        moved = True
        while moved:
            moved = False
            for stream in streams:
                while stream.pending and self._may_run(stream.pending[0]):
                    moved = self._run(stream.pending[0]) or moved

    def _advance_at_random(self) -> None:
        for _ in range(int(self._random.random() ** 4 * LONGEST_RUN)):
            ready = [s for s in self.streams if s.pending and self._may_run(s.pending[0])]
            if not ready:
                return
            self._run(self._random.choice(ready).pending[0])

    @staticmethod
    def _may_run(operation: Operation) -> bool:
        if operation.landing is not None:
            return bool(operation.landing.is_completed())
        return operation.waits is None or operation.waits.done

    @staticmethod
    def _run(operation: Operation) -> bool:
        """Carry out a stream's first operation; False where other processes have not ended it."""
        with _told_of(operation):
            if operation.remote and operation.landing is None:
                assert operation.work is not None
                operation.landing = operation.work()
            if operation.landing is not None:
                if not operation.landing.is_completed():
                    return False
                operation.landing.wait()  # Raises what became of it.
        operation.stream.pending.popleft()
        operation.done = True
        work, operation.work = operation.work, None
        if work is not None and not operation.remote:
            with _told_of(operation):
                work()
        return True


@contextlib.contextmanager
def _told_of(operation: Operation) -> Iterator[None]:
    """Say which operation it was that failed."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"virtual CUDA: {operation.name} on {operation.stream.name}: {error}") from error


def _without_gradients() -> None:
    torch.set_grad_enabled(False)
