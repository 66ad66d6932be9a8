"""Machines as the monitor samples them (a server, a laptop, one of which nothing is known), and a step's lanes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.screen.machine import DISK, GIB, H200, host, trainer
from workbench.monitor.samples import (
    DiskSample,
    GpuProcess,
    GpuSample,
    HostSample,
    MonitorSample,
    ThreadSample,
    TrainerSample,
)
from workbench.runs import Lanes, LaneSpan

TRAINER = 4242


def gpu(index: int, **changes: Any) -> GpuSample:
    """An H200 at work, of which all is known."""
    known = replace(
        H200,
        index=index,
        memory_busy=0.41,
        memory_clock_mhz=3201,
        memory_clock_limit_mhz=3201,
        processes=(GpuProcess(TRAINER, "python", 98 * GIB), GpuProcess(99, "Xorg", 4 * GIB)),
    )
    return replace(known, **changes)


def server(time: float = 1000.0, gpus: int = 8, cores: int = 192) -> MonitorSample:
    """A machine with 8 H200 and 192 cores in two memory nodes; the last quarter of the cores is not ours."""
    return MonitorSample(
        time=time,
        host=replace(
            host(cores),
            allowed_cores=tuple(range(3 * cores // 4)),
            cpu_limit=64.0,
            load=(61.2, 55.0, 40.1),
            numa_nodes=(tuple(range(cores // 2)), tuple(range(cores // 2, cores))),
        ),
        gpus=tuple(gpu(i) for i in range(gpus)),
        trainer=trainer(TRAINER),
        disks=(DISK, DiskSample("/scratch", "nvme1n1", 7000 * GIB, 300 * GIB, 0.0, 0.0, 0.0)),
    )


def sample_at(time: float = 1000.0, gpus: int = 8, cores: int = 64, **changes: Any) -> MonitorSample:
    """A machine with GPUs on which this very process trains. `changes`: of its host."""
    own = (GpuProcess(os.getpid(), "python", 98 * GIB),)
    return MonitorSample(
        time=time,
        host=replace(host(cores), **changes),
        gpus=tuple(replace(H200, index=index, processes=own) for index in range(gpus)),
        gpu_note="" if gpus else "No GPU is shown: there is no NVIDIA driver here.",
        trainer=trainer(os.getpid()),
        disks=(DISK,),
    )


def laptop(time: float = 1000.0) -> MonitorSample:
    """8 cores, no GPU, nobody trains."""
    return MonitorSample(
        time=time,
        host=HostSample(
            cores=(0.5, 0.25, 0.0, 1.0, 0.1, 0.2, 0.3, 0.4),
            allowed_cores=tuple(range(8)),
            load=(1.5, 1.2, 0.9),
            memory_total_bytes=16 * GIB,
            memory_used_bytes=9 * GIB,
            memory_cached_bytes=4 * GIB,
            memory_available_bytes=6 * GIB,
            swap_used_bytes=1 * GIB,
            swap_total_bytes=2 * GIB,
        ),
        gpu_note="No GPU is shown: there is no NVIDIA driver here.",
        disks=(DiskSample(str(Path("/home")), None, 500 * GIB, 20 * GIB, None, None, None),),
    )


def nothing(time: float = 1000.0) -> MonitorSample:
    """Everything that may be None is."""
    return MonitorSample(
        time=time,
        host=HostSample(cores=(0.0, 0.0)),
        gpus=(GpuSample(0), GpuSample(1, fault="The GPU has fallen off the bus.")),
        trainer=TrainerSample(pid=TRAINER, threads=(ThreadSample("worker", 7, 0.5),)),
        disks=(DiskSample("/data"),),
    )


def step_lanes(spans: int = 2000, seed: int = 0) -> Lanes:
    """A step of 3.2 s: forward, backward with downloads behind it, then updates and uploads, partly after it."""
    random = Random(seed)
    out = [
        LaneSpan("compute", "forward", -1, -1, 0.0, 1.0),
        LaneSpan("compute", "backward", -1, -1, 1.0, 2.6),
    ]
    each = max(1, (spans - 2) // 3)
    for lane, name, begin, end in (
        ("download", "download", 1.1, 2.7),
        ("update", "update", 1.3, 3.1),
        ("upload", "upload", 1.4, 3.2),
    ):
        length = (end - begin) / each
        for i in range(each):
            start = begin + i * length
            out.append(LaneSpan(lane, name, i // 8, i % 8, start, start + length * random.uniform(0.3, 1.0)))
    return Lanes(step=120, spans=tuple(out))
