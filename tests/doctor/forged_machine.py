"""A context in which all is well, to be spoilt one thing at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.doctor import Context, Finding, Outcome
from workbench.doctor.gpu_checks import DriverReport
from workbench.monitor.samples import GpuSample

GIB = 1 << 30
GPU = GpuSample(0, "NVIDIA Forged 24", memory_used_bytes=GIB // 2, memory_total_bytes=24 * GIB, processes=())
ONE_GPU = DriverReport(gpus=(GPU,), driver="580.10", cuda="13.0", on_bus=1)
NO_GPU = DriverReport(problem="NVML Shared Library Not Found")
GOOD: dict[str, dict[str, Any]] = {
    "torch": {"version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "threads": 1},
    "extension": {"missing": None, "instruction_set": "avx2", "best": "avx2", "error": 1e-7},
    "cuda": {"reason": None, "devices": [{"name": "NVIDIA Forged 24", "bf16": True, "problem": None}]},
    "pinned memory": {"asked": 64 << 20, "registered": 64 << 20},
}


def around(
    folder: Path,
    trial: Mapping[str, Outcome | dict[str, Any]] | None = None,
    driver: DriverReport = ONE_GPU,
    disk: Path | None = None,
) -> Context:
    """A machine with a GPU. `trial`: a stage's outcome, or the values of it that are others than in `GOOD`."""
    outcomes = {stage: Outcome(values) for stage, values in GOOD.items()}
    for stage, change in (trial or {}).items():
        outcomes[stage] = change if isinstance(change, Outcome) else Outcome({**GOOD[stage], **change})
    return Context(folder / "runs", disk, outcomes.__getitem__, lambda: driver)


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding that there is."""
    [found] = findings
    return found
