"""Puts the virtual device behind the names of `torch.cuda` that a program calls."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from workbench.profiles.machine_profile import MachineProfile
from workbench.virtual_cuda.clock import VirtualClock
from workbench.virtual_cuda.collectives import Collectives
from workbench.virtual_cuda.host_work import watched
from workbench.virtual_cuda.memory import DeviceMemory
from workbench.virtual_cuda.operations import DeviceOperations, Modes, PinnedMemory
from workbench.virtual_cuda.races import Race, RaceChecker
from workbench.virtual_cuda.streams import Order, Queues, VirtualEvent, VirtualStream

INVALID_VALUE, ALREADY_REGISTERED, NOT_REGISTERED = 1, 712, 713
"""Of cudaError_t."""


class VirtualCuda:
    """A CUDA device 0 of `device_bytes` for the program within `with`; one at a time in a process.

    Args:
        order: in which operations are carried out.
        seed: of `Order.RANDOM`.
        device_bytes: what more is asked for raises torch.OutOfMemoryError.
        registered_bytes: the host memory that can be pinned; a larger wish is refused, as WSL2 does. None: all.
        machine: where given, the engine's threads and the device run in virtual time on it; see `clock`.
        values: False computes nothing and keeps no values, so that a model of any size passes in virtual time alone;
            what is read from the device is zero, and races are not looked for.
    """

    def __init__(
        self,
        order: Order = Order.LAZY,
        seed: int = 0,
        *,
        device_bytes: int = 256 << 20,
        registered_bytes: int | None = None,
        machine: MachineProfile | None = None,
        values: bool = True,
    ) -> None:
        self._checker = RaceChecker()
        self.clock = None if machine is None else VirtualClock(machine, values)
        self.queues = Queues(order, seed, self._checker if values else None, self.clock, values)
        self.memory = DeviceMemory(device_bytes, self.queues)
        self.pinned = PinnedMemory()
        self.operations = DeviceOperations(self.memory, self.queues, self.pinned)
        self.faults: list[str] = []
        """Uses of the runtime whose outcome CUDA does not define."""
        self.collectives = Collectives(self.memory, self.queues)
        self._modes = Modes(self.operations)
        self._registered_most = registered_bytes
        self._made = 0
        self._lock = threading.Lock()
        self._patches = contextlib.ExitStack()

    @property
    def races(self) -> list[Race]:
        """Accesses to the same bytes that nothing orders."""
        return list(self._checker.races.values())

    def __enter__(self) -> VirtualCuda:
        for name, value in self._names().items():
            self._patches.enter_context(mock.patch.object(torch.cuda, name, value))
        self._patches.enter_context(
            mock.patch.object(torch.accelerator, "current_stream", lambda device=None: self.queues.current)
        )
        for name in ("new_group", "destroy_process_group", "all_to_all_single", "broadcast", "all_gather"):
            stand_in = getattr(self.collectives, name)
            self._patches.enter_context(mock.patch.object(torch.distributed, name, stand_in))
        if self.clock is not None:
            self._patches.enter_context(self.clock.in_the_engine())
        if self.queues.values:
            self._patches.enter_context(watched(self.pinned, self.queues))
        else:
            # A GPU has dropout within its fused attention; the CPU's, whose operations these are, has not.
            fused = functools.partial(_without_dropout, functional.scaled_dot_product_attention)
            self._patches.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", fused))
        self._modes.enter()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.queues.finish_all()
        finally:
            self._modes.leave()
            self._patches.close()
            self.queues.close()
        self.faults += [
            f"{nbytes:,} bytes are still registered" for nbytes in self.pinned.registered.values()
        ]

    def _names(self) -> dict[str, Any]:
        properties = SimpleNamespace(
            name="virtual",
            total_memory=self.memory.nbytes,
            major=8,
            minor=0,
            multi_processor_count=1,
            uuid=f"virtual of process {os.getpid()}",  # each has its own
        )
        return {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda device: self._modes.enter(),
            "device": lambda device: contextlib.nullcontext(),
            "get_device_name": lambda device=None: properties.name,
            "get_device_properties": lambda device=None: properties,
            "get_device_capability": lambda device=None: (properties.major, properties.minor),
            "is_bf16_supported": lambda including_emulation=True: True,
            "mem_get_info": lambda device=None: (
                self.memory.nbytes - self.memory.allocated,
                self.memory.nbytes,
            ),
            "memory_allocated": lambda device=None: self.memory.allocated,
            "max_memory_allocated": lambda device=None: self.memory.most_allocated,
            "max_memory_reserved": lambda device=None: self.memory.most_allocated,
            "memory_reserved": lambda device=None: self.memory.allocated,
            "set_per_process_memory_fraction": self._limit_memory,
            "reset_peak_memory_stats": lambda device=None: self.memory.reset_peak(),
            "empty_cache": lambda: None,
            "get_rng_state": lambda device=None: torch.get_rng_state(),
            "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
            "get_rng_state_all": lambda: [torch.get_rng_state()],
            "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
            "manual_seed_all": lambda seed: None,
            "_lazy_init": lambda: None,
            "Stream": self._stream_class(),
            "Event": self._event_class(),
            "stream": self._stream,
            "current_stream": lambda device=None: self.queues.current,
            "default_stream": lambda device=None: self.queues.compute,
            "synchronize": lambda device=None: self.queues.finish_all(),
            "is_current_stream_capturing": lambda: False,
            "cudart": lambda: self,
        }

    def _limit_memory(self, fraction: float, device: Any = None) -> None:
        self.memory.nbytes = int(fraction * self.memory.nbytes)

    def _stream_class(self) -> type[VirtualStream]:
        """Return what `torch.cuda.Stream` is: a class, as programs name it in annotations."""
        cuda = self

        class Stream(VirtualStream):
            def __init__(self, device: Any = None, priority: int = 0) -> None:
                with cuda._lock:
                    cuda._made += 1
                    super().__init__(cuda.queues, f"copies {cuda._made}")

        return Stream

    def _event_class(self) -> type[VirtualEvent]:
        cuda = self

        class Event(VirtualEvent):
            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                super().__init__(cuda.queues)

        return Event

    @contextlib.contextmanager
    def _stream(self, stream: VirtualStream | None) -> Iterator[None]:
        self._modes.enter()
        before = self.queues.current
        self.queues.current = stream or before
        try:
            yield
        finally:
            self.queues.current = before

    # The CUDA runtime's registration of host memory

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        with self._lock:
            registered = self.pinned.registered
            if any(address < at + nbytes and at < address + size for at, nbytes in registered.items()):
                return ALREADY_REGISTERED
            if self._registered_most is not None and sum(registered.values()) + size > self._registered_most:
                return INVALID_VALUE
            registered[address] = size
            return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        with self._lock:
            size = self.pinned.registered.pop(address, None)
        if size is None:
            return NOT_REGISTERED
        self.queues.host_access("cudaHostUnregister", (), [(address, address + size)])
        if not _is_mapped(address):
            self.faults.append(f"{size:,} bytes were unmapped while they were registered")
        return 0


def _is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(part, 16) for part in line.split(None, 1)[0].split("-"))
        if start <= address < stop:
            return True
    return False


def _without_dropout(attention: Any, *args: Any, dropout_p: float = 0.0, **kwargs: Any) -> Any:
    return attention(*args, **kwargs)
