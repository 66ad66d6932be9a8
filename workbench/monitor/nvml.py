"""The GPUs of this machine through NVML: opened, listed, and read again after each of the ways in which they fail.

All GPUs are shown, whatever CUDA_VISIBLE_DEVICES says; only functions that read are called. Invariant: a value that
the driver does not give is None; `GpuReader.read` never raises, and one GPU that is gone does not keep the others from
being read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import psutil

from workbench.monitor.samples import GpuProcess, GpuSample

RETRY_S = 10.0
"""Between two attempts to open NVML while it, or one of its GPUs, does not answer."""
_NVML_TRAFFIC_UNIT = 1000
"""NVML gives traffic in KB a second."""

_REASONS = (
    ("SwPowerCap", "power cap"),
    ("SwThermalSlowdown", "thermal"),
    ("HwThermalSlowdown", "thermal, by hardware"),
    ("HwPowerBrakeSlowdown", "power brake"),
    ("SyncBoost", "sync boost"),
    ("ApplicationsClocksSetting", "clocks set by the user"),
    ("DisplayClockSetting", "display clocks"),
    ("BoardLimit", "board limit"),
    ("Reliability", "voltage reliability"),
)
"""Why clocks are held down, as NVML calls it after `nvmlClocksEventReason`, and in words."""

_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
    7: 128e9 * 242 / 256 / 8,
}
"""The bytes that one lane carries each way: transfers a second, times the share of the line code that is data.

PCI Express Base Specification, physical layer: 8b/10b coding at 2.5 and 5 GT/s (revision 2), 128b/130b at 8, 16 and
32 GT/s (revisions 3 to 5), flits of 256 bytes, 242 of them packets and data link layer, at 64 and 128 GT/s (revisions
6 and 7). The headers of packets still come off this.
"""


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


class GpuGoneError(Exception):
    """This GPU has stopped answering; the others may go on. The text is one sentence."""


class DriverGoneError(Exception):
    """The driver has stopped answering for every GPU. The text is one sentence."""


class GpuReader:
    """Reads all GPUs; for one thread. NVML is opened at the first `read`, and again when it or a GPU was lost.

    `nvml`: the module to call, else `pynvml`. `clock`: seconds that only rise.
    """

    def __init__(self, nvml: ModuleType | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._open = False
        self._retry_at = float("-inf")
        self._note = ""
        self._gpus: list[GpuSample] = []
        """Index, name and uuid of each GPU; `fault` where it is not read until NVML is opened again."""
        self._handles: dict[int, Any] = {}

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close NVML. A later `read` opens it again."""
        if self._open and self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
        self._open = False

    def read(self) -> GpuReading:
        """Return one sample of every GPU. Waits as long as the driver does: milliseconds, or for ever if it hangs."""
        now = self._clock()
        if (not self._open or any(gpu.fault for gpu in self._gpus)) and now >= self._retry_at:
            # NVML finds a GPU that was reset only when it is opened again.
            self._retry_at = now + RETRY_S
            self.close()
            self._note = self._try_to_open()
        if not self._open:
            return GpuReading(tuple(self._gpus), "" if self._gpus else self._note)
        try:
            return GpuReading(tuple(self._read(gpu) for gpu in self._gpus), self._note)
        except DriverGoneError as error:
            self.close()
            self._gpus = [replace(gpu, fault=str(error)) for gpu in self._gpus]
            return GpuReading(tuple(self._gpus), "")

    def _read(self, gpu: GpuSample) -> GpuSample:
        """Return the sample of one GPU. Raises DriverGoneError where no GPU can be read any more."""
        if gpu.fault:
            return gpu
        nvml, index = self._nvml, gpu.index
        assert nvml is not None
        try:
            if index not in self._handles:
                handle = _handle(nvml, index)
                query = _Query(nvml, handle)
                name, uuid = query.ask("nvmlDeviceGetName"), query.ask("nvmlDeviceGetUUID")
                gpu = self._gpus[index] = GpuSample(index, name or None, uuid or None)
                self._handles[index] = handle
            return _read_values(_Query(nvml, self._handles[index]), gpu)
        except GpuGoneError as error:
            self._gpus[index] = replace(gpu, fault=str(error))
            return self._gpus[index]

    def _try_to_open(self) -> str:
        """Open NVML and list the GPUs; return a note where there is none."""
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
        self._handles.clear()
        if self._gpus and not count:
            self.close()
            self._gpus = [replace(gpu, fault="the driver no longer lists this GPU") for gpu in self._gpus]
        else:
            known = [replace(gpu, fault="") for gpu in self._gpus[:count]]
            self._gpus = known + [GpuSample(index) for index in range(len(known), count)]
        return "" if count else "There is no NVIDIA GPU in this machine."


def read_pcie_traffic(index: int) -> PcieTraffic:
    """Return the traffic of a GPU while a `GpuReader` has NVML open. Blocks for about 40 ms."""
    try:
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        received = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
        sent = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    except Exception:  # Not supported, lost or closed: no traffic is known.
        return PcieTraffic()
    return PcieTraffic(float(received) * _NVML_TRAFFIC_UNIT, float(sent) * _NVML_TRAFFIC_UNIT)


class _Query:
    """Calls NVML for one GPU."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self.nvml = nvml
        self._handle = handle
        self._answered = self._unknown = 0

    def ask(self, *names: str, args: tuple[object, ...] = ()) -> Any:
        """Return the answer of the first of these functions that gives one; None where none does.

        Raises GpuGoneError and DriverGoneError.
        """
        for name in names:
            try:
                value = getattr(self.nvml, name)(self._handle, *args)
            except self.nvml.NVMLError as error:
                _raise_if_gone(self.nvml, error)
                self._unknown += error.value == self.nvml.NVML_ERROR_UNKNOWN
            except Exception:  # The package is too old for the function, or makes nothing of the answer.
                continue
            else:
                self._answered += 1
                return value
        return None

    def check_answered(self) -> None:
        """Raise GpuGoneError where nothing but unknown errors came back."""
        if self._unknown and not self._answered:
            raise GpuGoneError("the driver reports only unknown errors for this GPU")


def _read_values(query: _Query, gpu: GpuSample) -> GpuSample:
    """Return `gpu` with all that changes, but for the PCIe traffic. Raises GpuGoneError and DriverGoneError."""
    nvml, ask = query.nvml, query.ask
    # The second version leaves out the driver's own memory, as `nvidia-smi` does.
    memory = ask("nvmlDeviceGetMemoryInfo", args=(nvml.nvmlMemory_v2,)) or ask("nvmlDeviceGetMemoryInfo")
    busy = ask("nvmlDeviceGetUtilizationRates")
    temperature = ask(
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", args=(nvml.NVML_TEMPERATURE_GPU,)
    )
    fan = ask("nvmlDeviceGetFanSpeed")
    power = ask("nvmlDeviceGetPowerUsage")
    power_limit = ask("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    sm, memory_clock = (nvml.NVML_CLOCK_SM,), (nvml.NVML_CLOCK_MEM,)
    generation = ask("nvmlDeviceGetCurrPcieLinkGeneration")
    width = ask("nvmlDeviceGetCurrPcieLinkWidth")
    sample = replace(
        gpu,
        busy=None if busy is None else busy.gpu / 100,
        memory_busy=None if busy is None else busy.memory / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if power_limit is None else power_limit / 1000,
        temperature_c=None if temperature is None else float(temperature),
        temperature_limit_c=_temperature_limit(query, temperature),
        fan=None if fan is None else fan / 100,
        clock_mhz=ask("nvmlDeviceGetClockInfo", args=sm),
        clock_limit_mhz=ask("nvmlDeviceGetMaxClockInfo", args=sm),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", args=memory_clock),
        memory_clock_limit_mhz=ask("nvmlDeviceGetMaxClockInfo", args=memory_clock),
        throttled_by=None if reasons is None else throttle_words(nvml, reasons),
        pcie_generation=generation,
        pcie_width=width,
        pcie_limit_bytes_per_s=link_bytes_per_s(generation, width),
        processes=_processes(query),
    )
    query.check_answered()
    return sample


def link_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """Return the bytes that a link of `width` lanes carries each way a second; None for a link that is not known."""
    if generation not in _LANE_BYTES_PER_S or not width:
        return None
    return _LANE_BYTES_PER_S[generation] * width


def throttle_words(nvml: ModuleType, reasons: int) -> tuple[str, ...]:
    """Return NVML's bits of what holds the clocks down in words; being idle is no throttling."""

    def bit(suffix: str) -> int:
        older = getattr(nvml, f"nvmlClocksThrottleReason{suffix}", 0)
        return int(getattr(nvml, f"nvmlClocksEventReason{suffix}", older))

    left = reasons & ~bit("GpuIdle")
    words = [word for suffix, word in _REASONS if left & bit(suffix)]
    # Set beside the more exact hardware reasons.
    if left & bit("HwSlowdown") and not {"thermal, by hardware", "power brake"} & set(words):
        words.append("slowed by hardware")
    for suffix in ("HwSlowdown", *(suffix for suffix, _ in _REASONS)):
        left &= ~bit(suffix)
    return (*words, f"another reason ({left:#x})") if left else tuple(words)


def _processes(query: _Query) -> tuple[GpuProcess, ...] | None:
    """Return those that compute and those that draw, each once, the largest first.

    A process that does both is in both lists with the same memory.
    """
    lists = [
        query.ask("nvmlDeviceGetComputeRunningProcesses"),
        query.ask("nvmlDeviceGetGraphicsRunningProcesses"),
    ]
    if lists == [None, None]:
        return None
    memory: dict[int, int | None] = {}
    for listed in lists:
        for process in listed or ():
            used, before = process.usedGpuMemory, memory.get(process.pid)
            memory[process.pid] = before if used is None else max(int(used), before or 0)
    found = (GpuProcess(pid, _process_name(pid), used) for pid, used in memory.items())
    return tuple(sorted(found, key=lambda process: (-(process.memory_bytes or 0), process.pid)))


def _process_name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name() or None
    except (psutil.Error, ValueError, OSError):
        return None


def _temperature_limit(query: _Query, temperature: int | None) -> float | None:
    """Return the highest operating temperature, else where slowing down begins.

    Newer cards give neither but the distance to it, which NVML calls the margin.
    """
    nvml = query.nvml
    for threshold in (nvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN):
        limit = query.ask("nvmlDeviceGetTemperatureThreshold", args=(threshold,))
        if limit:
            return float(limit)
    margin = query.ask("nvmlDeviceGetMarginTemperature")
    return None if margin is None or temperature is None else float(temperature + margin)


def _raise_if_gone(nvml: ModuleType, error: Any) -> None:
    """Raise GpuGoneError or DriverGoneError where an NVMLError says that more than one value is missing."""
    gpu = {
        nvml.NVML_ERROR_GPU_IS_LOST: "the GPU has fallen off the bus; reset it or reboot",
        nvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs to be reset",
    }
    driver = {
        nvml.NVML_ERROR_UNINITIALIZED: "the driver was reset",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the driver was unloaded",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated while in use; reboot",
    }
    if error.value in gpu:
        raise GpuGoneError(gpu[error.value])
    if error.value in driver:
        raise DriverGoneError(driver[error.value])


def _handle(nvml: ModuleType, index: int) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        _raise_if_gone(nvml, error)
        if error.value == nvml.NVML_ERROR_NO_PERMISSION:
            raise GpuGoneError("this process has no access to this GPU") from error
        raise GpuGoneError(f"the driver does not give access to this GPU ({error})") from error


def _why_not(nvml: ModuleType, error: Exception) -> str:
    sentences = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "There is no NVIDIA driver on this machine.",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is not loaded.",
        nvml.NVML_ERROR_NO_PERMISSION: "This process has no access to the NVIDIA driver.",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver was updated while in use: reboot to see the GPUs.",
    }
    return sentences.get(getattr(error, "value", None), f"The NVIDIA driver does not answer ({error}).")
