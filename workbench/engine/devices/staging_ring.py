"""Copies between the device and pageable host memory, through a few small pinned buffers.

Invariant: a buffer is filled again only when what it held has arrived.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

from workbench.engine.devices.pinned import Stretch
from workbench.sizes import RING_BUFFER_BYTES, RING_BUFFERS


class Arrival(Protocol):
    """The end of a copy."""

    def synchronize(self) -> None:
        """Return when the copy is over."""


class Link(Protocol):
    """A stream of copies between the device and pinned memory, which end in the order in which they began."""

    def send(self, destination: Tensor, source: Tensor) -> Arrival:
        """Begin a copy (uint8, 1-D, of one length) behind those already begun."""


class StagingRing:
    """Copies between the device and pageable memory through pinned buffers, one filled or emptied while others travel.

    `make_buffer` gives a pinned buffer of so many bytes, or None where none is to be had: such copies are left to the
    driver, which stages them itself and holds the caller up meanwhile.
    """

    def __init__(
        self,
        make_buffer: Callable[[int], Tensor | None],
        buffers: int = RING_BUFFERS,
        buffer_bytes: int = RING_BUFFER_BYTES,
    ) -> None:
        self._make_buffer = make_buffer
        self._count = buffers
        self._buffer_bytes = buffer_bytes
        self._buffers: list[Tensor] | None = None
        self._busy: list[Arrival | None] = [None] * buffers
        self._next = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers or ())

    def upload(self, link: Link, destination: Tensor, source: Tensor) -> None:
        """Begin to copy pageable `source` to the device (both uint8, 1-D). Returns when `source` has been read."""
        with self._lock:
            buffers = self._take_buffers()
            if not buffers:
                link.send(destination, source).synchronize()
                return
            for start in range(0, source.numel(), self._buffer_bytes):
                stop = min(start + self._buffer_bytes, source.numel())
                number = self._advance()
                part = buffers[number][: stop - start]
                move(part, source[start:stop])
                self._busy[number] = link.send(destination[start:stop], part)

    def download(self, link: Link, destination: Tensor, source: Tensor) -> None:
        """Copy `source` from the device to pageable `destination` (both uint8, 1-D). Returns when it is there."""
        with self._lock:
            buffers = self._take_buffers()
            if not buffers:
                link.send(destination, source).synchronize()
                return
            travelling: list[tuple[Arrival, Tensor, Tensor]] = []
            for start in range(0, source.numel(), self._buffer_bytes):
                stop = min(start + self._buffer_bytes, source.numel())
                if len(travelling) == len(buffers):
                    _land(*travelling.pop(0))
                number = self._advance()
                part = buffers[number][: stop - start]
                arrival = link.send(part, source[start:stop])
                travelling.append((arrival, destination[start:stop], part))
            for flight in travelling:
                _land(*flight)

    def _take_buffers(self) -> list[Tensor]:
        if self._buffers is None:
            made = []
            for _ in range(self._count):
                buffer = self._make_buffer(self._buffer_bytes)
                if buffer is None:
                    break
                made.append(buffer)
            self._buffers = made
        return self._buffers

    def _advance(self) -> int:
        """The next buffer's number, once what it last sent has arrived."""
        assert self._buffers
        number = self._next
        self._next = (number + 1) % len(self._buffers)
        arrival = self._busy[number]
        if arrival is not None:
            arrival.synchronize()
            self._busy[number] = None
        return number


def carry(
    link: Link,
    ring: StagingRing,
    stretches: Iterable[Stretch],
    destination: Tensor,
    source: Tensor,
    *,
    up: bool,
) -> None:
    """Begin a copy between host and device (both uint8, 1-D; `up`: to the device), cut as `HostMemory.cut` has it.

    Pinned stretches travel on their own; what is not pinned has been read or written when this returns.
    """
    for stretch in stretches:
        to, of = destination[stretch.start : stretch.stop], source[stretch.start : stretch.stop]
        if stretch.pinned:
            link.send(to, of)
        elif up:
            ring.upload(link, to, of)
        else:
            ring.download(link, to, of)


def _land(arrival: Arrival, destination: Tensor, part: Tensor) -> None:
    arrival.synchronize()
    move(destination, part)


def move(destination: Tensor, source: Tensor) -> None:
    """Copy within the host (contiguous tensors of one dtype and length); releases the GIL and starts no threads, which
    torch's own copies would."""
    ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)
