"""The device's memory: one mapping, given out as tensors and taken back the moment that a tensor goes.

Freed blocks are handed out again at once, to the stream that had them, as torch's caching allocator does: operations
that still use them have to have an order. Fresh memory is all ones, which is NaN in every floating-point dtype.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.virtual_cuda.races import Bytes
from workbench.virtual_cuda.streams import Queues

MAP_NORESERVE = 0x4000
"""Of Linux' mman.h: addresses for which no memory is set aside."""
ROUNDED_TO = 512
ADDRESSES = 4
"""Times the device's size: blocks of one size are not cut for another, so that addresses run out before bytes do."""
_Block = tuple[int, int, str]
"""Offset, bytes, and the stream whose block it is."""


class DeviceMemory:
    """`nbytes` of device memory. `allocated` and `most_allocated` are in bytes."""

    def __init__(self, nbytes: int, queues: Queues) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self.nbytes = nbytes
        self.allocated = 0
        self.most_allocated = 0
        self._queues = queues
        self._addresses = ADDRESSES * -(-nbytes // ROUNDED_TO) * ROUNDED_TO
        self._mapping = mmap.mmap(-1, self._addresses, flags=flags)
        self._all = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self.base = self._all.data_ptr()
        self._fresh = 0
        self._free: dict[tuple[int, str], list[int]] = {}
        self._given_back: deque[_Block] = deque()
        """Filled by finalizers, on any thread and at any time; emptied where memory is asked for."""

    def owns(self, tensor: Tensor) -> bool:
        """Return True where the tensor lies in device memory."""
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return False  # it has no memory of its own, and may compute its values when it is looked at
        address: int = tensor.untyped_storage().data_ptr()
        return self.base <= address < self.base + self._addresses

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return uninitialised device memory of that shape.

        Raises:
            torch.OutOfMemoryError: there is not so much.
        """
        elements = (
            1 + sum((s - 1) * abs(step) for s, step in zip(size, stride, strict=True)) if 0 not in size else 0
        )
        nbytes = max(elements, 1) * dtype.itemsize
        rounded = -(-nbytes // ROUNDED_TO) * ROUNDED_TO
        offset = self._take(rounded)
        owner: Any = (ctypes.c_ubyte * nbytes).from_address(self.base + offset)
        owner.mapping = self._mapping
        block: _Block = (offset, rounded, self._queues.current.name)
        weakref.finalize(owner, self._given_back.append, block).atexit = False
        return torch.frombuffer(owner, dtype=dtype).as_strided(size, stride)

    def _take(self, nbytes: int) -> int:
        self._take_back()
        stream = self._queues.current.name
        blocks = self._free.get((nbytes, stream))
        addresses_end = not blocks and self._fresh + nbytes > self._addresses
        if self.allocated + nbytes > self.nbytes or addresses_end:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes:,} bytes; of {self.nbytes:,} bytes in all "
                f"{self.allocated:,} are in use"
            )
        if blocks:
            offset = blocks.pop()
        else:
            offset, self._fresh = self._fresh, self._fresh + nbytes
            if self._queues.values:
                ctypes.memset(self.base + offset, 0xFF, nbytes)
        self.allocated += nbytes
        self.most_allocated = max(self.most_allocated, self.allocated)
        return offset

    def _take_back(self) -> None:
        while self._given_back:
            offset, nbytes, stream = self._given_back.popleft()
            self.allocated -= nbytes
            self._free.setdefault((nbytes, stream), []).append(offset)

    def reset_peak(self) -> None:
        """Let `most_allocated` begin again."""
        self._take_back()
        self.most_allocated = self.allocated

    def alias(self, tensor: Tensor) -> Tensor:
        """Return another tensor on the same bytes, which does not keep them from being freed and handed out again."""
        if tensor.numel() == 0:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        start = (tensor.data_ptr() - self.base) // tensor.dtype.itemsize
        return self._all.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), start)


def bytes_of(tensor: Tensor) -> Bytes:
    """Return the addresses between which a tensor's elements lie."""
    if tensor.numel() == 0:
        return 0, 0
    start = tensor.data_ptr()
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
    return start, start + reach * tensor.dtype.itemsize
