"""The GPUs of this machine through NVML: opened, listed, and asked again after each of the ways in which they fail.

All GPUs are shown, whatever CUDA_VISIBLE_DEVICES says, and no setting is ever changed. Invariant: `read` never
raises, and one GPU that is gone does not keep the others from being read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

from workbench.monitor.gpu_values import (
    DriverGoneError,
    GpuGoneError,
    ProcessNames,
    raise_if_gone,
    read_identity,
    read_values,
)
from workbench.monitor.samples import GpuSample

FIRST_S, LONGEST_S = 1.0, 60.0
_NVML_TRAFFIC_UNIT = 1000
"""NVML gives traffic in KB a second."""


class GpuReading(NamedTuple):
    """The GPUs in the driver's order, and one calm sentence where there are none."""

    gpus: tuple[GpuSample, ...]
    note: str


@dataclass(frozen=True)
class PcieTraffic:
    """Bytes a second over about 20 ms; None where the driver does not count."""

    received_bytes_per_s: float | None = None
    """From the host to the GPU."""
    sent_bytes_per_s: float | None = None


class GpuReader:
    """Reads all GPUs; for one thread. NVML is opened at the first `read` and again whenever it was lost.

    `nvml`: the module to ask, else `pynvml`. `clock`: seconds that only rise.
    """

    def __init__(self, nvml: ModuleType | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._open = False
        self._pause = Pause()
        self._note = ""
        self._gpus: list[_Gpu] = []
        self._names = ProcessNames()

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of NVML. A later `read` opens it again."""
        if self._open and self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
        self._open = False

    def read(self) -> GpuReading:
        """One sample of every GPU. Waits as long as the driver does: milliseconds, or for ever where it hangs."""
        now = self._clock()
        if not self._open:
            if not self._pause.over(now):
                return self._resting()
            self._note = self._try_to_open()
            if not self._open:
                self._pause.failed(now)
                return self._resting()
        assert self._nvml is not None
        samples = []
        for gpu in self._gpus:
            try:
                samples.append(gpu.read(self._nvml, now, self._names))
            except DriverGoneError as error:
                self._lose(str(error), now)
                return self._resting()
        if self._gpus and all(gpu.may_be_gone_for_good(now) for gpu in self._gpus):
            # NVML finds a GPU that was reset only when it is opened anew.
            self.close()
            self._pause.failed(now)
        elif not self._gpus or any(not sample.fault for sample in samples):
            self._pause.worked()
        self._names.keep_only({p.pid for sample in samples for p in sample.processes or ()})
        return GpuReading(tuple(samples), self._note)

    def _resting(self) -> GpuReading:
        return GpuReading(
            tuple(gpu.sample_of_fault() for gpu in self._gpus), "" if self._gpus else self._note
        )

    def _lose(self, sentence: str, now: float) -> None:
        self.close()
        self._pause.failed(now)
        for gpu in self._gpus:
            gpu.lose(sentence, now)

    def _try_to_open(self) -> str:
        """Open NVML and list the GPUs; the note where there is none."""
        if self._nvml is None:
            try:
                import pynvml
            except Exception as error:
                return f"No GPU is shown: the package nvidia-ml-py cannot be imported ({error})."
            self._nvml = pynvml
        nvml: Any = self._nvml
        try:
            nvml.nvmlInit()
            self._open = True
            count = nvml.nvmlDeviceGetCount()
        except Exception as error:
            self.close()
            return _why_not(nvml, error)
        if self._gpus and not count:
            self.close()
            for gpu in self._gpus:
                gpu.lose("the driver no longer lists this GPU", self._clock())
            return ""
        self._gpus = (self._gpus + [_Gpu(index) for index in range(len(self._gpus), count)])[:count]
        for gpu in self._gpus:
            gpu.renew()
        return "" if count else "There is no NVIDIA GPU in this machine."


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
        return PcieTraffic(float(received) * _NVML_TRAFFIC_UNIT, float(sent) * _NVML_TRAFFIC_UNIT)


class Pause:
    """After each failure twice as long as before, between FIRST_S and LONGEST_S."""

    def __init__(self) -> None:
        self._length = 0.0
        self._until = float("-inf")

    def over(self, now: float) -> bool:
        """Whether it is time for another attempt. `now`: seconds of any clock that only rises."""
        return now >= self._until

    def failed(self, now: float) -> None:
        self._length = min(LONGEST_S, max(FIRST_S, 2 * self._length))
        self._until = now + self._length

    def worked(self) -> None:
        self._length, self._until = 0.0, float("-inf")


class _Gpu:
    """One GPU: its handle, what it is called, and since when it has been at fault."""

    def __init__(self, index: int) -> None:
        self._known = GpuSample(index)
        self._handle: Any = None
        self._pause = Pause()
        self._faults = 0

    def read(self, nvml: ModuleType, now: float, names: ProcessNames) -> GpuSample:
        """Raises DriverGoneError where no GPU can be asked any more."""
        if not self._pause.over(now):
            return self.sample_of_fault()
        try:
            if self._handle is None:
                self._handle = _handle(nvml, self._known.index)
                name, uuid = read_identity(nvml, self._handle)
                self._known = replace(self._known, name=name, uuid=uuid)
            known = self._known
            sample = read_values(nvml, self._handle, known.index, known.name, known.uuid, names)
        except GpuGoneError as error:
            self.lose(str(error), now)
            return self.sample_of_fault()
        self._pause.worked()
        self._faults = 0
        self._known = replace(self._known, fault="")
        return sample

    def renew(self) -> None:
        """NVML was opened anew: its handles are others, and asking may help again."""
        self._handle = None
        self._pause.worked()

    def lose(self, sentence: str, now: float) -> None:
        self._handle = None
        self._faults += 1
        self._known = replace(self._known, fault=sentence)
        self._pause.failed(now)

    def sample_of_fault(self) -> GpuSample:
        return self._known

    def may_be_gone_for_good(self, now: float) -> bool:
        """Whether it failed just now, and not for the first time."""
        return self._faults > 1 and not self._pause.over(now)


def _handle(nvml: ModuleType, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        raise_if_gone(nvml, error)
        if error.value == nvml.NVML_ERROR_NO_PERMISSION:
            raise GpuGoneError("this process may not look at this GPU") from error
        raise GpuGoneError(f"the driver does not give access to this GPU ({error})") from error


def _why_not(nvml: ModuleType, error: Exception) -> str:
    sentences = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "There is no NVIDIA driver on this machine.",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is not loaded.",
        nvml.NVML_ERROR_NO_PERMISSION: "This process may not ask the NVIDIA driver.",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver was updated while in use: reboot to see the GPUs.",
    }
    return sentences.get(getattr(error, "value", None), f"The NVIDIA driver does not answer ({error}).")
