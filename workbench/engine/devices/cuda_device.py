"""A CUDA device behind the seam: streams for copies, events between them and compute, registered host memory.

Three rules keep memory from being used on two streams at once. Memory that the engine allocates is ordered before every
copy by `empty`. A copy on a lane has ended when what `begin_copy` returned has been called, so whatever it touched may
then be reused by anybody. A copy that goes on (`copy_async`) has an event, and whoever began it keeps both tensors
until compute has been told to wait for that event.

The model has to run on the stream that was current when the device was opened, which is torch's default stream unless
a program changes it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from workbench.engine.devices.device import Device, Event, Landing, Moment
from workbench.engine.devices.host_copier import HostCopier
from workbench.engine.devices.pinned import HostMemory, StagingRing, carry
from workbench.layout import padded
from workbench.timeline import Lane

COPYING = (Lane.DOWNLOAD, Lane.UPLOAD)
REBASED_AFTER_S = 1.0


class CudaLink:
    """One stream of copies, with the pinned buffers through which it reaches pageable memory."""

    def __init__(self, device: torch.device, make_buffer: Callable[[int], Tensor | None]) -> None:
        self.stream = torch.cuda.Stream(device)
        self.ring = StagingRing(make_buffer)

    def send(self, destination: Tensor, source: Tensor) -> torch.cuda.Event:
        with torch.cuda.stream(self.stream):
            destination.copy_(source, non_blocking=True)
        return self.record_event()

    def wait(self, event: Event) -> None:
        """Let copies that are begun from now on come after `event`."""
        if event is not None:
            self.stream.wait_event(event)

    def record_event(self) -> torch.cuda.Event:
        """Return an event after the copies begun so far. Waiting for it lets the processor do other work: lanes share
        it with the host optimizer."""
        event = torch.cuda.Event(blocking=True)
        event.record(self.stream)
        return event


class CudaTimes:
    """Times of events on compute, on the host's clock.

    CUDA gives the milliseconds between two events in 32 bits, by a clock of its own. So the first of the two is never
    far in the past; and an event that would have come before it was recorded, or after it was found over, sets the
    clocks right.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._base, self._base_s = self.record()[0], 0.0
        self._base.synchronize()
        self._base_s = time.perf_counter()

    def record(self) -> Moment:
        """Return an event on compute, with the host's time."""
        event = torch.cuda.Event(enable_timing=True)
        issued_s = time.perf_counter()
        event.record(self._stream)
        return event, issued_s

    def seconds(self, moment: Moment) -> float | None:
        """Return when the event came, on the host's clock; None where it has not yet."""
        event, issued_s = moment
        if not event.query():
            return None
        came_s = self._base_s + 1e-3 * float(self._base.elapsed_time(event))
        came_s = min(max(came_s, float(issued_s)), time.perf_counter())
        if came_s - self._base_s > REBASED_AFTER_S:
            self._base, self._base_s = event, came_s
        return came_s


class CudaDevice(Device):
    """`torch.device("cuda", N)`. Copies of lanes, and those beside compute, run on streams of their own."""

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.torch_device = torch.device("cuda", index)
        self.shared_memory = False
        self._compute_stream = torch.cuda.current_stream(self.torch_device)
        self._times = CudaTimes(self._compute_stream)
        self._thread = threading.local()
        with torch.cuda.device(self.torch_device):
            self._host = HostMemory(
                torch.cuda.cudart(),
                functools.partial(_forget_error, self.torch_device),
                synchronize=functools.partial(torch.cuda.synchronize, self.torch_device),
            )
        self._copier = HostCopier("auto")
        make_buffer = self._host.allocate_pinned
        self._lanes = {lane: CudaLink(self.torch_device, make_buffer) for lane in COPYING}
        self._beside_compute = {lane: CudaLink(self.torch_device, make_buffer) for lane in COPYING}
        self._between_ranks: dict[Lane, torch.cuda.Stream] = {}

    # Memory

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(elements, dtype=dtype, device=self.torch_device)
        # The allocator hands out memory that compute may not have finished with. It knows the order of its own stream
        # only: copies have to come after what has been issued there.
        issued = self.record_event()
        for link in self._links:
            link.wait(issued)
        return tensor

    def pinned_zeros(self, elements: int, dtype: torch.dtype) -> Tensor:
        with torch.cuda.device(self.torch_device):
            # First of all: where the driver stops, what it refused has to go through them.
            for link in self._links:
                link.ring.make_buffers()
            return self._host.allocate(elements * dtype.itemsize).view(dtype)

    def release_host(self, tensor: Tensor) -> None:
        self._host.release(tensor)

    def pinned_pages(self, nbytes: int) -> Tensor:
        return self.pinned_zeros(padded(nbytes), torch.uint8)

    def memory_bytes(self) -> tuple[int, int] | None:
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        return torch.cuda.max_memory_reserved(self.torch_device), total

    def warn_if_not_pinned(self) -> None:
        self._host.warn_if_pageable()

    @property
    def pageable_bytes(self) -> int:
        return self._host.pageable_bytes

    @property
    def staging_bytes(self) -> int:
        return sum(link.ring.nbytes for link in self._links)

    @property
    def _links(self) -> list[CudaLink]:
        return [*self._lanes.values(), *self._beside_compute.values()]

    # Order

    def record_event(self) -> Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def wait_event(self, event: Event) -> None:
        if event is not None:
            torch.cuda.current_stream(self.torch_device).wait_event(event)

    def check_stream(self) -> None:
        if torch.cuda.current_stream(self.torch_device) != self._compute_stream:
            raise RuntimeError(
                "the model was called on another CUDA stream than the one that was current when the engine was made: "
                "the engine orders its copies by that one; call the model outside of torch.cuda.stream(...), or make "
                "the engine within it"
            )

    def record_moment(self) -> Moment:
        return self._times.record()

    def moment_s(self, moment: Moment) -> float | None:
        return self._times.seconds(moment)

    @contextlib.contextmanager
    def communicating(self, lane: Lane, after: Event) -> Iterator[Landing]:
        stream = self._between_ranks.get(lane)
        if stream is None:
            stream = self._between_ranks[lane] = torch.cuda.Stream(self.torch_device)
        if after is not None:
            stream.wait_event(after)
        end = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(stream):
            yield lambda: end.synchronize()
        end.record(stream)

    def computing(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._compute_stream)

    def before_task(self, lane: Lane) -> None:
        # A thread begins on device 0, and the first call that does not name a device would open a context there.
        if not getattr(self._thread, "is_set", False):
            torch.cuda.set_device(self.torch_device)
            self._thread.is_set = True

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    # Copies

    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Landing:
        if self.torch_device not in (destination.device, source.device):
            # Between two places on the host, which compute does not reach: no stream has a part in it, nor has `after`.
            return functools.partial(self._copier.copy, destination, source)
        end = self._begin(self._lanes[lane], lane, destination, source, after)
        return lambda: end.synchronize()

    def copy_all(self, lane: Lane, copies: Sequence[tuple[Tensor, Tensor]], after: Event) -> None:
        # The link goes on from one to the next by itself: it would stand still while this thread wakes.
        ends = [self._begin(self._lanes[lane], lane, to, of, after) for to, of in copies]
        ends[-1].synchronize()

    def copy_async(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Event:
        return self._begin(self._beside_compute[lane], lane, destination, source, after)

    def send(self, tensor: Tensor) -> Tensor:
        # From pageable memory the driver would first wait for all that compute has issued. torch uses a pinned buffer
        # again only when the copies from it are over.
        buffer = _pinned_buffer(tensor.nbytes)
        if buffer is not None:
            tensor = buffer.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return tensor.to(self.torch_device, non_blocking=True)

    def fetch(self, number: Tensor) -> Callable[[], float]:
        buffer = _pinned_buffer(number.nbytes)
        if buffer is None:
            return super().fetch(number)
        here = buffer.view(number.dtype).copy_(number.view(1), non_blocking=True)
        arrived = self.record_event()

        def read() -> float:
            arrived.synchronize()
            return float(here)

        return read

    def set_host_threads(self, threads: int | Literal["auto"]) -> None:
        self._copier.threads = threads

    def load_weights(self, destination: Tensor, source: Tensor) -> None:
        if source.device == self.torch_device or destination.device != self.torch_device:
            destination.copy_(source)
            return
        to, of = destination.view(torch.uint8), source.view(torch.uint8)
        for part in self._host.cut(source):
            to[part.start : part.stop].copy_(of[part.start : part.stop])

    def _begin(
        self, link: CudaLink, lane: Lane, destination: Tensor, source: Tensor, after: Event
    ) -> torch.cuda.Event:
        assert destination.dtype == source.dtype, "a GPU computes in the dtype that it stores"
        link.wait(after)
        up = lane is Lane.UPLOAD
        stretches = self._host.cut(source if up else destination)
        carry(link, link.ring, stretches, destination.view(torch.uint8), source.view(torch.uint8), up=up)
        return link.record_event()

    # The end

    def close(self) -> None:
        try:
            self.synchronize()
        finally:
            self._host.close()
            self._copier.close()


def _forget_error(device: torch.device) -> None:
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


def _pinned_buffer(nbytes: int) -> Tensor | None:
    """Return a buffer of torch's own allocator; None where the driver gives none."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return None
