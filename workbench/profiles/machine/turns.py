"""Medians of what several contenders take, in turns, so that whatever disturbs the machine disturbs all. No torch.

Invariant: the first call of a contender is never a sample: it touches memory and starts threads.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from workbench.profiles.machine.budget import Budget

SETTLE_S = 0.002
"""Before a sample, so that the threads of the contender before it have gone to sleep."""
MOST_CALLS = 100_000

Key = TypeVar("Key", bound=Hashable)
Work = Callable[[], object]


def median_seconds(contenders: Mapping[Key, Work], budget: Budget) -> dict[Key, float]:
    """Seconds of one call of each contender, which returns when its work is done.

    Every other repetition goes in reverse order. After `budget.part_s` no further repetition is begun, but one is made.
    """
    began = time.perf_counter()
    calls = {key: _calls(work, budget.sample_s) for key, work in contenders.items()}
    samples: dict[Key, list[float]] = {key: [] for key in contenders}
    order = list(contenders)
    for repetition in range(budget.repetitions):
        if repetition and time.perf_counter() - began > budget.part_s:
            break
        for key in order:
            samples[key].append(_sample(contenders[key], calls[key]))
        order.reverse()
    return {key: statistics.median(taken) for key, taken in samples.items()}


def _calls(work: Work, sample_s: float) -> int:
    """How many calls make a sample; one that is longer by far even at its first call is not called again for that."""
    elapsed_s = _elapsed(work, 1)
    if elapsed_s < 10 * sample_s:
        elapsed_s = _elapsed(work, 1)
    return min(MOST_CALLS, max(1, math.ceil(sample_s / max(elapsed_s, 1e-9))))


def _sample(work: Work, calls: int) -> float:
    time.sleep(SETTLE_S)
    if calls > 1:
        work()  # wakes threads, which a short sample would notice
    return _elapsed(work, calls) / calls


def _elapsed(work: Work, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - began
