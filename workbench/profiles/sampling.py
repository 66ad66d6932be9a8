"""Sampling times: a probe's budget, medians of several works, rates of works at once, and the load beside them.

No torch. Invariant: the first call of a work is never a sample: it touches memory and starts threads.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import psutil

from workbench.formatting import MIB

MOST_CALLS = 100_000
STARTS_WITHIN_S = 60.0
BUSY_SHARE = 0.15
"""Share of all cores from which on other programs make a measurement worse than the machine is."""

Key = TypeVar("Key", bound=Hashable)
Work = Callable[[], object]


@dataclass(frozen=True)
class Budget:
    """Times in seconds, sizes in bytes unless said.

    `repetitions`: of each measurement, fewer where a part has taken `part_s`. `sample_s`: the least length of one.
    `buffer_bytes` and `elements`: of each buffer, of parameters; where the caches are large, both grow to be
    `cache_multiple` times these. `product_s`: about the length of a matrix product. `disk_bytes`: of all files
    together; `disk_s`: for all of their reads and writes.
    """

    repetitions: int
    sample_s: float
    part_s: float
    buffer_bytes: int
    elements: int
    cache_multiple: float
    product_s: float
    disk_bytes: int
    disk_s: float


FULL = Budget(
    repetitions=7,
    sample_s=0.02,
    part_s=8.0,
    buffer_bytes=256 * MIB,
    elements=1 << 24,
    cache_multiple=3.0,
    product_s=0.05,
    disk_bytes=512 * MIB,
    disk_s=6.0,
)
QUICK = Budget(
    repetitions=3,
    sample_s=0.01,
    part_s=1.5,
    buffer_bytes=128 * MIB,
    elements=1 << 23,
    cache_multiple=2.0,
    product_s=0.02,
    disk_bytes=256 * MIB,
    disk_s=1.5,
)


def median_seconds(contenders: Mapping[Key, Work], budget: Budget) -> dict[Key, float]:
    """Return the median seconds of one call of each contender, which returns when its work is done.

    Contenders take turns, so that a disturbance meets all of them. After `budget.part_s` no further round is begun.
    """
    began = time.perf_counter()
    calls = {key: _calls(work, budget.sample_s) for key, work in contenders.items()}
    samples: dict[Key, list[float]] = {key: [] for key in contenders}
    for round_number in range(budget.repetitions):
        if round_number and time.perf_counter() - began > budget.part_s:
            break
        for key, work in contenders.items():
            if calls[key] > 1:
                work()  # wakes threads, which a short sample would notice
            samples[key].append(_elapsed(work, calls[key]) / calls[key])
    return {key: statistics.median(taken) for key, taken in samples.items()}


def _calls(work: Work, sample_s: float) -> int:
    """Return how many calls make a sample of `sample_s`."""
    elapsed_s = _elapsed(work, 1)
    if elapsed_s < 10 * sample_s:  # the first call may be slow
        elapsed_s = _elapsed(work, 1)
    return min(MOST_CALLS, max(1, math.ceil(sample_s / max(elapsed_s, 1e-9))))


def _elapsed(work: Work, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - began


def rates_together(works: Sequence[Work], nbytes: int, lasting_s: float) -> list[float]:
    """Return bytes a second of each of `works`, which move `nbytes` a call, while all go on for at least `lasting_s`.

    Raises what one of them raises.
    """
    barrier = threading.Barrier(len(works))
    over = threading.Event()

    def rate(work: Work) -> float:
        barrier.wait(STARTS_WITHIN_S)
        began, calls = time.perf_counter(), 0
        while not calls or (time.perf_counter() - began < lasting_s and not over.is_set()):
            work()
            calls += 1
        return calls * nbytes / (time.perf_counter() - began)

    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(rate, work) for work in works]
        try:
            return [future.result() for future in futures]
        finally:
            over.set()  # interrupted: whoever gives the memory back must find nothing under way


class BackgroundLoad:
    """The load of other programs from the making of this on.

    In a container the whole machine counts: others share its memory even where not its cores.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.busy_cores()

    def busy_cores(self) -> float:
        """Return the cores that others kept busy, or the hypervisor took, on average; 0 where that does not matter."""
        cores = psutil.cpu_count() or 1
        others = (psutil.cpu_percent() * cores - self._process.cpu_percent()) / 100
        return round(others, 1) if others >= BUSY_SHARE * cores else 0.0
