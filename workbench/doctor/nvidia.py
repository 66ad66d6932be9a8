"""NVIDIA GPUs as the driver (NVML) reports them, and as the PCI bus does where no driver answers.

Invariant: a value that the driver does not give is None, printed N/A; it is never a zero and never an exception.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from workbench.doctor.findings import Context, Finding, failure, ok, warning
from workbench.formatting import amount

T = TypeVar("T")

VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
"""Of NVIDIA, and of display controllers, in the PCI configuration space."""
BUSY_BYTES, BUSY_SHARE = 1 << 30, 0.05
"""Memory in use beyond both of these is somebody's work; a desktop and the driver itself take less."""


@dataclass(frozen=True)
class NvidiaCard:
    """One GPU. Bytes, of its memory; `others`: how many processes use it."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    others: int | None


@dataclass(frozen=True)
class NvidiaSample:
    """The driver's report. `problem`: why there is none. `on_bus`: GPUs that the PCI bus shows."""

    cards: tuple[NvidiaCard, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    problem: str = ""
    broken: bool = False
    """A driver is there and does not work."""
    on_bus: int = 0

    @property
    def present(self) -> bool:
        return bool(self.cards) or self.on_bus > 0 or self.broken


def sample(root: Path = Path("/")) -> NvidiaSample:
    """Ask the driver."""
    on_bus = _on_bus(root)
    try:
        import pynvml
    except ImportError as error:
        return NvidiaSample(problem=f"pynvml cannot be imported ({error})", on_bus=on_bus)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        )
        return NvidiaSample(problem=str(error), broken=error.value not in absent, on_bus=on_bus)
    try:
        count = _answer(pynvml.nvmlDeviceGetCount) or 0
        return NvidiaSample(
            cards=tuple(_card(pynvml, index) for index in range(count)),
            driver=_text(_answer(pynvml.nvmlSystemGetDriverVersion)),
            cuda=_cuda_version(_answer(pynvml.nvmlSystemGetCudaDriverVersion)),
            on_bus=on_bus,
        )
    finally:
        _answer(pynvml.nvmlShutdown)


def check_driver(context: Context) -> Iterator[Finding]:
    """Yield one line for the driver and one for each GPU."""
    seen = context.nvidia()
    if seen.problem and seen.broken:
        yield failure(
            "driver",
            f"the NVIDIA driver does not answer: {seen.problem}",
            "try `nvidia-smi`; after an update of the driver, reboot; in a container, restart it with `--gpus all`",
        )
    elif seen.problem and seen.on_bus:
        yield warning(
            "driver",
            f"{seen.on_bus} NVIDIA card(s) on the bus, but {seen.problem}: training runs on the CPU",
            "install NVIDIA's driver and `python -m pip install nvidia-ml-py` until `nvidia-smi` lists the card; "
            "start a container with `--gpus all`",
        )
    elif seen.problem or not seen.cards:
        yield ok("driver", "no NVIDIA GPU here: training runs on the CPU")
    else:
        yield ok("driver", f"NVIDIA {seen.driver or 'N/A'}, for CUDA up to {seen.cuda or 'N/A'}")
        for index, card in enumerate(seen.cards):
            yield _card_finding(index, card)


def _card_finding(index: int, card: NvidiaCard) -> Finding:
    finding = f"{index}: {card.name}, {amount(card.free_bytes)} of {amount(card.total_bytes)} free"
    if card.others:
        finding += f", used by {card.others} process{'es' if card.others > 1 else ''}"
    used = None if card.free_bytes is None or card.total_bytes is None else card.total_bytes - card.free_bytes
    if used is None or card.total_bytes is None or used <= max(BUSY_BYTES, BUSY_SHARE * card.total_bytes):
        return ok("gpu", finding)
    return warning(
        "gpu",
        f"{finding}: {amount(used)} are taken",
        "end what uses it (`nvidia-smi` lists it), or train on another: `--set train.device=cuda:N`",
    )


def _card(pynvml: Any, index: int) -> NvidiaCard:
    handle = _answer(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return NvidiaCard("N/A", None, None, None)
    memory = _answer(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return NvidiaCard(
        name=_text(_answer(lambda: pynvml.nvmlDeviceGetName(handle))) or "N/A",
        total_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        others=_others(pynvml, handle),
    )


def _others(pynvml: Any, handle: Any) -> int | None:
    """Processes that compute or draw on the card, without this one."""
    lists = [
        _answer(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        _answer(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
    ]
    if lists == [None, None]:
        return None
    return len({process.pid for listed in lists for process in listed or ()} - {os.getpid()})


def _answer(ask: Callable[[], T]) -> T | None:
    """Return the driver's answer; None where it does not support the question."""
    import pynvml

    try:
        return ask()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cuda_version(number: int | None) -> str | None:
    """CUDA's own encoding: 1000 times the major version and 10 times the minor one."""
    return None if not number else f"{number // 1000}.{number % 1000 // 10}"


def _on_bus(root: Path) -> int:
    """NVIDIA's display controllers among the PCI devices."""
    found = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        found += vendor == VENDOR and kind.startswith(DISPLAY_CLASS)
    return found
