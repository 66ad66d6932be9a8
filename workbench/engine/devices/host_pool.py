"""Host buffers for values that leave the device and come back: they grow with the values, not with how often they go.

Invariant: a buffer's memory is given back to the driver only when no copy from or to it is under way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.engine.devices.device import Device


class HostPool:
    """Buffers, uint8 and 1-D. Copies from and to a buffer that was given back come before all those of its next taker:
    the takers see to it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Tensor] = []
        self._taken: dict[int, Tensor] = {}

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in (*self._free, *self._taken.values()))

    def take(self, nbytes: int) -> Tensor:
        """A buffer of at least `nbytes`."""
        fitting = [number for number, buffer in enumerate(self._free) if buffer.nbytes >= nbytes]
        if fitting:
            buffer = self._free.pop(min(fitting, key=lambda number: self._free[number].nbytes))
        else:
            # Larger than ever: what is too small would only lie beside the new buffers.
            self._release(self._free)
            buffer = self._device.empty_host(nbytes, torch.uint8)
        self._taken[id(buffer)] = buffer
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        self._free.append(self._taken.pop(id(buffer)))

    def close(self) -> None:
        """Give up all buffers, taken or not."""
        self._release([*self._free, *self._taken.values()])
        self._free.clear()
        self._taken.clear()

    def _release(self, buffers: list[Tensor]) -> None:
        if buffers:
            self._device.synchronize()
            for buffer in buffers:
                self._device.release_host(buffer)
            buffers.clear()
