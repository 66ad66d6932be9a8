"""The one seam between the engine and a device: memory, copies on lanes, and events of what compute has issued.

All that knows CUDA is behind it, in `cuda_device.py`. A finished task is finished for every lane: a lane's copy returns
when it is done, or gives what waits for its end. Overlap comes from the lanes being threads of their own. Only what
compute has issued is not yet done when its hook runs, and a copy beside compute may go on after its call: an `Event`
stands for either.
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.engine.devices.buffers import page_aligned, zeros
from workbench.engine.devices.host_copier import HostCopier
from workbench.system import processor
from workbench.timeline import Lane

Event = Any
"""A moment in what compute has issued, or the end of a copy: a CUDA event, or None where it is over already."""

Landing = Callable[[], None]
"""Waits for the end of what has been begun; called once, by the thread that began it."""

Moment = Any
"""A moment in what compute has issued whose time can be asked for; None where compute is done as it is issued."""


class Device(ABC):
    """A device on which the model computes. `shared_memory`: its memory is the host's, and nothing is copied between
    them."""

    torch_device: torch.device
    shared_memory: bool

    @abstractmethod
    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return uninitialised device memory, 1-D."""

    def pinned_zeros(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return zeroed host memory, 1-D, that the device's copies reach at full speed as far as it can be had.

        For what is copied to or from the device, and nothing else: such memory is scarce.
        """
        return zeros(elements, dtype)

    @abstractmethod
    def record_event(self) -> Event:
        """Return an event after all that compute has issued so far."""

    @abstractmethod
    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Landing:
        """Begin to copy between device and host on `lane`, once `after` has happened and behind what has been begun
        there. The caller keeps both tensors until what is returned has been called, which waits for the end.

        Tensors are 1-D, contiguous and of the same length. Where the dtypes differ, 16 bits become fp32.
        """

    def copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> None:
        """Do what `begin_copy` begins; returns when the copy is done."""
        self.begin_copy(lane, destination, source, after)()

    def copy_all(self, lane: Lane, copies: Sequence[tuple[Tensor, Tensor]], after: Event) -> None:
        """Do several copies between device and host, (destination, source) each, as `copy` does one."""
        for destination, source in copies:
            self.copy(lane, destination, source, after)

    def copy_async(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Event:
        """Begin a copy in the direction of `lane` that may go on beside compute, once `after` has happened.

        Returns an event at its end. Until compute has been told to wait for that (`wait_event`), the caller keeps both
        tensors, which are as for `copy` and of one dtype.
        """
        self.copy(lane, destination, source, after)
        return None

    def send(self, tensor: Tensor) -> Tensor:
        """Return a copy of a host tensor for compute, without waiting for what compute has issued; the host's own
        may be changed at once."""
        return tensor.to(self.torch_device)

    def fetch(self, number: Tensor) -> Callable[[], float]:
        """Begin to bring a number that compute has issued to the host. Return what waits for it, and for nothing that
        is issued after it, and gives its value."""
        return lambda: float(number)

    def set_host_threads(self, threads: int | Literal["auto"]) -> None:  # noqa: B027 - a CPU's copies stand for a link's
        """Set how many threads copy within the host's memory; before the first copy."""

    def load_weights(self, destination: Tensor, source: Tensor) -> None:
        """Copy 1-D tensors wherever they are, while no step is under way; returns when the copy is done."""
        destination.copy_(source)

    def check_stream(self) -> None:  # noqa: B027 - most devices have one order of work
        """Raise RuntimeError where the model's work would be issued where the engine does not see its order."""

    def record_moment(self) -> Moment:
        """Return the moment after all that compute has issued so far."""
        return None

    def moment_s(self, moment: Moment) -> float | None:
        """Return when compute was there (time.perf_counter()); None where it is not yet."""
        assert moment is None, "a device with moments of its own knows their times"
        return 0.0

    def wait_event(self, event: Event) -> None:
        """Let what compute issues from now on come after `event`."""
        assert event is None, "a device with events of its own orders compute by them"

    def release_host(self, tensor: Tensor) -> None:  # noqa: B027 - most devices hold nothing
        """Give back a tensor from `pinned_zeros`, before `close`: no copy of it is under way, and none will come."""

    def pinned_pages(self, nbytes: int) -> Tensor:
        """Return the same for disk and device: uint8, page aligned, `nbytes` rounded up to whole pages."""
        return page_aligned(nbytes)

    def warn_if_not_pinned(self) -> None:  # noqa: B027 - most devices hold nothing
        """Warn, once, where less host memory could be pinned than is copied."""

    def communicating(self, lane: Lane, after: Event) -> AbstractContextManager[Landing]:
        """Entered by a lane around what ranks exchange of device memory, which comes after `after`. It gives what
        waits for the end of that work, to be called when the context was left."""
        return nullcontext(_nothing_to_wait_for)

    def computing(self) -> AbstractContextManager[object]:
        """Entered by a lane's thread around operations that belong on the stream of compute."""
        return nullcontext()

    def before_task(self, lane: Lane) -> None:  # noqa: B027 - doing nothing is right for a device
        """Called by a lane before each task; the place where tests inject delays."""

    @abstractmethod
    def memory_bytes(self) -> tuple[int, int] | None:
        """Return the most that was reserved so far of its own memory, and all it has; None where it shares the
        host's."""

    @property
    def staging_bytes(self) -> int:
        """Host memory of the device's own, through which copies from and to pageable memory go."""
        return 0

    @property
    def pageable_bytes(self) -> int:
        """Bytes of host memory from `pinned_zeros` and `pinned_pages` that could not be pinned."""
        return 0

    @abstractmethod
    def synchronize(self) -> None:
        """Return when all that compute has issued is done."""

    def close(self) -> None:  # noqa: B027 - most devices hold nothing
        """Give back what the driver holds; tensors from `pinned_zeros` must not be copied from or to afterwards."""


class CpuDevice(Device):
    """The CPU as the device: one memory with the host, or (for tests) separate memories and real copies."""

    def __init__(self, shared_memory: bool = True) -> None:
        self.torch_device = torch.device("cpu")
        self.shared_memory = shared_memory
        # One thread, as on a link: the lanes overlap.
        self._copier = HostCopier(threads=1)

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        return zeros(elements, dtype)

    def record_event(self) -> Event:
        return None

    def begin_copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Event) -> Landing:
        return functools.partial(self._copier.copy, destination, source)

    def memory_bytes(self) -> tuple[int, int] | None:
        return None

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        self._copier.close()


def _nothing_to_wait_for() -> None: ...


def open_device(device: str | torch.device | Device) -> Device:
    """Return the device named `device`: "cpu", "cuda", "cuda:1", or "auto" (CUDA where there is one).

    Of the processes that torchrun starts on a machine each gets a GPU of its own by "cuda", unless it sees only one.

    Raises:
        ValueError: the name is unknown, or torch sees no such device.
    """
    if isinstance(device, Device):
        return device
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        wanted = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r}: expected auto, cpu, cuda or cuda:N") from None
    if wanted.type == "cpu":
        return CpuDevice()
    if wanted.type != "cuda":
        raise ValueError(f"device {name!r}: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if ":" not in name and "LOCAL_RANK" in os.environ and count != 1:
        wanted = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        name = f"{wanted} of local rank {wanted.index}"
    if (wanted.index or 0) >= count:
        raise ValueError(f"device {name!r}: torch sees {count} CUDA device(s) on this machine")
    from workbench.engine.devices.cuda_device import CudaDevice

    return CudaDevice(wanted)


def has_bfloat16(device: Device) -> bool:
    """Return True where bf16 arithmetic runs in hardware there."""
    if device.torch_device.type == "cuda":
        with torch.cuda.device(device.torch_device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return processor.has_bfloat16()
