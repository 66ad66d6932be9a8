"""Times pieces of a model as they run in training: with weights that come from memory, on an idle device.

Invariant: what is timed begins and ends with nothing left to do on the device.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

import torch

CACHE_BYTES = 128 << 20
"""More than caches hold."""
MATRIX = {"cpu": 1536, "cuda": 4096}


class Stopwatch:
    """Seconds by name, of all rounds."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._flushed = torch.zeros(CACHE_BYTES // 4, device=device)

    @contextlib.contextmanager
    def timed(self, name: str, *, cold: bool = True) -> Iterator[None]:
        """What runs within this counts for `name`; where `cold`, what caches held before is gone."""
        if cold:
            self._flushed.add_(1)
        self._wait()
        began = time.perf_counter()
        yield
        self._wait()
        self._seconds[name].append(time.perf_counter() - began)

    def forget(self) -> None:
        """What was timed so far was warming up."""
        self._seconds.clear()

    def median(self, name: str) -> float:
        return median(self._seconds[name])

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class MatrixSpeed:
    """Floating-point operations a second of a large product in `dtype`, a multiplication and an addition being two."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._size = MATRIX.get(device.type, MATRIX["cpu"])
        shape = (self._size, self._size)
        self._left, self._right = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        self._out = torch.empty_like(self._left)
        self._stopwatch = Stopwatch(device)
        self.measure()
        self._stopwatch.forget()

    def measure(self) -> None:
        with self._stopwatch.timed("product"):
            torch.mm(self._left, self._right, out=self._out)

    def median(self) -> float:
        return 2 * self._size**3 / self._stopwatch.median("product")
