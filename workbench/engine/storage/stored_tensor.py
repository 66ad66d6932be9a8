"""A tensor of the state that is on disk, seen as one: read and written in any pieces, a chunk's record at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.engine.devices.pages import page_aligned
from workbench.engine.storage.disk_files import RecordFile
from workbench.layout import padded


class StoredTensor:
    """1-D, `numel()` elements of `dtype`, in consecutive records of a file: (record, elements) in order.

    The last record that was touched stays in memory, so that going through in order reads each once.
    """

    def __init__(self, file: RecordFile, dtype: torch.dtype, records: Sequence[tuple[int, int]]) -> None:
        self.dtype = dtype
        self._file = file
        self._records = records
        self._held: tuple[int, Tensor] | None = None

    def numel(self) -> int:
        return sum(count for _, count in self._records)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def read(self, start: int, stop: int) -> Tensor:
        """A copy of elements `start` to `stop`. Raises DiskError where the disk does not give them."""
        out = torch.empty(stop - start, dtype=self.dtype)
        for record, count, begin, first, last in self._overlaps(start, stop):
            held = self._hold(record, count)
            out[first - start : last - start] = held[first - begin : last - begin]
        return out

    def write(self, start: int, values: Tensor) -> None:
        """Replace elements from `start` on. Raises DiskError where the disk does not take them."""
        for record, count, begin, first, last in self._overlaps(start, start + values.numel()):
            whole = first == begin and last == begin + count
            held = self._blank(record, count) if whole else self._hold(record, count)
            held[first - begin : last - begin] = values[first - start : last - start]
            assert self._held is not None
            self._file.write(record, self._held[1])

    def _overlaps(self, start: int, stop: int) -> list[tuple[int, int, int, int, int]]:
        found = []
        begin = 0
        for record, count in self._records:
            first, last = max(start, begin), min(stop, begin + count)
            if first < last:
                found.append((record, count, begin, first, last))
            begin += count
        return found

    def _blank(self, record: int, count: int) -> Tensor:
        size = padded(count * self.dtype.itemsize)
        if self._held is None or self._held[1].numel() != size:
            self._held = None  # before the next is made: never two at a time
            self._held = (record, page_aligned(size))
        self._held = (record, self._held[1])
        return self._held[1].view(self.dtype)[:count]

    def _hold(self, record: int, count: int) -> Tensor:
        if self._held is not None and self._held[0] == record:
            return self._held[1].view(self.dtype)[:count]
        values = self._blank(record, count)
        assert self._held is not None
        self._file.read(record, self._held[1])
        return values
