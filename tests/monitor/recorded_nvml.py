"""A clock and a driver for tests: the C functions of NVML, answered from a table by card, below the real `pynvml`.

`pynvml`'s own functions, structures and errors are all at work; only the shared library is replaced. What an H200 and
a GeForce RTX 4090 answer and what they do not follows what their drivers print; the moment's numbers are chosen.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

MIB = 1 << 20
NOT_GIVEN = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE of a process's memory."""


class Clock:
    """Seconds that only rise, as far as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Card:
    """What one card answers: by C function, or by function and its argument. What is not named is not supported."""

    name: str
    uuid: str
    total_mib: int
    reserved_mib: int
    used_mib: int
    answers: Mapping[str | tuple[str, int], Any]
    compute: list[tuple[int, int]] = field(default_factory=list)
    """(pid, bytes) of the processes that compute, and that draw."""
    graphics: list[tuple[int, int]] = field(default_factory=list)
    error: int = pynvml.NVML_SUCCESS
    """What every question about it is answered with, once it is at fault."""


def h200() -> Card:
    return Card(
        "NVIDIA H200",
        "GPU-0b8e4a6c-6f3d-4b55-9d0e-2f1f3c1a7e10",
        143771,
        585,
        61440,
        {
            "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 41},
            "nvmlDeviceGetPowerUsage": 612345,
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetTemperatureV": {"temperature": 58},
            "nvmlDeviceGetTemperature": 58,
            ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN): 95,
            ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN): 92,
            ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX): 87,
            ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM): 1755,
            ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM): 3201,
            ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM): 1980,
            ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM): 3201,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            ("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES): 41_000_000,
            ("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES): 12_500_000,
        },
    )


def rtx_4090() -> Card:
    """It tells the distance to its temperature limit instead of the limit, and throttles for nothing: it is idle."""
    return Card(
        "NVIDIA GeForce RTX 4090",
        "GPU-7d2c9f40-19ab-4c8e-8a51-66c0de5b9a02",
        24564,
        456,
        1210,
        {
            "nvmlDeviceGetUtilizationRates": {"gpu": 3, "memory": 1},
            "nvmlDeviceGetPowerUsage": 21870,
            "nvmlDeviceGetEnforcedPowerLimit": 450000,
            "nvmlDeviceGetTemperatureV": {"temperature": 39},
            "nvmlDeviceGetTemperature": 39,
            "nvmlDeviceGetMarginTemperature": {"marginTemperature": 45},
            "nvmlDeviceGetFanSpeed": 30,
            ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM): 210,
            ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM): 405,
            ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM): 3105,
            ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM): 10501,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            ("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES): 550,
            ("nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES): 1650,
        },
    )


class RecordedNvml:
    """The shared library. `missing`: functions that this driver is too old to have."""

    def __init__(self, *cards: Card, missing: frozenset[str] = frozenset()) -> None:
        self.cards = list(cards)
        self.missing = missing
        self.init_error = pynvml.NVML_SUCCESS
        self.called: list[str] = []
        self.opened = 0
        """How often it has been opened and not closed."""
        self.times_opened = 0
        self.may_count = threading.Event()
        """While it is clear, the PCIe counters do not come back."""
        self.may_count.set()
        self._life = 0

    def reset(self) -> None:
        """The driver was reset: all that was opened is void."""
        self.opened = 0

    def __getattr__(self, function: str) -> Callable[..., int]:
        if function in self.missing or not function.startswith("nvml"):
            raise AttributeError(function)
        whole = {
            "nvmlInitWithFlags": self._open,
            "nvmlShutdown": self._close,
            "nvmlDeviceGetCount_v2": self._count,
        }
        if function in whole:
            return whole[function]

        def answer(*arguments: Any) -> int:
            self.called.append(function)
            if not self.opened:
                return pynvml.NVML_ERROR_UNINITIALIZED
            if function == "nvmlDeviceGetHandleByIndex_v2":
                return self._handle(*arguments)
            number = ctypes.cast(arguments[0], ctypes.c_void_p).value or 0
            life, index = divmod(number - 1, 64)
            if life != self._life or index >= len(self.cards):
                return pynvml.NVML_ERROR_INVALID_ARGUMENT
            return self._answer(self.cards[index], function, *arguments[1:])

        return answer

    def _open(self, flags: int) -> int:
        self.called.append("nvmlInitWithFlags")
        if self.init_error == pynvml.NVML_SUCCESS:
            self.opened += 1
            self.times_opened += 1
            self._life += 1
        return self.init_error

    def _close(self) -> int:
        self.called.append("nvmlShutdown")
        if not self.opened:
            return pynvml.NVML_ERROR_UNINITIALIZED
        self.opened -= 1
        return pynvml.NVML_SUCCESS

    def _count(self, count: Any) -> int:
        self.called.append("nvmlDeviceGetCount_v2")
        count._obj.value = len(self.cards)
        return pynvml.NVML_SUCCESS

    def _handle(self, index: Any, handle: Any) -> int:
        if index.value >= len(self.cards):
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        error = self.cards[index.value].error
        if error != pynvml.NVML_SUCCESS:
            return error
        number = ctypes.c_void_p(self._life * 64 + index.value + 1)
        ctypes.memmove(ctypes.addressof(handle._obj), ctypes.addressof(number), ctypes.sizeof(number))
        return pynvml.NVML_SUCCESS

    def _answer(self, card: Card, function: str, *arguments: Any) -> int:
        if function == "nvmlDeviceGetPcieThroughput":
            self.may_count.wait(20)
        if card.error != pynvml.NVML_SUCCESS:
            return card.error
        if function in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
            arguments[0].value = (card.name if function == "nvmlDeviceGetName" else card.uuid).encode()
            return pynvml.NVML_SUCCESS
        if function.startswith("nvmlDeviceGetMemoryInfo"):
            return _memory(card, arguments[0]._obj)
        if function.endswith("RunningProcesses_v3"):
            return _processes(card.compute if "Compute" in function else card.graphics, *arguments)
        key = function
        if len(arguments) == 2 and (function, arguments[0].value) in card.answers:
            key = function, arguments[0].value
        if key not in card.answers:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        value, out = card.answers[key], arguments[-1]._obj
        for name, part in value.items() if isinstance(value, dict) else [("value", value)]:
            setattr(out, name, part)
        return pynvml.NVML_SUCCESS


def _memory(card: Card, out: Any) -> int:
    """The first version of the question counts what the driver keeps for itself as used."""
    second = hasattr(out, "reserved")
    if second:
        out.reserved = card.reserved_mib * MIB
    out.total = card.total_mib * MIB
    out.used = (card.used_mib + (0 if second else card.reserved_mib)) * MIB
    out.free = (card.total_mib - card.used_mib - card.reserved_mib) * MIB
    return pynvml.NVML_SUCCESS


def _processes(listed: list[tuple[int, int]], count: Any, table: Any) -> int:
    if table is None and listed:
        count._obj.value = len(listed)
        return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    count._obj.value = len(listed)
    for row, (pid, memory) in enumerate(listed):
        table[row].pid, table[row].usedGpuMemory = pid, memory
    return pynvml.NVML_SUCCESS


def install(monkeypatch: pytest.MonkeyPatch, library: RecordedNvml | None) -> None:
    """Let the real `pynvml` call this library; None: it finds none."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)

    def no_library(*_: object, **__: object) -> Iterator[None]:
        raise OSError("no such library")

    monkeypatch.setattr(pynvml, "CDLL", no_library)
