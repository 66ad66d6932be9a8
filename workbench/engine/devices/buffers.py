"""Host memory: whole pages for direct I/O, buffers that circulate between threads, and the C library's heap."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from workbench.layout import padded
from workbench.sizes import Buffers


class SlotPool:
    """Reusable buffers of one size. `take` waits for one that is on its way back; it grows only where none is.

    So memory stays at `slots` while they circulate, and a step whose slots all wait for something later (a chunk half
    full) never deadlocks. `allocate` returns so many bytes, uint8; where `at_once`, all slots are cut
    from one piece now, else each is allocated when it is first needed.
    """

    def __init__(self, allocate: Callable[[int], Tensor], slots: Buffers, *, at_once: bool = False) -> None:
        self._allocate = allocate
        self._slots = slots
        self._free: list[Tensor] = []
        self._made = 0
        if at_once and slots.total:
            self._free += allocate(slots.total)[: slots.total].split(slots.nbytes)
            self._made = slots.number
        self._returning = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def nbytes(self) -> int:
        """Bytes of all the slots made so far."""
        return self._made * self._slots.nbytes

    @property
    def would_wait(self) -> bool:
        """`take` would wait for a slot that is on its way back."""
        with self._changed:
            return not (self._free or self._made < self._slots.number or not self._returning or self._failure)

    def take(self) -> Tensor:
        """Return a slot, which is on its way back where none is free. Raises what `cancel` was given."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._free or self._made < self._slots.number or not self._returning or self._failure
            )
            if self._failure is not None:
                raise self._failure
            if self._free:
                return self._free.pop()
            self._made += 1
        return self._allocate(self._slots.nbytes)

    def will_return(self) -> None:
        """Promise that one taken slot will come back without anything further from the taker's thread."""
        with self._changed:
            self._returning += 1

    def give_back(self, slot: Tensor) -> None:
        """Return a slot for which `will_return` was called."""
        with self._changed:
            self._free.append(slot)
            self._returning -= 1
            self._changed.notify()

    def cancel(self, failure: BaseException) -> None:
        """The step has failed and nothing will come back: whoever takes a slot, now or later, gets `failure`."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()


def zeros(elements: int, dtype: torch.dtype) -> Tensor:
    """Return zeroed memory of its own pages, 1-D, which goes back to the system when freed.

    No page is touched here: each lies on the memory node of the thread that writes it first.
    """
    nbytes = elements * dtype.itemsize
    return torch.frombuffer(fresh_pages(nbytes), dtype=dtype) if nbytes else torch.empty(0, dtype=dtype)


def page_aligned(nbytes: int) -> Tensor:
    """Return a buffer for direct I/O: `zeros` in whole pages, uint8, `padded(nbytes)` long.

    A forked child that touches it is killed.
    """
    size = padded(nbytes)
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    mapping = fresh_pages(size)
    # After a fork the first write moves a shared page, and a read under way would go on into the old one (open(2)).
    advise(mapping, "MADV_DONTFORK")
    return torch.frombuffer(mapping, dtype=torch.uint8)


def fresh_pages(nbytes: int) -> mmap.mmap:
    """Return `nbytes` of zeroed memory, in huge pages where they can be had: registering and updating are faster so."""
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise(mapping, "MADV_HUGEPAGE")
    return mapping


def advise(mapping: mmap.mmap, advice: str) -> None:
    """Tell the kernel, where it and this Python know the word."""
    with contextlib.suppress(OSError, AttributeError):
        mapping.madvise(getattr(mmap, advice))


MAPPED_FROM_BYTES = 2 << 20
TRIMMED_FROM_BYTES = 32 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def give_large_blocks_back() -> bool:
    """Tell the C library's heap to give large blocks back, in all of this process from now on; False where it cannot.

    glibc maps a large block for itself and unmaps it when it is freed, but each time one is freed it raises the size
    from which on it does so, up to 32 MiB. Then the inputs of blocks, which stay, lie in one heap between temporaries
    that go, and the holes add up with the depth of the model: 10 MiB a block where half a MiB is kept. The pages of a
    mapped block are made again at each use, which takes a tenth of a step's time on a CPU: worth it where memory is
    what is short.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIMMED_FROM_BYTES)
    )
