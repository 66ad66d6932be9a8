"""The GPUs that this process may use, as the driver's library tells them. No torch, and never an exception.

Not for the engine, which asks torch. The order is the driver's, narrowed by CUDA_VISIBLE_DEVICES; where it is not
CUDA's own order, a machine has GPUs of several kinds, and a GPU is looked for by its name too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    """`free_bytes`: now. `driver`: its version, or "N/A"."""

    name: str
    memory_bytes: int
    free_bytes: int
    driver: str


def visible_gpus() -> list[Gpu]:
    """The GPUs in the order of their numbers; none where there is no driver or it does not answer."""
    try:
        import pynvml
    except ImportError:
        return []
    found: list[Gpu] = []
    with contextlib.suppress(pynvml.NVMLError), _library(pynvml):
        driver = _driver(pynvml)
        for handle in _handles(pynvml):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = _text(pynvml.nvmlDeviceGetName(handle))
            found.append(Gpu(name, int(memory.total), int(memory.free), driver))
    return found


def gpu_called(name: str, index: int, gpus: list[Gpu]) -> Gpu | None:
    """The GPU number `index` if it has this name, else the first that has it."""
    if index < len(gpus) and gpus[index].name == name:
        return gpus[index]
    return next((gpu for gpu in gpus if gpu.name == name), None)


@contextlib.contextmanager
def _library(pynvml: Any) -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _handles(pynvml: Any) -> Iterator[Any]:
    count = pynvml.nvmlDeviceGetCount()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [str(number) for number in range(count)] if visible is None else visible.split(",")
    for word in (each.strip() for each in words):
        if word.isdecimal() and int(word) < count:
            yield pynvml.nvmlDeviceGetHandleByIndex(int(word))
        elif word.startswith(("GPU-", "MIG-")):
            yield pynvml.nvmlDeviceGetHandleByUUID(word)
        else:
            return  # CUDA, too, stops at the first that is none


def _driver(pynvml: Any) -> str:
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return "N/A"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
