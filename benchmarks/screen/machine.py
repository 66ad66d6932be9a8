"""A server that trains, as the monitor samples it: parts to be given other values by `dataclasses.replace`."""

from __future__ import annotations

from workbench.monitor.samples import DiskSample, GpuSample, HostSample, ThreadSample, TrainerSample

GIB = 1 << 30

H200 = GpuSample(
    index=0,
    name="NVIDIA H200",
    busy=0.87,
    memory_used_bytes=103 * GIB,
    memory_total_bytes=140 * GIB,
    power_w=410.0,
    power_limit_w=700.0,
    temperature_c=62.0,
    temperature_limit_c=87.0,
    clock_mhz=1755,
    clock_limit_mhz=1980,
    throttled_by=(),
    pcie_generation=5,
    pcie_width=16,
    pcie_limit_bytes_per_s=63.0e9,
    pcie_received_bytes_per_s=24.0 * GIB,
    pcie_sent_bytes_per_s=3.5 * GIB,
)
DISK = DiskSample("/data/runs", "nvme0n1", 3500 * GIB, 1200 * GIB, 2.0 * GIB, 0.5 * GIB, 0.66)


def host(cores: int) -> HostSample:
    """So many cores, each with a load of its own, and 1 TiB of memory."""
    return HostSample(
        cores=tuple((core * 37 % 101) / 100 for core in range(cores)),
        allowed_cores=tuple(range(cores)),
        load=(31.2, 25.0, 20.1),
        memory_total_bytes=1024 * GIB,
        memory_used_bytes=300 * GIB,
        memory_cached_bytes=200 * GIB,
        memory_available_bytes=700 * GIB,
        swap_used_bytes=0,
        swap_total_bytes=8 * GIB,
    )


def trainer(pid: int) -> TrainerSample:
    """The process of this number, its model's thread and 16 of the host optimizer."""
    return TrainerSample(
        pid=pid,
        memory_bytes=250 * GIB,
        busy=16.2,
        threads=(
            ThreadSample("python", 500, 0.99, 0),
            *(ThreadSample(f"host-adam/{i}", 501 + i, 0.95 - i / 100, 2 * i) for i in range(16)),
        ),
        read_bytes_per_s=1.5 * GIB,
        written_bytes_per_s=0.25 * GIB,
    )
