"""The machine's cores, memory and disks through psutil, within what affinity and cgroups leave to this process.

Invariant: `read` never raises; a value that the system does not give is None. Rates and busy shares are differences
between two readings, so that the first sample has none.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from workbench.monitor.samples import DiskSample, HostSample
from workbench.system.numa import cores_of_nodes, parse_cores
from workbench.system.processor import cgroup_quota, limits, number

# Said on the terminal, which is the screen, where /proc/vmstat does not count swapping.
warnings.filterwarnings("ignore", category=RuntimeWarning, module="psutil")

_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""Names of a group's limit in versions 2 and 1 of the cgroups."""
_SHORTEST_S = 0.1
"""Between readings closer than this too few clock ticks have been counted: the last shares and rates are kept."""
_LIMITS_STAND_S = 10.0
"""Looking for limits takes as long as all the rest, and they hardly ever change."""


class HostReader:
    """Reads the host, for one thread. `root`: where `proc` and `sys` lie for cgroups and memory nodes (for tests)."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._limits_read = float("-inf")
        self._cpu_limit: float | None = None
        self._memory_limits: tuple[tuple[Path, int], ...] = ()
        nodes = tuple(cores_of_nodes(root).values())
        self._nodes = nodes if len(nodes) > 1 else ()
        self._cores_read: float | None = None
        self._cores: tuple[float, ...] = ()

    def read(self) -> HostSample:
        """Return one sample."""
        now = self._clock()
        if now - self._limits_read >= _LIMITS_STAND_S:
            self._limits_read = now
            try:
                self._cpu_limit = cgroup_quota(self._root)
            except (OSError, ValueError, ZeroDivisionError):
                self._cpu_limit = None
            self._memory_limits = tuple(limits(self._root, "memory", _LIMITS))
        if self._cores_read is None or now - self._cores_read >= _SHORTEST_S:
            cores = self._busy_shares()
            self._cores = cores if self._cores_read is not None else ()
            self._cores_read = now
        sample = HostSample(
            cores=self._cores,
            allowed_cores=tuple(sorted(os.sched_getaffinity(os.getpid()))),
            cpu_limit=self._cpu_limit,
            load=os.getloadavg(),
            numa_nodes=self._nodes,
        )
        return self._with_memory(sample)

    def _busy_shares(self) -> tuple[float, ...]:
        """Return the busy share of every core since the last call; 0 for cores that are switched off."""
        try:
            shares = psutil.cpu_percent(percpu=True)
        except (OSError, ValueError):
            return ()
        online = parse_cores(_text(self._root / "sys/devices/system/cpu/online"))
        if len(online) != len(shares):
            online = tuple(range(len(shares)))
        busy = dict(zip(online, shares, strict=True))
        return tuple(busy.get(core, 0.0) / 100 for core in range(max(online, default=-1) + 1))

    def _with_memory(self, sample: HostSample) -> HostSample:
        """Add the memory of the machine, or of the cgroup that leaves less, and the swap."""
        try:
            memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        except (OSError, ValueError, KeyError):  # psutil, where /proc is hidden
            return sample
        # Shared memory counts as cached in /proc/meminfo, and cannot be dropped.
        cached = max(0, memory.buffers + memory.cached - memory.shared)
        found = memory.total, max(0, memory.total - memory.free - cached), cached, memory.available
        for folder, limit in self._memory_limits:
            group = _group_memory(folder, limit)
            if limit < memory.total and group is not None and group[3] < found[3]:
                found = group
        total, used, cached, available = found
        return replace(
            sample,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_cached_bytes=cached,
            memory_available_bytes=available,
            swap_used_bytes=swap.used,
            swap_total_bytes=swap.total,
        )


class DiskReader:
    """Reads the file system of one folder and the device under it, for one thread. The folder need not be there yet.

    A file system without a device of its own (tmpfs, overlay, a network) gives its room and the name of its source.
    Traffic is the whole device's. Reading may wait where a network file system hangs.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._clock = clock
        self._before: tuple[float, int, int, int] | None = None
        """Seconds, bytes read, bytes written and busy milliseconds at the last reading."""
        self._number: int | None = None
        self._name: str | None = None
        self._last = DiskSample(str(folder))

    def read(self) -> DiskSample:
        """Return one sample; the first one has no rates."""
        try:
            folder = self.folder.absolute()
            while not folder.exists() and folder != folder.parent:
                folder = folder.parent
            room = psutil.disk_usage(str(folder))
            number = folder.stat().st_dev
            if number != self._number:
                self._name = _device_of(folder)
                self._number, self._before = number, None
        except OSError:
            self._before = None
            return DiskSample(str(self.folder))
        sample = replace(self._last, device=self._name, total_bytes=room.total, free_bytes=room.free)
        self._last = self._with_rates(sample)
        return self._last

    def _with_rates(self, sample: DiskSample) -> DiskSample:
        now, before = self._clock(), self._before
        if before is not None and now - before[0] < _SHORTEST_S / 5:
            return sample
        self._before = None
        try:
            counters = psutil.disk_io_counters(perdisk=True, nowrap=False).get(self._name or "")
        except (OSError, ValueError, NotImplementedError):
            counters = None
        if counters is not None:
            self._before = (now, counters.read_bytes, counters.write_bytes, counters.busy_time)
        if self._before is None or before is None:
            return replace(sample, read_bytes_per_s=None, written_bytes_per_s=None, busy=None)
        seconds, read, written, busy_ms = (new - old for new, old in zip(self._before, before, strict=True))
        return replace(
            sample,
            read_bytes_per_s=max(0, read) / seconds,
            written_bytes_per_s=max(0, written) / seconds,
            busy=min(1.0, max(0, busy_ms) / 1000 / seconds),
        )


def _group_memory(folder: Path, limit: int) -> tuple[int, int, int, int] | None:
    """Return total, used, cached and available bytes of a cgroup with this limit; None where they cannot be read."""
    usage, prefix = number(folder / "memory.current"), ""
    if usage is None:
        usage, prefix = number(folder / "memory.usage_in_bytes"), "total_"
    if usage is None:
        return None
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    group = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    cached = group.get("file", group.get(f"{prefix}cache", 0)) - group.get(f"{prefix}shmem", 0)
    cached = max(0, cached + group.get("slab_reclaimable", 0))
    left = max(0, limit - usage + group.get(f"{prefix}inactive_file", 0))
    return limit, max(0, usage - cached), cached, left


def _device_of(folder: Path) -> str | None:
    """Return the name of the device under a folder ("nvme0n1p2"), else of its file system's source ("tmpfs")."""
    resolved = folder.resolve()
    # Of several file systems on one mount point the last covers the others.
    mounts = [disk for disk in psutil.disk_partitions(all=True) if resolved.is_relative_to(disk.mountpoint)]
    if not mounts:
        return None
    _, disk = max(enumerate(mounts), key=lambda place: (len(Path(place[1].mountpoint).parts), place[0]))
    if disk.device.startswith("/dev/"):
        return Path(disk.device).resolve().name
    return disk.device if disk.device not in ("none", "") else disk.fstype


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
