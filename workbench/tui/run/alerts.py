"""Alerts for somebody who watches a run: one each time that something begins to go wrong.

Invariant: the state is bounded, and what was there before the watching began is no alert.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workbench.formatting import amount, percent
from workbench.monitor.samples import GpuSample, MonitorSample
from workbench.tui.run.events import Band, RunEvent

DEVIATIONS = 6.0
"""A spike stands so many standard deviations above the average."""
CALM_STEPS = 50
"""Steps before a spike is judged, and between two that are reported."""
LEARNED = 4 * CALM_STEPS
"""Steps from before the watching that say what is usual."""
_WEIGHT = 0.03
"""Of a new value in mean and variance (West 1979, "Updating mean and variance estimates", exponential weights)."""
SWAP_BYTES = 64 << 20
"""Swap that has grown by more than this over SWAP_SAMPLES is growing."""
SWAP_SAMPLES = 20
DISK_BYTES = 2 << 30
DISK_SHARE, DISK_PLENTY_BYTES = 0.03, 16 << 30
"""A disk is nearly full with less free than DISK_BYTES, or than this share of it, unless that is plenty."""
THROTTLED_SAMPLES = 3
_NORMAL = {"power cap", "clocks set by the user", "display clocks", "sync boost"}
"""What holds clocks down in daily work."""


Values = Iterable[float]


@dataclass
class _Leaps:
    """Finds values that leap far above the exponential average of those before them."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0
    quiet: int = 0
    """Values until one may be reported again."""

    def take(self, value: float) -> float | None:
        """Return the value's standard deviations above the mean where they are too many; it then counts for nothing."""
        self.quiet = max(0, self.quiet - 1)
        above = value - self.mean
        # A curve without any noise must not make a spike of its last digit.
        floor = max(math.sqrt(self.variance), 0.01 * abs(self.mean))
        if self.seen >= CALM_STEPS and floor > 0 and above > DEVIATIONS * floor:
            if self.quiet:
                return None
            self.quiet = CALM_STEPS
            return above / floor
        weight = max(_WEIGHT, 1 / (self.seen + 1))
        self.seen += 1
        self.mean += weight * above
        self.variance = (1 - weight) * (self.variance + weight * above * above)
        return None


class Alerts:
    """Watches records and samples for what somebody would want to know."""

    def __init__(self) -> None:
        self._leaps = {"loss": _Leaps(), "gradient norm": _Leaps()}
        self._on: set[str] = set()
        """The conditions that hold and were reported."""
        self._swap: deque[int] = deque(maxlen=SWAP_SAMPLES)
        self._throttled: dict[int, int] = {}

    def of_records(self, steps: Values, losses: Values, norms: Values, *, now: float) -> list[RunEvent]:
        """Return the alerts of new records. Those from before the watching are given too, and their alerts dropped."""
        out = []
        for name, values in (("loss", losses), ("gradient norm", norms)):
            for step, value in zip(steps, values, strict=True):
                if not math.isfinite(value):
                    if name not in self._on:
                        self._on.add(name)
                        text = f"step {step:,.0f}: the {name} is not finite"
                        out.append(RunEvent(now, "alert", text, "bad"))
                    continue
                self._on.discard(name)
                if far := self._leaps[name].take(value):
                    text = (
                        f"step {step:,.0f}: the {name} leaps to {value:.4g}, {far:.0f} standard deviations "
                        f"above its average {self._leaps[name].mean:.4g}"
                    )
                    out.append(RunEvent(now, "alert", text, "warning"))
        return out

    def of_sample(self, sample: MonitorSample) -> list[RunEvent]:
        """Return the alerts of a sample of the machine."""
        out = []
        for key, text, band in self._conditions(sample):
            if text and key not in self._on:
                out.append(RunEvent(sample.time, "alert", text, band))
            (self._on.add if text else self._on.discard)(key)
        return out

    def _conditions(self, sample: MonitorSample) -> Iterator[tuple[str, str, Band]]:
        """Yield (key, text, band); the text is empty where the condition does not hold."""
        for gpu in sample.gpus:
            yield f"gpu {gpu.index}", self._slowed(gpu), "warning"
            yield f"fault {gpu.index}", f"GPU {gpu.index}: {gpu.fault}" if gpu.fault else "", "bad"
        used = sample.host.swap_used_bytes
        if used is not None:
            self._swap.append(used)
            grown = used - min(self._swap)
            # It holds on until swap has stood still for all of the samples.
            grows = grown > SWAP_BYTES or ("swap" in self._on and grown > 0)
            text = f"swap grows: {amount(used)} in use; every step touches all of the optimizer's state"
            yield "swap", text if grows else "", "bad"
        for disk in sample.disks:
            free, total = disk.free_bytes, disk.total_bytes
            if free is not None and total is not None:
                full = free < DISK_BYTES or (free < DISK_SHARE * total and free < DISK_PLENTY_BYTES)
                text = f"{disk.folder}: only {amount(free)} free ({percent(free / max(1, total))})"
                yield f"disk {disk.folder}", text if full else "", "bad"

    def _slowed(self, gpu: GpuSample) -> str:
        reasons = [reason for reason in gpu.throttled_by or () if reason not in _NORMAL]
        count = self._throttled.get(gpu.index, 0) + 1 if reasons else 0
        self._throttled[gpu.index] = count
        slowed = count >= THROTTLED_SAMPLES
        return f"GPU {gpu.index} slows itself down: {', '.join(reasons)}" if slowed else ""
