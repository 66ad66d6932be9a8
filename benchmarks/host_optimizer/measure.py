"""The measurement: contenders take turns, in one process, and each gets its medians over the same stretch of time.

Whatever disturbs the machine for a while then disturbs all of them, and a ratio survives what a time does not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from benchmarks.host_optimizer.contender import Run

SAMPLE_S = 0.02
"""A sample is at least this long: short steps are repeated within it."""
SETTLE_S = 0.005
"""Before a sample, so that the threads of the contender before it have gone to sleep (OpenMP's spin for a while)."""
MOST_CALLS = 100_000


@dataclass(frozen=True, order=True)
class Turn:
    """One contender at one number of threads."""

    threads: int
    variant: str


@dataclass(frozen=True)
class Timing:
    """The samples of one contender, in ns a parameter and step."""

    variant: str
    parameters: int
    threads: int
    samples_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        return statistics.median(self.samples_ns)

    @property
    def quartiles_ns(self) -> tuple[float, float]:
        """The first and the third; of a single sample, that sample twice."""
        if len(self.samples_ns) == 1:
            return self.samples_ns[0], self.samples_ns[0]
        first, _, third = statistics.quantiles(self.samples_ns, n=4, method="inclusive")
        return first, third


def take_turns(contenders: Mapping[Turn, Run], parameters: int, repetitions: int) -> list[Timing]:
    """Measure all contenders, alternating within each repetition; every other repetition in reverse order."""
    calls = {turn: _calibrate(turn, run) for turn, run in contenders.items()}
    samples: dict[Turn, list[float]] = {turn: [] for turn in contenders}
    turns = list(contenders)
    for _ in range(repetitions):
        for turn in turns:
            elapsed_s = _sample_s(turn, contenders[turn], calls[turn])
            samples[turn].append(elapsed_s / calls[turn] / parameters * 1e9)
        turns.reverse()
    return [Timing(turn.variant, parameters, turn.threads, tuple(samples[turn])) for turn in contenders]


def _calibrate(turn: Turn, run: Run) -> int:
    """How many calls make a sample. The first call is no measure: it touches memory and starts threads.

    One that takes ten times a sample has shown all the same that a single call is enough.
    """
    torch.set_num_threads(turn.threads)
    elapsed_s = _elapsed_s(run, 1)
    if elapsed_s < 10 * SAMPLE_S:
        elapsed_s = _elapsed_s(run, 1)
    return min(MOST_CALLS, max(1, math.ceil(SAMPLE_S / elapsed_s)))


def _sample_s(turn: Turn, run: Run, calls: int) -> float:
    torch.set_num_threads(turn.threads)
    time.sleep(SETTLE_S)
    if calls > 1:
        run(1)  # wakes the threads, which a short sample would notice
    return _elapsed_s(run, calls)


def _elapsed_s(run: Run, calls: int) -> float:
    begin = time.perf_counter()
    run(calls)
    return time.perf_counter() - begin
