"""The one seam between the engine and a device: memory, copies on lanes, and marks of what compute has issued.

All that knows CUDA is here. A copy returns when it is done, whatever the device, so that a finished task is finished
for every lane; overlap comes from the lanes being threads of their own. Only what compute has issued is not yet done
when its hook runs, and a `Mark` stands for it.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.engine.disk import padded, page_aligned
from workbench.optimizer.extension import missing_extension
from workbench.timeline import Lane

if TYPE_CHECKING:
    from workbench.optimizer.host import HostOptimizer

REGISTERED_PIECE_BYTES = 1 << 30

Mark = Any
"""What compute had issued at some moment: a CUDA event, or None where compute is synchronous."""


class Device(ABC):
    """Where the model computes. `shared_memory`: its memory is the host's, and nothing is copied between them."""

    torch_device: torch.device
    shared_memory: bool

    @abstractmethod
    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised device memory, 1-D."""

    @abstractmethod
    def empty_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised host memory, 1-D, that the device's copies reach at full speed where it can be had."""

    @abstractmethod
    def mark(self) -> Mark:
        """Stand for all that compute has issued so far."""

    @abstractmethod
    def copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Mark) -> None:
        """Copy between device and host on `lane`, once `after` has happened; returns when the copy is done.

        Tensors are 1-D, contiguous and of the same length. Where the dtypes differ, 16 bits become fp32.
        """

    def empty_pages(self, nbytes: int) -> Tensor:
        """Host memory for disk and device: uint8, 1-D, page aligned, `nbytes` rounded up to whole pages."""
        return page_aligned(nbytes)

    def computing(self) -> AbstractContextManager[object]:
        """Entered by a lane's thread around operations that belong on the stream of compute."""
        return nullcontext()

    def before_task(self, lane: Lane) -> None:  # noqa: B027 - doing nothing is right for a device
        """Called by a lane before each task; the place where tests inject delays."""

    @abstractmethod
    def memory_bytes(self) -> tuple[int, int] | None:
        """Allocated and total bytes of device memory of its own; None where it shares the host's."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when all that compute has issued is done."""

    def close(self) -> None:  # noqa: B027 - most devices hold nothing
        """Give back what the driver holds; tensors from `empty_host` must not be copied from or to afterwards."""


class CpuDevice(Device):
    """The CPU as the device: one memory with the host, or (for tests) separate memories and real copies."""

    def __init__(self, shared_memory: bool = True) -> None:
        self.torch_device = torch.device("cpu")
        self.shared_memory = shared_memory
        self._copier: HostOptimizer | None = None
        self._making = threading.Lock()

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype)

    def empty_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype)

    def mark(self) -> Mark:
        return None

    def copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Mark) -> None:
        if self._copier is None:
            with self._making:
                if missing_extension() is not None:
                    destination.copy_(source)
                    return
                self._copier = self._copier or _copier()
        if destination.dtype == source.dtype:
            self._copier.copy(destination, source)
        else:
            self._copier.accumulate(destination, source, overwrite=True)

    def memory_bytes(self) -> tuple[int, int] | None:
        return None

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        if self._copier is not None:
            self._copier.close()
            self._copier = None


def _copier() -> HostOptimizer:
    """Copies without the GIL, so that lanes overlap."""
    from workbench.optimizer.host import HostOptimizer

    return HostOptimizer(threads=1)


class CudaDevice(Device):
    """A CUDA device: copies run on streams of their own and wait for events of the compute stream."""

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.torch_device = torch.device("cuda", index)
        self.shared_memory = False
        self._streams = {lane: torch.cuda.Stream(self.torch_device) for lane in (Lane.DOWNLOAD, Lane.UPLOAD)}
        self._compute_stream = torch.cuda.current_stream(self.torch_device)
        self._registration_failed = False
        self._registered: list[tuple[mmap.mmap, int]] = []
        self._lock = threading.Lock()

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, device=self.torch_device)

    def empty_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        # torch's pinned allocator rounds sizes up to powers of two; a mapping registered in pieces is exact.
        nbytes = elements * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        mapping = mmap.mmap(-1, nbytes)
        tensor = torch.frombuffer(mapping, dtype=dtype, count=elements)
        for start in range(0, nbytes, REGISTERED_PIECE_BYTES):
            size = min(REGISTERED_PIECE_BYTES, nbytes - start)
            self._register(mapping, tensor.data_ptr() + start, size)
        return tensor

    def _register(self, mapping: mmap.mmap, address: int, size: int) -> None:
        with self._lock:
            if self._registration_failed:
                return
            status = torch.cuda.cudart().cudaHostRegister(address, size, 0)
            if int(status) != 0:
                self._registration_failed = True
                # The runtime remembers the error until somebody asks, and the next kernel launch would be blamed.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=self.torch_device)
                warnings.warn(
                    f"cudaHostRegister of {size:,} bytes failed with status {int(status)}: host memory from here on "
                    "is pageable, and copies to and from the device are slower",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return
            # The mapping is held until close(): memory must not be unmapped while it is registered.
            self._registered.append((mapping, address))

    def empty_pages(self, nbytes: int) -> Tensor:
        return self.empty_host(padded(nbytes), torch.uint8)

    def computing(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._compute_stream)

    def mark(self) -> Mark:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def copy(self, lane: Lane, destination: Tensor, source: Tensor, after: Mark) -> None:
        stream = self._streams[lane]
        if after is not None:
            stream.wait_event(after)
        with torch.cuda.stream(stream):
            destination.copy_(source, non_blocking=True)
        stream.synchronize()

    def memory_bytes(self) -> tuple[int, int] | None:
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        return torch.cuda.max_memory_reserved(self.torch_device), total

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def close(self) -> None:
        self.synchronize()
        with self._lock:
            for _, address in self._registered:
                torch.cuda.cudart().cudaHostUnregister(address)
            self._registered.clear()


def open_device(device: str | torch.device | Device) -> Device:
    """The device named `device`: "cpu", "cuda", "cuda:1", or "auto" (CUDA where there is one).

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
    if (wanted.index or 0) >= count:
        raise ValueError(f"device {name!r}: torch sees {count} CUDA device(s) on this machine")
    return CudaDevice(wanted)


def has_bfloat16(device: Device) -> bool:
    """Whether bf16 arithmetic runs in hardware there."""
    if device.torch_device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if sys.platform != "linux":
        return False
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as cpuinfo:
            flags = next((line for line in cpuinfo if line.startswith("flags")), "")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
