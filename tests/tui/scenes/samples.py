"""Machines at work, as the monitor samples them: some seconds that end with a given time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sin

from sampled_machines import GIB, TRAINER, gpu, laptop, server

from workbench.monitor.samples import (
    DiskSample,
    GpuProcess,
    GpuSample,
    HostSample,
    MonitorSample,
    ThreadSample,
    TrainerSample,
)

INTERVAL_S = 0.5
_SAMPLES = 60


def h200_box(time: float) -> Iterator[MonitorSample]:
    """8 H200 and 192 cores, at work."""
    for at, wave in _moments(time):
        sample = server(at)
        gpus = tuple(
            replace(
                each,
                busy=min(1.0, 0.72 + 0.2 * wave + 0.01 * each.index),
                power_w=380.0 + 90 * wave + 7 * each.index,
                temperature_c=58.0 + 4 * wave + each.index,
                pcie_received_bytes_per_s=(22 + 9 * wave) * GIB,
                pcie_sent_bytes_per_s=(6 + 4 * wave) * GIB,
            )
            for each in sample.gpus
        )
        yield replace(sample, gpus=gpus)


def desktop(
    time: float, card_gib: int = 24, name: str = "NVIDIA GeForce RTX 4090"
) -> Iterator[MonitorSample]:
    """One card, 16 cores, 128 GiB, training; a fan and its clocks are known, and what throttles it."""
    for at, wave in _moments(time):
        yield MonitorSample(
            time=at,
            host=_desktop_host(wave),
            gpus=(_card(card_gib, name, wave),),
            trainer=_trainer(wave),
            disks=_disks(wave),
        )


def laptop_at(time: float) -> Iterator[MonitorSample]:
    """8 cores and no GPU; nobody trains."""
    for at, wave in _moments(time):
        sample = laptop(at)
        cores = tuple(min(1.0, busy * (0.8 + 0.4 * wave)) for busy in sample.host.cores)
        yield replace(sample, host=replace(sample.host, cores=cores))


def _moments(time: float) -> Iterator[tuple[float, float]]:
    """(unix seconds, a wave between 0 and 1)."""
    for number in range(_SAMPLES):
        yield time - INTERVAL_S * (_SAMPLES - 1 - number), round(0.5 + 0.5 * sin(number / 5), 6)


def _card(total_gib: int, name: str, wave: float) -> GpuSample:
    used = round((0.84 + 0.04 * wave) * total_gib * GIB)
    return gpu(
        0,
        name=name,
        busy=round(0.62 + 0.37 * wave, 3),
        memory_busy=round(0.3 + 0.4 * wave, 3),
        memory_used_bytes=used,
        memory_total_bytes=total_gib * GIB,
        power_w=round(290 + 150 * wave),
        power_limit_w=450.0,
        temperature_c=round(61 + 8 * wave),
        temperature_limit_c=84.0,
        fan=0.48,
        clock_mhz=2520,
        clock_limit_mhz=3105,
        memory_clock_mhz=10501,
        memory_clock_limit_mhz=10501,
        throttled_by=("power cap",),
        pcie_generation=4,
        pcie_width=16,
        pcie_limit_bytes_per_s=31.5e9,
        pcie_received_bytes_per_s=(8 + 11 * wave) * GIB,
        pcie_sent_bytes_per_s=(11 - 9 * wave) * GIB,
        processes=(
            GpuProcess(TRAINER, "python", used - GIB),
            GpuProcess(1377, "Xorg", GIB // 2),
            GpuProcess(2210, "firefox", None),
        ),
    )


def _desktop_host(wave: float) -> HostSample:
    return HostSample(
        cores=tuple(
            round(min(1.0, (0.93 if core < 8 else 0.12) * (0.7 + 0.4 * wave) + core / 160), 3)
            for core in range(16)
        ),
        allowed_cores=tuple(range(16)),
        load=(8.42, 8.10, 7.65),
        memory_total_bytes=125 * GIB,
        memory_used_bytes=103 * GIB,
        memory_cached_bytes=15 * GIB,
        memory_available_bytes=20 * GIB,
        swap_used_bytes=GIB // 4,
        swap_total_bytes=8 * GIB,
    )


def _trainer(wave: float) -> TrainerSample:
    threads = [ThreadSample("python", TRAINER, 0.97, 1)]
    threads += [
        ThreadSample(
            f"host-adam/{n}" if n else "lane-update", TRAINER + 10 + n, round(0.9 - 0.3 * wave - n / 50, 3), n
        )
        for n in range(8)
    ]
    threads += [
        ThreadSample("lane-upload", TRAINER + 30, 0.06, 9),
        ThreadSample("lane-download", TRAINER + 31, 0.04, 11),
    ]
    return TrainerSample(
        pid=TRAINER,
        memory_bytes=97 * GIB,
        busy=round(6.4 - 2 * wave, 2),
        threads=tuple(threads),
        read_bytes_per_s=0.0,
        written_bytes_per_s=40 * (1 << 20) * wave,
    )


def _disks(wave: float) -> tuple[DiskSample, ...]:
    return (
        DiskSample(
            "/home", "nvme0n1", 1863 * GIB, 611 * GIB, 1.5e6, 42e6 * wave, round(0.02 + 0.1 * wave, 3)
        ),
        DiskSample("/scratch", "nvme1n1", 3726 * GIB, 208 * GIB, 0.0, 0.0, 0.0),
    )
