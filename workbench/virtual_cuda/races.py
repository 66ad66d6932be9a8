"""Finds accesses to the same bytes that nothing orders, whatever order they were carried out in.

Each stream has a vector clock (Lamport 1978; Mattern 1989). An operation comes after all that its stream had, after
what that had waited for, and after what the host had waited for when it was issued. Two accesses of which one writes,
and of which neither comes after the other, are a race. So is what the host itself does with memory that the device
reaches, where it has not waited for the operations that use it.

All threads of the host count as one: that a lane hands its result to another thread properly is not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.virtual_cuda.streams import Operation

VectorClock = dict[str, int]
"""By stream: how many of its operations have come before."""


@dataclass(frozen=True)
class Race:
    """Two accesses without an order. `first` and `second` name operation and stream."""

    first: str
    second: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.second} touches {self.nbytes:,} bytes that {self.first} may still be using"


@dataclass
class _Access:
    stream: str
    count: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} on {self.stream}"


@dataclass
class _Range:
    """Bytes from `start` to `stop`: who wrote them last, and who has read them since."""

    start: int
    stop: int
    write: _Access | None = None
    reads: dict[str, _Access] = field(default_factory=dict)

    def part(self, start: int, stop: int) -> _Range:
        return _Range(start, stop, self.write, dict(self.reads))


Bytes = tuple[int, int]
"""Address of the first byte, and of the one behind the last."""


class RaceChecker:
    """Told of every operation as it is issued; `races` holds what it found, each pair of names once."""

    def __init__(self) -> None:
        self.races: dict[tuple[str, str], Race] = {}
        self._clocks: dict[str, VectorClock] = {}
        self._host: VectorClock = {}
        self._ranges: list[_Range] = []

    def order(self, operation: Operation) -> None:
        """Give an operation that is issued its place."""
        stream = operation.stream.name
        clock = self._clocks.setdefault(stream, {})
        _join(clock, self._host)
        if operation.waits is not None:
            _join(clock, operation.waits.clock)
        clock[stream] = clock.get(stream, 0) + 1
        operation.clock = dict(clock)

    def host_has_waited(self, operation: Operation) -> None:
        """Order all that the host does from now on after `operation`."""
        _join(self._host, operation.clock)

    def access(self, operation: Operation, reads: Iterable[Bytes], writes: Iterable[Bytes]) -> None:
        """Look at what an operation that was given its place reads and writes."""
        me = _Access(operation.stream.name, operation.clock[operation.stream.name], operation.name)
        for start, stop in reads:
            for known in self._cut(start, stop):
                self._compare(known, known.write, operation.clock, str(me))
                known.reads[me.stream] = me
        for start, stop in writes:
            for known in self._cut(start, stop):
                for before in (known.write, *known.reads.values()):
                    self._compare(known, before, operation.clock, str(me))
                known.write, known.reads = me, {}

    def host_access(self, name: str, reads: Iterable[Bytes], writes: Iterable[Bytes]) -> None:
        """Look at what the host reads and writes itself. Operations that are issued later come after it."""
        for start, stop in reads:
            for known in self._cut(start, stop):
                self._compare(known, known.write, self._host, name)
        for start, stop in writes:
            for known in self._cut(start, stop):
                for before in (known.write, *known.reads.values()):
                    self._compare(known, before, self._host, name)

    def _compare(self, known: _Range, before: _Access | None, clock: VectorClock, second: str) -> None:
        if before is None or clock.get(before.stream, 0) >= before.count:
            return
        first = str(before)
        self.races.setdefault((first, second), Race(first, second, known.stop - known.start))

    def _cut(self, start: int, stop: int) -> list[_Range]:
        """Return the ranges that make up the bytes from `start` to `stop`, cut at both ends."""
        if start >= stop:
            return []
        ranges = self._ranges
        low, high = 0, len(ranges)
        while low < high:  # the first range that ends behind `start`
            middle = (low + high) // 2
            if ranges[middle].stop <= start:
                low = middle + 1
            else:
                high = middle
        first = last = low
        while last < len(ranges) and ranges[last].start < stop:
            last += 1
        if last == first + 1 and ranges[first].start == start and ranges[first].stop == stop:
            return [ranges[first]]
        inside: list[_Range] = []
        made: list[_Range] = []
        here = start
        for known in ranges[first:last]:
            if known.start < start:
                made.append(known.part(known.start, start))
            if known.start > here:
                inside.append(_Range(here, known.start))
                made.append(inside[-1])
            begin, end = max(known.start, start), min(known.stop, stop)
            inside.append(known.part(begin, end))
            made.append(inside[-1])
            here = end
            if known.stop > stop:
                made.append(known.part(stop, known.stop))
        if here < stop:
            inside.append(_Range(here, stop))
            made.append(inside[-1])
            made.sort(key=lambda each: each.start)
        ranges[first:last] = made
        return inside


def _join(clock: VectorClock, other: VectorClock) -> None:
    for stream, count in other.items():
        if clock.get(stream, 0) < count:
            clock[stream] = count
