"""Samples of the machine as plain frozen values. None means that a value is not known here.

Shares lie between 0 and 1; rates are bytes a second over the sampling interval.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """One process that holds memory of a GPU."""

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    name: str | None = None
    uuid: str | None = None
    busy: float | None = None
    """Share of the interval in which a kernel ran."""
    memory_busy: float | None = None
    """Share of the interval in which its memory was read or written."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    temperature_limit_c: float | None = None
    """From here on it slows itself down."""
    fan: float | None = None
    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_limit_mhz: int | None = None
    throttled_by: tuple[str, ...] | None = None
    """Reasons for which its clocks are held down, in words; empty: they are not."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_limit_bytes_per_s: float | None = None
    """Bandwidth of the link each way at its present generation and width."""
    pcie_received_bytes_per_s: float | None = None
    """From the host to the GPU."""
    pcie_sent_bytes_per_s: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    fault: str = ""
    """One sentence where the GPU has stopped answering; empty: it answers."""


@dataclass(frozen=True)
class HostSample:
    """The machine's processors and memory, as far as this process may use them (cgroup, affinity)."""

    cores: tuple[float, ...] = ()
    """Busy share of every core of the machine, in the order of their numbers; empty in the first sample."""
    allowed_cores: tuple[int, ...] = ()
    """The numbers of the cores that this process may run on."""
    cpu_limit: float | None = None
    """Cores' worth of time that the cgroup grants; None: no limit."""
    load: tuple[float, float, float] | None = None
    """Load averages over 1, 5 and 15 minutes."""
    memory_total_bytes: int | None = None
    """The machine's, or the cgroup's limit where that is less."""
    memory_used_bytes: int | None = None
    """Without what the system only keeps as cache."""
    memory_cached_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    numa_nodes: tuple[tuple[int, ...], ...] = ()
    """The cores of each memory node; empty where there is one or none is known."""


@dataclass(frozen=True)
class ThreadSample:
    """One thread of the trainer that was busy."""

    name: str
    """As htop shows it: "host-adam/3"."""
    thread_id: int
    busy: float
    core: int | None = None
    """The core that it last ran on."""


@dataclass(frozen=True)
class TrainerSample:
    """The training process."""

    pid: int
    alive: bool = True
    memory_bytes: int | None = None
    """Resident."""
    busy: float | None = None
    """Cores' worth of time: 2.0 is two whole cores."""
    threads: tuple[ThreadSample, ...] = ()
    """The busiest first."""
    read_bytes_per_s: float | None = None
    """From disks, of this process alone."""
    written_bytes_per_s: float | None = None


@dataclass(frozen=True)
class DiskSample:
    """The file system of one folder, and the device under it."""

    folder: str
    device: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    read_bytes_per_s: float | None = None
    written_bytes_per_s: float | None = None
    busy: float | None = None


@dataclass(frozen=True)
class MonitorSample:
    """One moment of the whole machine."""

    time: float
    """Unix seconds."""
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    gpu_note: str = ""
    """One calm sentence where no GPU can be shown: none is there, no driver, NVML missing."""
    trainer: TrainerSample | None = None
    disks: tuple[DiskSample, ...] = ()
