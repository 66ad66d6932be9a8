"""The goals, and whether a result meets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.machine import GIB
from benchmarks.gpu.cases import Case

LARGEST = "gpt2-10b"
MICRO_BATCH = 10
DEVICE_GIB = 32.0
HOST_GIB = {True: 83.0, False: 65.0}
"""In `compact`, with and without clipping."""
SHARE = 0.03


@dataclass(frozen=True)
class Goal:
    """One goal of one case. `figure` has to be under `limit`."""

    words: str
    limit: float
    figure: float
    unit: str

    @property
    def met(self) -> bool:
        return self.figure <= self.limit


def exposed_s(case: Case, result: Mapping[str, Any]) -> float | None:
    """Seconds of a step in which the model waited for the engine; None for the alternatives, which do not tell.

    The larger of what the engine saw and of what a step takes longer than its forward and backward do alone. `serial`
    waits within its own backward, which only the engine can tell apart.
    """
    if case.contender != "engine":
        return None
    waited: float = result["waited_s"]
    if case.overlap == "serial":
        return waited
    longer: float = result["median_step_s"] - result["forward_s"] - result["backward_s"]
    return max(waited, longer)


def goals_of(case: Case, result: Mapping[str, Any], micro_batch: int) -> list[Goal]:
    """What is wanted of this case; nothing where there was no GPU."""
    goals: list[Goal] = []
    if "device_reserved_bytes" not in result:
        return goals
    exposed = exposed_s(case, result)
    if exposed is not None and case.state == "host" and case.overlap == "exact":
        step_s, forward_s = result["median_step_s"], result["forward_s"]
        update_s = result["lane_seconds"]["update"]
        share = SHARE * step_s
        if case.clipping:
            limit, words = max(0.0, update_s - forward_s) + share, "exposed <= max(0, update - forward) + 3 %"
        else:
            limit, words = share, "exposed < 3 % of the step"
        goals.append(Goal(words, limit, exposed, "s"))
    if case.contender == "engine" and case.model == LARGEST and case.state == "host":
        if micro_batch == MICRO_BATCH:
            peak = result["device_reserved_bytes"] / GIB
            goals.append(Goal(f"device peak < {DEVICE_GIB:.0f} GiB", DEVICE_GIB, peak, "GiB"))
        host = result["host_peak_bytes"]
        if case.state_format == "compact" and case.overlap == "exact" and host is not None:
            limit = HOST_GIB[case.clipping]
            goals.append(Goal(f"host peak < {limit:.0f} GiB", limit, host / GIB, "GiB"))
    return goals
