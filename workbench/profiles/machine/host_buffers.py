"""Host memory to measure with: got as the engine gets its own, and given back when the measurement is over."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from workbench.engine.devices.device import Device
from workbench.profiles.machine.budget import Budget

CPUS = Path("/sys/devices/system/cpu")
SEED = 1234
DRAWN = 1 << 20
SHARE_OF_FREE = 8
"""All buffers together take no more than one part in so many of what is free."""
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class HostBuffers:
    """Tensors in host memory that copies of `device` reach at full speed; they go with the end of the `with` block."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held: list[Tensor] = []

    def __enter__(self) -> HostBuffers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._held:
            self._device.release_host(self._held.pop())

    def filled(self, elements: int, dtype: torch.dtype, value: float = 0.0) -> Tensor:
        """1-D, every element `value`, every page touched."""
        tensor = self._device.empty_host(elements, dtype)
        self._held.append(tensor)
        return tensor.fill_(value)

    def normal(self, elements: int, dtype: torch.dtype, deviation: float, stream: int = 0) -> Tensor:
        """1-D, normal numbers that repeat after a million: denormals and zeros would cost what no gradient costs."""
        drawn = torch.randn(min(elements, DRAWN), generator=torch.Generator().manual_seed(SEED + stream))
        drawn = drawn.mul_(deviation).to(dtype)
        tensor = self.filled(elements, dtype)
        for first in range(0, elements, len(drawn)):
            part = tensor[first : first + len(drawn)]
            part.copy_(drawn[: len(part)])
        return tensor


def cache_bytes(folder: Path = CPUS) -> int:
    """All last-level caches of this machine together; 0 where the system does not tell."""
    largest: dict[str, tuple[int, int]] = {}
    for index in sorted(folder.glob("cpu[0-9]*/cache/index*")):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
        except (OSError, ValueError):
            continue
        found = re.fullmatch(r"(\d+)([KMG]?)", size)
        if found:
            largest[shared] = max(
                largest.get(shared, (0, 0)), (level, int(found[1]) * UNITS.get(found[2], 1))
            )
    last = max((level for level, _ in largest.values()), default=0)
    return sum(size for level, size in largest.values() if level == last)


def buffer_bytes(budget: Budget, free_bytes: int, buffers: int, cached: int) -> int:
    """The size of each of so many equal buffers: beyond the caches, within what may be taken of what is free."""
    wanted = max(budget.buffer_bytes, int(budget.cache_multiple * cached))
    return max(1 << 16, min(wanted, free_bytes // SHARE_OF_FREE // buffers) // 4096 * 4096)


def with_torch_threads(threads: int, work: Callable[[], object]) -> Callable[[], object]:
    """`work` by so many threads of torch's; who calls it puts torch's number back afterwards."""

    def run() -> object:
        torch.set_num_threads(threads)
        return work()

    return run
