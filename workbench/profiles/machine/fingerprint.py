"""What makes a measured profile stale, in one short hash: another processor, GPU, driver, torch or probe.

No torch here: the screen asks for it. Nothing raises for what the system does not tell: that is "N/A".
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path

from workbench.errors import ConfigurationError
from workbench.formatting import GIB
from workbench.optimizer.extension import missing_extension
from workbench.profiles.machine.gpus import Gpu, visible_gpus
from workbench.system.processor import usable_cpus

PROBE_VERSION = 2
"""Counts up with every change of what is measured, or of what the figures mean."""
UNKNOWN = "N/A"


def machine_fingerprint(device: str = "auto") -> str:
    """A hash of what a profile measured on `device` depends on.

    Raises:
        ConfigurationError: no such device name can be.
    """
    content = json.dumps(_facts(device), sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def resolved_device(device: str) -> str:
    """ "cpu" or "cuda:N" for a device's name, as far as it can be told without torch.

    Raises:
        ConfigurationError: it is neither auto, cpu, cuda nor cuda:N.
    """
    if device == "auto":
        return "cuda:0" if _torch_has_cuda() and visible_gpus() else "cpu"
    if device == "cuda":
        return "cuda:0"
    if device != "cpu" and not re.fullmatch(r"cuda:\d+", device):
        raise ConfigurationError(f"device {device!r}: expected auto, cpu, cuda or cuda:N")
    return device


def device_index(device: str) -> int | None:
    """The number of a GPU; None for the CPU."""
    resolved = resolved_device(device)
    return None if resolved == "cpu" else int(resolved.removeprefix("cuda:"))


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture where the system does not tell the name."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine() or UNKNOWN


def instruction_set() -> str:
    """The one that the host optimizer uses here; "torch" where its extension is missing."""
    if missing_extension() is not None:
        return "torch"
    from workbench._native import lib

    numbers = {"avx512": lib.WB_AVX512, "avx2": lib.WB_AVX2, "scalar": lib.WB_SCALAR}
    forced = os.environ.get("WORKBENCH_ISA", "")
    return forced or next(name for name, number in numbers.items() if lib.wb_has_instruction_set(number))


def total_memory_bytes() -> int:
    """The host's memory, all of it."""
    import psutil

    return int(psutil.virtual_memory().total)


def _facts(device: str) -> dict[str, str | int]:
    index = device_index(device)
    gpu: Gpu | None = None
    if index is not None:
        gpus = visible_gpus()
        gpu = gpus[index] if index < len(gpus) else None
    return {
        "probe": PROBE_VERSION,
        "cpu": cpu_model(),
        "cores": usable_cpus(),
        "instruction_set": instruction_set(),
        # In whole GiB: kernels differ by some MiB in what they keep for themselves.
        "memory_gib": round(total_memory_bytes() / GIB),
        "gpu": gpu.name if gpu else UNKNOWN,
        "gpu_memory_gib": round(gpu.memory_bytes / GIB) if gpu else UNKNOWN,
        "driver": gpu.driver if gpu else UNKNOWN,
        "torch": _torch_version(),
    }


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN


def _torch_has_cuda() -> bool:
    """Whether this torch may have been built for CUDA; its version says where it was not."""
    return not _torch_version().endswith("+cpu")
