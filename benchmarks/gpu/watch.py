"""What a case does to the machine: time on the device's own clock, and how far the free host memory fell."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psutil
import torch

EVERY_S = 0.05


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
    """Seconds between marks in the order in which the device reaches them; on a CPU, as Python does."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device

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
