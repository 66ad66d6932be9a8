"""The PCIe link of a GPU: what it carries at most, and what it carries now.

A traffic counter of NVML counts for about 20 ms while the caller waits, so this is read in a thread of its own.
Invariant: reading never raises and never opens or closes NVML; that is the business of `nvml.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from workbench.monitor.pauses import Pause

_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
    7: 128e9 * 242 / 256 / 8,
}
"""What one lane carries each way: transfers a second, times the share of the line code that is data, in bytes.

PCI Express Base Specification, physical layer: 8b/10b coding at 2.5 and 5 GT/s (revision 2), 128b/130b at 8, 16 and
32 GT/s (revisions 3 to 5), flits of 256 bytes, 242 of them packets and data link layer, at 64 and 128 GT/s (revisions
6 and 7). The headers of packets still come off this.
"""
_NVML_UNIT = 1000
"""NVML gives KB a second."""


@dataclass(frozen=True)
class PcieTraffic:
    """Bytes a second over about 20 ms; None where the driver does not count."""

    received_bytes_per_s: float | None = None
    """From the host to the GPU."""
    sent_bytes_per_s: float | None = None


def link_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """What a link of so many lanes carries each way, bytes a second; None for a link that is not known."""
    if generation not in _LANE_BYTES_PER_S or not width:
        return None
    return _LANE_BYTES_PER_S[generation] * width


class PcieReader:
    """Reads the traffic counters of GPUs by their index. One that does not count is asked less and less often."""

    def __init__(self, nvml: ModuleType | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._pauses: dict[int, Pause] = {}

    def read(self, index: int) -> PcieTraffic:
        """Blocks for about 40 ms."""
        pause = self._pauses.setdefault(index, Pause())
        if not pause.over(self._clock()):
            return PcieTraffic()
        traffic = self._ask(index)
        if traffic == PcieTraffic():
            pause.failed(self._clock())
        else:
            pause.worked()
        return traffic

    def _ask(self, index: int) -> PcieTraffic:
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            nvml = self._nvml
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            received = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
            sent = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        except Exception:  # Not supported, lost or closed: no traffic is known.
            return PcieTraffic()
        return PcieTraffic(float(received) * _NVML_UNIT, float(sent) * _NVML_UNIT)
