"""What a person who watches a run would want to be told of: once each time that it begins.

Invariant: the state is bounded, and what was there before the watching began is no alert.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.formatting import amount, percent
from workbench.monitor.samples import GpuSample, MonitorSample
from workbench.tui.run.events import Band, RunEvent
from workbench.tui.run.standing import MetricRows

DEVIATIONS = 6.0
"""A spike stands so many standard deviations above the average."""
CALM_STEPS = 50
"""Steps before a spike is judged, and between two that are told."""
LEARNED = 4 * CALM_STEPS
"""Steps from before the watching that are looked at."""
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


@dataclass
class _Leaps:
    """Values that leap far above the exponential average of those before them."""

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0
    quiet: int = 0
    """Values until one may be told again."""

    def leaps(self, value: float) -> float | None:
        """The value's standard deviations above the mean where they are too many; it then counts for nothing."""
        self.quiet = max(0, self.quiet - 1)
        deviation = math.sqrt(self.variance)
        above = value - self.mean
        # A curve without any noise must not make a spike of its last digit.
        floor = max(deviation, 0.01 * abs(self.mean))
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
    """Watches records and samples; gives what is to be told."""

    def __init__(self) -> None:
        self._loss, self._norm = _Leaps(), _Leaps()
        self._on: set[str] = set()
        """What holds and was told."""
        self._swap: deque[int] = deque(maxlen=SWAP_SAMPLES)
        self._throttled: dict[int, int] = {}

    def learn(self, rows: MetricRows) -> None:
        """Take in records from before the watching: what is usual, and what holds already."""
        for _ in self._of_records(rows, max(0, len(rows) - LEARNED), 0.0):
            pass

    def of_records(self, rows: MetricRows, now: float) -> list[RunEvent]:
        """What is noticed in new records."""
        return list(self._of_records(rows, 0, now))

    def of_sample(self, sample: MonitorSample) -> list[RunEvent]:
        """What is noticed in a sample of the machine."""
        out = []
        for key, text, band in self._conditions(sample):
            if text and key not in self._on:
                self._on.add(key)
                out.append(RunEvent(sample.time, "alert", text, band))
            elif not text:
                self._on.discard(key)
        return out

    def _of_records(self, rows: MetricRows, start: int, now: float) -> Iterator[RunEvent]:
        for name, values, leaps in (
            ("loss", rows.loss, self._loss),
            ("gradient norm", rows.grad_norm, self._norm),
        ):
            for row in range(start, len(rows)):
                value, step = values[row], rows.step[row]
                if not math.isfinite(value):
                    if name not in self._on:
                        self._on.add(name)
                        yield RunEvent(now, "alert", f"step {step:,.0f}: the {name} is not finite", "bad")
                    continue
                self._on.discard(name)
                far = leaps.leaps(value)
                if far is not None:
                    text = (
                        f"step {step:,.0f}: the {name} leaps to {value:.4g}, {far:.0f} standard deviations "
                        f"above its average {leaps.mean:.4g}"
                    )
                    yield RunEvent(now, "alert", text, "warning")

    def _conditions(self, sample: MonitorSample) -> Iterator[tuple[str, str, Band]]:
        """(what, in words or "" where it does not hold, how bad)."""
        for gpu in sample.gpus:
            yield f"gpu {gpu.index}", self._slowed(gpu), "warning"
            text = f"GPU {gpu.index}: {gpu.fault}" if gpu.fault else ""
            yield f"fault {gpu.index}", text, "bad"
        used = sample.host.swap_used_bytes
        if used is not None:
            self._swap.append(used)
            grown = used - min(self._swap)
            # It holds on until swap has stood still for all of the samples.
            yield "swap", self._swapping(grown, used), "bad"
        for disk in sample.disks:
            free, total = disk.free_bytes, disk.total_bytes
            if free is None or total is None:
                continue
            full = free < DISK_BYTES or (free < DISK_SHARE * total and free < DISK_PLENTY_BYTES)
            text = (
                f"{disk.folder}: only {amount(free)} free ({percent(free / max(1, total))})" if full else ""
            )
            yield f"disk {disk.folder}", text, "bad"

    def _swapping(self, grown: int, used: int) -> str:
        if grown > SWAP_BYTES or ("swap" in self._on and grown > 0):
            return f"swap grows: {amount(used)} in use; every step touches all of the optimizer's state"
        return ""

    def _slowed(self, gpu: GpuSample) -> str:
        reasons = [reason for reason in gpu.throttled_by or () if reason not in _NORMAL]
        count = self._throttled.get(gpu.index, 0) + 1 if reasons else 0
        self._throttled[gpu.index] = count
        if count >= THROTTLED_SAMPLES:
            return f"GPU {gpu.index} slows itself down: {', '.join(reasons)}"
        return ""
