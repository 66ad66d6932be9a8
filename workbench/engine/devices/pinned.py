"""Host memory that a device reaches at full speed: mapped to the byte and registered with the driver piece by piece.

torch's own pinned allocator rounds sizes up to powers of two, which is more than a host that holds a model's state can
spare. What the driver refuses to register stays pageable, and is copied through the buffers of a `StagingRing`.

Invariant: memory that is registered stays mapped; it is unregistered before the last reference to its mapping goes.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from workbench.engine.devices.buffers import advise, fresh_pages
from workbench.sizes import RING_BUFFER_BYTES, RING_BUFFERS

PIECE_BYTES = 1 << 30


class Registrar(Protocol):
    """The two calls of the CUDA runtime that pin memory; both return a status, 0 where they succeeded."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any: ...  # noqa: N802 - CUDA's name

    def cudaHostUnregister(self, address: int) -> Any: ...  # noqa: N802 - CUDA's name


@dataclass(frozen=True)
class Stretch:
    """Bytes `start` to `stop` of a copy; `pinned`: all of them are in one registered piece."""

    start: int
    stop: int
    pinned: bool


class RegisteredRanges:
    """The registered addresses, piece by piece; cuts a copy along the pieces."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, nbytes: int) -> None:
        """Note a piece; pieces do not overlap."""
        at = bisect.bisect(self._starts, start)
        assert at == 0 or self._stops[at - 1] <= start, "registered pieces overlap"
        assert at == len(self._starts) or start + nbytes <= self._starts[at], "registered pieces overlap"
        self._starts.insert(at, start)
        self._stops.insert(at, start + nbytes)

    def remove(self, start: int) -> None:
        """Forget the piece that begins at `start`."""
        at = bisect.bisect_left(self._starts, start)
        assert at < len(self._starts) and self._starts[at] == start, "no such registered piece"
        del self._starts[at], self._stops[at]

    @property
    def nbytes(self) -> int:
        return sum(self._stops) - sum(self._starts)

    def cut(self, address: int, nbytes: int) -> list[Stretch]:
        """Return the stretches of a copy of `nbytes` from or to `address`, in order and without gaps.

        Neighbouring pieces stay apart: the driver refuses a single copy across two registrations.
        """
        stretches = []
        here, end = address, address + nbytes
        at = max(0, bisect.bisect(self._starts, here) - 1)
        while here < end:
            while at < len(self._starts) and self._stops[at] <= here:
                at += 1
            if at == len(self._starts) or self._starts[at] >= end:
                stop, pinned = end, False
            elif self._starts[at] > here:
                stop, pinned = self._starts[at], False
            else:
                stop, pinned = min(end, self._stops[at]), True
            stretches.append(Stretch(here - address, stop - address, pinned))
            here = stop
        return stretches


class HostMemory:
    """Allocates host memory and registers it.

    `forget_error` is called after a refusal: the runtime keeps the error until somebody asks for it, and would blame
    whatever comes next. `synchronize` waits for all copies, before memory that was never closed is unregistered: where
    an engine was dropped. Neither may hold whoever holds this object.
    """

    def __init__(
        self,
        registrar: Registrar,
        forget_error: Callable[[], None],
        piece_bytes: int = PIECE_BYTES,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self._registrar = registrar
        self._forget_error = forget_error
        self._piece_bytes = piece_bytes
        self._ranges = RegisteredRanges()
        self._held: dict[int, tuple[mmap.mmap, list[int]]] = {}
        """Mappings by address, with the addresses of their registered pieces."""
        weakref.finalize(self, _unregister_all, registrar, self._held, synchronize).atexit = False
        self._pageable: dict[int, int] = {}
        """Bytes that are not registered, by the address of their mapping."""
        self._refused_bytes: int | None = None
        self._status = 0
        self._warned = False
        self._lock = threading.Lock()

    @property
    def registered_bytes(self) -> int:
        return self._ranges.nbytes

    @property
    def pageable_bytes(self) -> int:
        """Bytes of what was allocated that the driver would not register."""
        return sum(self._pageable.values())

    def allocate(self, nbytes: int) -> Tensor:
        """Return `nbytes` of zeroed host memory, uint8, 1-D, page aligned; registered as far as the driver allows."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        mapping = fresh_pages(nbytes)
        tensor = torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes)
        address = tensor.data_ptr()
        with self._lock:
            before = self._ranges.nbytes
            pieces = self._register(address, nbytes)
            pageable = nbytes - (self._ranges.nbytes - before)
            if pageable:
                self._pageable[address] = pageable
            if pieces:
                # A forked child must not share pages that a device writes: after a fork the first write moves a page,
                # and the device would go on with the old one.
                advise(mapping, "MADV_DONTFORK")
                self._held[address] = (mapping, pieces)
        return tensor

    def allocate_pinned(self, nbytes: int) -> Tensor | None:
        """Return the same, all of it registered; None where the driver does not allow that."""
        tensor = self.allocate(nbytes)
        if tensor.data_ptr() not in self._pageable:
            return tensor
        self.release(tensor)
        return None

    def _register(self, address: int, nbytes: int) -> list[int]:
        pieces: list[int] = []
        for start in range(0, nbytes, self._piece_bytes):
            size = min(self._piece_bytes, nbytes - start)
            # A driver that refused so much will refuse it again; less may still be had.
            if self._refused_bytes is not None and size >= self._refused_bytes:
                break
            status = int(self._registrar.cudaHostRegister(address + start, size, 0))
            if status != 0:
                self._refused_bytes, self._status = size, status
                self._forget_error()
                break
            self._ranges.add(address + start, size)
            pieces.append(address + start)
        return pieces

    def warn_if_pageable(self) -> None:
        """Warn, once, of what the driver would not register."""
        pageable, registered = self.pageable_bytes, self.registered_bytes
        if not pageable or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"the driver registered only {registered / 2**30:,.2f} GiB of the host memory that is copied to and from "
            f"the GPU (cudaHostRegister: status {self._status}): the other {pageable / 2**30:,.2f} GiB "
            f"({pageable / (registered + pageable):.0%}) are copied through small pinned buffers, which is slower; "
            "see `workbench doctor`",
            RuntimeWarning,
            stacklevel=3,
        )

    def release(self, tensor: Tensor) -> None:
        """Unregister a tensor from `allocate` before `close`; no copy of it may be under way."""
        with self._lock:
            self._pageable.pop(tensor.data_ptr(), None)
            held = self._held.pop(tensor.data_ptr(), None)
            if held is not None:
                self._unregister(*held)

    def cut(self, tensor: Tensor) -> list[Stretch]:
        """Return the stretches of a copy of `tensor` (contiguous host memory, any view), in bytes from its start."""
        with self._lock:
            return self._ranges.cut(tensor.data_ptr(), tensor.nbytes)

    def close(self) -> None:
        """Unregister everything. Tensors stay usable as plain memory; further ones may be allocated."""
        with self._lock:
            for mapping, pieces in self._held.values():
                self._unregister(mapping, pieces)
            self._held.clear()
            self._pageable.clear()

    def _unregister(self, mapping: mmap.mmap, pieces: list[int]) -> None:
        for address in pieces:
            status = int(self._registrar.cudaHostUnregister(address))
            self._ranges.remove(address)
            if status != 0:
                self._forget_error()
        advise(mapping, "MADV_DOFORK")


def _unregister_all(
    registrar: Registrar, held: dict[int, tuple[mmap.mmap, list[int]]], synchronize: Callable[[], None]
) -> None:
    """Unregister what nobody has closed, while it is still mapped: `held` has the mappings."""
    if not held:
        return
    with contextlib.suppress(RuntimeError):
        synchronize()
    for _, pieces in held.values():
        for address in pieces:
            registrar.cudaHostUnregister(address)
    held.clear()


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
    driver, which stages them itself.
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
        """Begin to copy pageable `source` to the device (both uint8, 1-D)."""
        with self._lock:
            buffers = self._made_buffers()
            if not buffers:
                link.send(destination, source)
                return
            for start in range(0, source.numel(), self._buffer_bytes):
                stop = min(start + self._buffer_bytes, source.numel())
                number = self._advance()
                part = buffers[number][: stop - start]
                move(part, source[start:stop])
                self._busy[number] = link.send(destination[start:stop], part)

    def download(self, link: Link, destination: Tensor, source: Tensor) -> None:
        """Copy `source` from the device to pageable `destination` (both uint8, 1-D). It is there, at the latest, when
        all is over that `link` was sent."""
        with self._lock:
            buffers = self._made_buffers()
            if not buffers:
                link.send(destination, source)
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

    def make_buffers(self) -> None:
        """Make the buffers now rather than at the first copy, while there is room for them."""
        with self._lock:
            self._made_buffers()

    def _made_buffers(self) -> list[Tensor]:
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
        """Return the next buffer's number, once what it last sent has arrived."""
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

    Pinned stretches travel on their own. All is over when what `link` was sent is.
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
