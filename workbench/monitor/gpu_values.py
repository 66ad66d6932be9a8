"""What NVML says of one GPU, each value asked by itself, through the names of the `pynvml` module.

It knows nothing of when to ask again (`nvml.py`) nor of the slow PCIe counters (`pcie.py`). Only functions that read
are called. Invariant: a value that the driver does not give is None; only a GPU or a driver that is gone raises.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from workbench.monitor.samples import GpuProcess, GpuSample

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
"""What holds the clocks down, as NVML calls it after the prefix, and in words."""
_PREFIXES = ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
"""The present one, and that of before driver 535."""
_IDLE, _HARDWARE = "GpuIdle", "HwSlowdown"
"""No throttling; and what is set beside the more exact hardware reasons."""


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


class GpuGoneError(Exception):
    """This GPU has stopped answering; the others may go on. The text is one sentence."""


class DriverGoneError(Exception):
    """The driver has stopped answering for every GPU. The text is one sentence."""


class GpuQuestions:
    """Asks NVML about one GPU, once. `answered` and `unknown` count its answers and its "unknown error"."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.answered = 0
        self.unknown = 0

    def ask(self, *names: str, args: tuple[object, ...] = ()) -> Any:
        """The answer of the first of these functions that gives one; None where none does.

        Raises GpuGoneError and DriverGoneError.
        """
        nvml = self._nvml
        for name in names:
            function = getattr(nvml, name, None)
            if function is None:
                continue
            try:
                value = function(self._handle, *args)
            except nvml.NVMLError as error:
                raise_if_gone(nvml, error)
                self.unknown += error.value == nvml.NVML_ERROR_UNKNOWN
            except Exception:  # What a damaged library makes of an answer is no answer.
                continue
            else:
                self.answered += 1
                return value
        return None

    def must_answer(self) -> None:
        """Raise GpuGoneError where nothing was answered and the driver did not say why."""
        if self.unknown and not self.answered:
            raise GpuGoneError("the driver answers nothing but unknown errors for this GPU")


def raise_if_gone(nvml: ModuleType, error: Any) -> None:
    """Raise GpuGoneError or DriverGoneError where an NVMLError says that more than one value is missing."""
    gpu = {
        nvml.NVML_ERROR_GPU_IS_LOST: "the GPU has fallen off the bus; resetting it or rebooting brings it back",
        nvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs to be reset",
    }
    driver = {
        nvml.NVML_ERROR_UNINITIALIZED: "the driver was reset",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the driver was unloaded",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated while in use; rebooting brings it back",
    }
    if error.value in gpu:
        raise GpuGoneError(gpu[error.value])
    if error.value in driver:
        raise DriverGoneError(driver[error.value])


def read_identity(nvml: ModuleType, handle: Any) -> tuple[str | None, str | None]:
    """Name and UUID. Raises GpuGoneError and DriverGoneError."""
    questions = GpuQuestions(nvml, handle)
    return _text(questions.ask("nvmlDeviceGetName")), _text(questions.ask("nvmlDeviceGetUUID"))


def read_values(
    nvml: ModuleType, handle: Any, index: int, name: str | None, uuid: str | None, names: ProcessNames
) -> GpuSample:
    """All that changes, but for the PCIe traffic. Raises GpuGoneError and DriverGoneError."""
    questions = GpuQuestions(nvml, handle)
    ask = questions.ask
    memory = ask("nvmlDeviceGetMemoryInfo", args=_memory_version(nvml)) or ask("nvmlDeviceGetMemoryInfo")
    busy = ask("nvmlDeviceGetUtilizationRates")
    temperature = ask(
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", args=(nvml.NVML_TEMPERATURE_GPU,)
    )
    sm, memory_clock = (nvml.NVML_CLOCK_SM,), (nvml.NVML_CLOCK_MEM,)
    generation = ask("nvmlDeviceGetCurrPcieLinkGeneration")
    width = ask("nvmlDeviceGetCurrPcieLinkWidth")
    sample = GpuSample(
        index=index,
        name=name,
        uuid=uuid,
        busy=None if busy is None else busy.gpu / 100,
        memory_busy=None if busy is None else busy.memory / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_total_bytes=None if memory is None else int(memory.total),
        power_w=_thousandth(ask("nvmlDeviceGetPowerUsage")),
        power_limit_w=_thousandth(
            ask("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")
        ),
        temperature_c=_float(temperature),
        temperature_limit_c=_temperature_limit(nvml, questions, temperature),
        fan=_hundredth(ask("nvmlDeviceGetFanSpeed")),
        clock_mhz=ask("nvmlDeviceGetClockInfo", args=sm),
        clock_limit_mhz=ask("nvmlDeviceGetMaxClockInfo", args=sm),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", args=memory_clock),
        memory_clock_limit_mhz=ask("nvmlDeviceGetMaxClockInfo", args=memory_clock),
        throttled_by=throttle_words(
            nvml, ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        ),
        pcie_generation=generation,
        pcie_width=width,
        pcie_limit_bytes_per_s=link_bytes_per_s(generation, width),
        processes=_processes(questions, names),
    )
    questions.must_answer()
    return sample


def link_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """What a link of so many lanes carries each way, bytes a second; None for a link that is not known."""
    if generation not in _LANE_BYTES_PER_S or not width:
        return None
    return _LANE_BYTES_PER_S[generation] * width


def throttle_words(nvml: ModuleType, reasons: int | None) -> tuple[str, ...] | None:
    """NVML's bits of what holds the clocks down, in words; being idle is no throttling. None stays None."""
    if reasons is None:
        return None
    left = reasons & ~_bit(nvml, _IDLE)
    words = []
    for suffix, word in _REASONS:
        bit = _bit(nvml, suffix)
        if left & bit:
            words.append(word)
            left &= ~bit
    hardware = _bit(nvml, _HARDWARE)
    if left & hardware:
        left &= ~hardware
        if not {"thermal, by hardware", "power brake"} & set(words):
            words.append("slowed by hardware")
    if left:
        words.append(f"another reason ({left:#x})")
    return tuple(words)


class ProcessNames:
    """The names of processes, asked once for each as long as it is asked for."""

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}

    def of(self, pid: int) -> str | None:
        if pid not in self._known:
            self._known[pid] = _process_name(pid)
        return self._known[pid]

    def keep_only(self, pids: set[int]) -> None:
        """Forget the others: their numbers may be given to new processes."""
        self._known = {pid: name for pid, name in self._known.items() if pid in pids}


def _process_name(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).name() or None
    except (psutil.Error, ValueError, OSError):
        return None


def _processes(questions: GpuQuestions, names: ProcessNames) -> tuple[GpuProcess, ...] | None:
    """Those that compute and those that draw, each once, the largest first.

    A process that does both is in both lists with the same memory.
    """
    lists = [
        questions.ask("nvmlDeviceGetComputeRunningProcesses"),
        questions.ask("nvmlDeviceGetGraphicsRunningProcesses"),
    ]
    if lists == [None, None]:
        return None
    memory: dict[int, int | None] = {}
    for listed in lists:
        for process in listed or ():
            used, before = process.usedGpuMemory, memory.get(process.pid)
            memory[process.pid] = before if used is None else max(int(used), before or 0)
    found = (GpuProcess(pid, names.of(pid), used) for pid, used in memory.items())
    return tuple(sorted(found, key=lambda process: (-(process.memory_bytes or 0), process.pid)))


def _temperature_limit(nvml: ModuleType, questions: GpuQuestions, temperature: int | None) -> float | None:
    """Where the clocks begin to be lowered: the highest operating temperature, else where slowing down begins.

    Newer cards give neither but the distance to it, which NVML calls the margin.
    """
    for threshold in (nvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN):
        limit = questions.ask("nvmlDeviceGetTemperatureThreshold", args=(threshold,))
        if limit:
            return float(limit)
    margin = questions.ask("nvmlDeviceGetMarginTemperature")
    return None if margin is None or temperature is None else float(temperature + margin)


def _memory_version(nvml: ModuleType) -> tuple[object, ...]:
    """Asks for memory in use without what the driver keeps for itself, as `nvidia-smi` shows it."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    return () if version is None else (version,)


def _bit(nvml: ModuleType, suffix: str) -> int:
    for prefix in _PREFIXES:
        bit = getattr(nvml, prefix + suffix, None)
        if bit is not None:
            return int(bit)
    return 0


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace") or None
    return value or None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _hundredth(value: int | None) -> float | None:
    return None if value is None else value / 100


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
