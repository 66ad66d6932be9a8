"""A device whose copies beside compute happen later than they are begun, and that watches what these copies touch."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch
from torch import Tensor

from workbench.engine.devices.device import CpuDevice, Event
from workbench.timeline import Lane


class CopiesAtTheLastMoment(CpuDevice):
    """A copy is carried out when somebody waits for it, with those before it on its lane, and not a moment sooner.

    Memories of their own, and host memory that is not torch's: the allocator's events are those of the device.

    A copy fails that touches memory which nobody kept for it, or host memory that was given back.
    """

    def __init__(self) -> None:
        super().__init__(shared_memory=False)
        self._host: dict[int, mmap.mmap] = {}
        self.begun = dict.fromkeys(Lane, 0)
        self.copied = dict.fromkeys(Lane, 0)
        self.fail_after: int | None = None
        self._waiting: dict[Lane, list[Callable[[], None]]] = {Lane.DOWNLOAD: [], Lane.UPLOAD: []}

    @property
    def host_bytes(self) -> int:
        return sum(len(memory) for memory in self._host.values())

    def empty_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        memory = mmap.mmap(-1, elements * dtype.itemsize)
        tensor = torch.frombuffer(memory, dtype=dtype, count=elements)
        self._host[tensor.data_ptr()] = memory
        return tensor

    def release_host(self, tensor: Tensor) -> None:
        del self._host[tensor.data_ptr()]

    def begin(self, lane: Lane, destination: Tensor, source: Tensor) -> Callable[[], None]:
        """What carries the copy out."""
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise OSError("the link is down")
        self.begun[lane] += 1
        held = [t.untyped_storage() for t in (destination, source)]
        starts = [t.storage_offset() * t.element_size() for t in (destination, source)]
        host = (destination if lane is Lane.DOWNLOAD else source).data_ptr()
        nbytes = source.nbytes

        def run() -> None:
            for storage in held:
                # This list has one reference and somebody else another, or the allocator would have it back by now.
                assert torch._C._storage_Use_Count(storage._cdata) > 1, "memory went away under a copy"
            assert host in self._host, "host memory was given back under a copy"
            to, of = (
                torch.empty(0, dtype=torch.uint8).set_(storage, start, (nbytes,))  # type: ignore[call-overload]
                for storage, start in zip(held, starts, strict=True)
            )
            to.copy_(of)
            self.copied[lane] += nbytes

        return run

    def copy_async(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Event:
        run = self.begin(lane, destination, source)
        self._waiting[lane].append(run)
        return lane, run

    def wait_event(self, mark: Event) -> None:
        if mark is not None:
            lane, run = mark
            while run in self._waiting[lane]:
                self._waiting[lane].pop(0)()

    def synchronize(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop(0)()

    def close(self) -> None:
        self.synchronize()
        super().close()
