"""How busy others kept the processor meanwhile: what makes a measurement worse than the machine is. No torch."""

from __future__ import annotations

import os
import time

NOTEWORTHY = 0.15
"""Of all cores."""
WORSE = "these figures are worse than the machine; measure it again when it is idle"
"""What follows the sentence of `Others.note` when a measurement has ended."""


class Others:
    """From its making on. In a container the whole machine counts: others share its memory even where not its cores."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._all, self._own = _busy_s(), _own_s()

    def cores(self) -> float:
        """The cores that others kept busy, or the hypervisor took, on average."""
        elapsed = time.perf_counter() - self._began
        others = (_busy_s() - self._all) - (_own_s() - self._own)
        return max(0.0, others / elapsed) if elapsed > 0 else 0.0

    def note(self) -> str:
        """A sentence where they mattered, else nothing."""
        cores, all_cores = self.cores(), os.cpu_count() or 1
        if cores < NOTEWORTHY * all_cores:
            return ""
        return f"other processes kept {cores:.1f} of {all_cores} cores busy meanwhile"


def _busy_s() -> float:
    """Core-seconds of the whole machine that were not idle."""
    import psutil

    times = psutil.cpu_times()
    # What guests take is in the user's time already.
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_s() -> float:
    times = os.times()
    return times.user + times.system
