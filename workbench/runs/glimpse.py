"""Some of a long run's records, evenly spread, without reading the others: what its curves look like, at once.

Invariant: every record given is one that stands, the newest ones among them without a gap; nothing here raises.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.runs.directory import RunDirectory
from workbench.runs.events import read_events
from workbench.runs.metrics import Column, Metrics, read_header, standing_ranges

STRETCHES, STRETCH = 256, 16
"""So many stretches of neighbouring records: no more places of a disk than it gives in a moment, of which each is one
or two blocks; and enough that each column of a chart has its own."""
NEWEST = 256
"""Records at the end without a gap: an average of the last values is that of all the run."""
LONG = 50_000
"""Records that take a while to be read."""
PATIENCE_S = 0.5
"""On a disk that takes longer to find its places all may as well be read at once."""


@dataclass(frozen=True)
class Glimpse:
    """Records of a run that has more of them."""

    metrics: Metrics
    """As `read_run_metrics` gives them, but not all."""
    places: array[int] = field(repr=False)
    """Which of the run's standing records each of them is, counted from 0."""
    total: int
    """How many records stand."""


class _Steps:
    """The step of each record, read where it lies."""

    def __init__(self, descriptor: int, first: int, width: int, count: int) -> None:
        """`first`: where the first record's step lies in the file, in bytes; `width`: columns of a record."""
        self._descriptor, self._first, self._width, self._count = descriptor, first, width, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, record: int, /) -> float:
        data = os.pread(self._descriptor, 8, self._first + 8 * self._width * record)
        if len(data) < 8:
            raise OSError("it is shorter than it was")
        (step,) = struct.unpack("<d", data)
        return float(step)


def glimpse(run: RunDirectory, shortest: int = LONG) -> Glimpse | None:
    """Some of the records that stand. None where there are fewer than `shortest`, or they cannot be read soon."""
    shortest = max(shortest, 2 * STRETCHES * STRETCH + NEWEST)
    try:
        with run.metrics.open("rb") as file:
            columns, start, problem = read_header(file.read(1 << 16), run.metrics)
            descriptor = file.fileno()
            width = len(columns)
            there = 0 if problem else (os.fstat(descriptor).st_size - start) // (8 * width)
            if there < shortest:
                return None
            ranges = _standing(run, columns, descriptor, start, there)
            total = sum(b - a for a, b in ranges)
            if total < shortest:
                return None
            values, places = array("d"), array("L")
            until = time.monotonic() + PATIENCE_S
            for first, count in _stretches(total):
                if time.monotonic() > until:
                    return None
                for record, length in _records_of(ranges, first, count):
                    data = os.pread(descriptor, 8 * width * length, start + 8 * width * record)
                    if len(data) < 8 * width * length:
                        return None
                    values.frombytes(data)
                places.extend(range(first, first + count))
    except OSError:
        return None
    if sys.byteorder == "big":
        values.byteswap()
    return Glimpse(Metrics(columns, ((0, len(places)),), values=values), places, total)


def _standing(
    run: RunDirectory, columns: Sequence[Column], descriptor: int, start: int, there: int
) -> tuple[tuple[int, int], ...]:
    resumes = [event for event in read_events(run).events if event.kind == "resume"]
    step = next((index for index, column in enumerate(columns) if column.name == "step"), None)
    if not resumes or step is None:
        return ((0, there),)
    return standing_ranges(_Steps(descriptor, start + 8 * step, len(columns), there), resumes)


def _stretches(total: int) -> list[tuple[int, int]]:
    """(first, how many) of the standing records to be read, in order: spread ones, then the newest."""
    spread = total - NEWEST
    return [(number * spread // STRETCHES, STRETCH) for number in range(STRETCHES)] + [(spread, NEWEST)]


def _records_of(ranges: Sequence[tuple[int, int]], first: int, count: int) -> list[tuple[int, int]]:
    """(number in the file, how many) of `count` standing records from `first` on."""
    found = []
    for start, stop in ranges:
        length = stop - start
        if first < length and count > 0:
            taken = min(count, length - first)
            found.append((start + first, taken))
            count -= taken
            first = 0
        else:
            first -= min(first, length)
    return found
