"""Host buffers for values that leave the device and come back: they grow with the values, not with how often they go.

Invariant: a buffer's memory is given back to the driver only when no copy from or to it is under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.engine.device import Device, Mark


@dataclass(eq=False)
class HostBuffer:
    """`busy`: the end of the last copy from or to it."""

    memory: Tensor
    busy: Mark = None

    def values(self, dtype: torch.dtype, elements: int) -> Tensor:
        return self.memory[: elements * dtype.itemsize].view(dtype)


class HostPool:
    """`take` and `give_back`; who takes a buffer lets the next copy wait for `busy`, and notes its end there."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._all: list[HostBuffer] = []
        self._free: list[HostBuffer] = []

    @property
    def nbytes(self) -> int:
        return sum(buffer.memory.nbytes for buffer in self._all)

    def take(self, nbytes: int) -> HostBuffer:
        fitting = [buffer for buffer in self._free if buffer.memory.nbytes >= nbytes]
        if fitting:
            buffer = min(fitting, key=lambda buffer: buffer.memory.nbytes)
            self._free.remove(buffer)
            return buffer
        # Larger than ever: what is too small would only lie beside the new buffers.
        self.shrink()
        buffer = HostBuffer(self._device.empty_host(nbytes, torch.uint8))
        self._all.append(buffer)
        return buffer

    def give_back(self, buffer: HostBuffer) -> None:
        self._free.append(buffer)

    def shrink(self) -> None:
        """Give up the buffers that are free."""
        if self._free:
            self._release(self._free)
            self._all = [buffer for buffer in self._all if all(buffer is not free for free in self._free)]
            self._free = []

    def close(self) -> None:
        """Give up all buffers."""
        self._release(self._all)
        self._all, self._free = [], []

    def _release(self, buffers: list[HostBuffer]) -> None:
        if buffers:
            self._device.synchronize()
        for buffer in buffers:
            self._device.release_host(buffer.memory)
