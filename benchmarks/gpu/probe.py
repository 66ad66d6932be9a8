"""What the machine has, asked in a process of its own, so that the parent holds nothing on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.engine.machine import GIB
from benchmarks.host_optimizer.machine import cpu_model
from workbench.profiles.named_machines import load_profile
from workbench.system.processor import usable_cpus


def probe(given: dict[str, Any]) -> dict[str, Any]:
    """The host, and the device called `given["device"]`: `device_free_bytes` is None on a CPU.

    Where torch sees no such device, only `missing`, which says so. `given["virtual"]`: the machine profile of a virtual
    device.
    """
    if given["virtual"] is not None:
        profile = load_profile(Path(given["virtual"]))
        return {"machine": f"VIRTUAL, no figure is of a GPU: {profile.name}; torch {torch.__version__}"}
    device = torch.device(given["device"])
    host = f"{cpu_model()}, {usable_cpus()} usable cores, {psutil.virtual_memory().total / GIB:.0f} GiB"
    words, free = f"CPU; {host}", None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return {"missing": "torch sees no CUDA device; --device cpu tries the benchmark out without one"}
        properties = torch.cuda.get_device_properties(device)
        free = torch.cuda.mem_get_info(device)[0]
        words = f"{properties.name}, {properties.total_memory / GIB:.0f} GiB; {host}"
    return {
        "machine": f"{words}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "device_free_bytes": free,
        "has_bfloat16": device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False),
    }
