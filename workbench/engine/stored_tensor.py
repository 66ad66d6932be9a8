"""Tensors of the state that are in no memory as such, or partly on other ranks: read and written a piece at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from workbench.optimizer.reference import join_float32, split_float32


class StoredTensor(ABC):
    """1-D, `numel()` elements of `dtype`."""

    dtype: torch.dtype

    @abstractmethod
    def numel(self) -> int: ...

    def element_size(self) -> int:
        return self.dtype.itemsize

    @abstractmethod
    def read(self, start: int, stop: int) -> Tensor:
        """Return a copy of elements `start` to `stop`, on the host. Raises DiskError where a disk does not give
        them."""

    @abstractmethod
    def write(self, start: int, values: Tensor) -> None:
        """Replace elements from `start` on. Raises DiskError where a disk does not take them."""


class MasterHalf(StoredTensor):
    """One of the halves in which the state of bf16 weights keeps its master, of one that is whole on a device.

    The halves may be written in any order: `split_float32` and `join_float32` undo each other for all bits.
    """

    def __init__(self, master: Tensor, half: Literal["high", "low"]) -> None:
        self.dtype = torch.bfloat16 if half == "high" else torch.int16
        self._master = master
        self._is_high = half == "high"

    def numel(self) -> int:
        return self._master.numel()

    def read(self, start: int, stop: int) -> Tensor:
        high, low = split_float32(self._master[start:stop].cpu())
        return high if self._is_high else low

    def write(self, start: int, values: Tensor) -> None:
        part = self._master[start : start + values.numel()]
        high, low = split_float32(part.cpu())
        part.copy_(join_float32(values, low) if self._is_high else join_float32(high, values))


class SharedTensor(StoredTensor):
    """A tensor of which this rank has `mine` alone, in `parts`: where each begins, its elements, and where in `mine` it
    lies. The rest reads as zeros, and what is written there is not kept."""

    def __init__(
        self, mine: Tensor | StoredTensor, elements: int, parts: Sequence[tuple[int, int, int]]
    ) -> None:
        self.dtype = mine.dtype
        self.parts = [part for part in parts if part[1]]
        self._mine = mine
        self._elements = elements

    def numel(self) -> int:
        return self._elements

    def read(self, start: int, stop: int) -> Tensor:
        found = torch.zeros(stop - start, dtype=self.dtype)
        for at, first, last in self._within(start, stop):
            mine = self._mine
            here = mine[first:last].cpu() if isinstance(mine, Tensor) else mine.read(first, last)
            found[at : at + last - first] = here
        return found

    def write(self, start: int, values: Tensor) -> None:
        for at, first, last in self._within(start, start + values.numel()):
            here = values[at : at + last - first]
            if isinstance(self._mine, Tensor):
                self._mine[first:last].copy_(here)
            else:
                self._mine.write(first, here)

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Return where each part that reaches into elements `start` to `stop` lies from `start` on, and its first and
        last of them in `mine`."""
        for begin, count, place in self.parts:
            first, last = max(start, begin), min(stop, begin + count)
            if first < last:
                yield first - start, place + first - begin, place + last - begin
