"""What a case does to the machine: time on the device's own clock, and how far the free host memory fell."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

import psutil
import torch

if TYPE_CHECKING:
    from workbench.virtual_cuda.clock import VirtualClock

EVERY_S = 0.05
COPIES = ("Memcpy HtoD", "Memcpy DtoH", "Memset")
"""Beginnings of the profiler's names for what is no kernel."""


class HostWatch:
    """The least free host memory while it runs: it also sees pinned memory, which some drivers leave out of VmHWM."""

    def __init__(self) -> None:
        self._start = self._least = psutil.virtual_memory().available
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-watch", daemon=True)

    def __enter__(self) -> HostWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def taken_bytes(self) -> int:
        """How far the system's free memory has fallen since the start; other processes are in it."""
        self._least = min(self._least, psutil.virtual_memory().available)
        return self._start - self._least

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._least = min(self._least, psutil.virtual_memory().available)


class DeviceClock:
    """Seconds between marks in the order in which the device reaches them; on a CPU, as Python does.

    `virtual`: the clock of the virtual device, which then tells the time of the host, too.
    """

    def __init__(self, device: torch.device, virtual: VirtualClock | None = None) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._virtual = virtual
        self.now: Callable[[], float] = time.perf_counter if virtual is None else virtual.host.now

    def mark(self) -> torch.cuda.Event | float:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event | float, stop: torch.cuda.Event | float) -> float:
        """After `settle`."""
        if isinstance(start, float) or isinstance(stop, float):
            assert isinstance(start, float) and isinstance(stop, float)
            return stop - start
        return float(start.elapsed_time(stop)) / 1e3

    def settle(self) -> None:
        """Return when the compute stream has done all that it was given; other streams go on."""
        if self._cuda:
            torch.cuda.current_stream(self._device).synchronize()

    def idle_share(self, work: Callable[[], None]) -> float | None:
        """Return the share of `work` in which no kernel ran between its first and its last one; None on a CPU."""
        if not self._cuda:
            return None
        if self._virtual is not None:
            begin = self._virtual.mark()
            work()
            end = self._virtual.mark()
            self.settle()
            return 1 - (end.busy_s - begin.busy_s) / (end.ends_at - begin.ends_at)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            work()
            torch.cuda.synchronize(self._device)
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in profiler.events() or ()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(COPIES)
        ]
        return idle_share_of(spans)


def idle_share_of(spans: Iterable[tuple[float, float]]) -> float | None:
    """Return the share of the time from the first start to the last end that no span covers; None without spans."""
    covered, until, first = 0.0, -math.inf, math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until, first = max(until, end), min(first, start)
    return 1 - covered / (until - first) if until > first else None
