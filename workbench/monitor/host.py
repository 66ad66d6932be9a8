"""The machine's processors and memory, within what affinity and cgroups leave to this process.

Everything comes from /proc and /sys; where they are missing, so are the values. Busy shares are differences between
two readings, so that the first sample has none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from workbench.monitor.samples import HostSample
from workbench.system.processor import cgroup_quota, limits, number

_CORE = re.compile(r"cpu(\d+) ")
_NODE = re.compile(r"node(\d+)")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""A group's limit is called so in version 2 and 1 of the cgroups."""
_SHORTEST_S = 0.1
"""Between readings closer than this, too few clock ticks have been counted: the shares of before are told again."""
_LIMITS_STAND_S = 10.0
"""Looking for limits takes as long as all the rest, and they hardly ever change."""


class HostReader:
    """Reads the host, for one thread.

    `root` is where `proc` and `sys` lie (tests bring their own); `clock`: seconds that only rise.
    """

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._limits_read = float("-inf")
        self._cpu_limit: float | None = None
        self._memory_limits: tuple[tuple[Path, int], ...] = ()
        self._times: dict[int, tuple[int, int]] = {}
        self._times_read = float("-inf")
        self._busy: dict[int, float] = {}
        self._nodes: tuple[tuple[int, ...], ...] | None = None

    def read(self) -> HostSample:
        """One sample. Never raises."""
        if self._nodes is None:
            self._nodes = _numa_nodes(self._root)
        if self._clock() - self._limits_read >= _LIMITS_STAND_S:
            self._limits_read = self._clock()
            self._cpu_limit = _cpu_limit(self._root)
            self._memory_limits = tuple(limits(self._root, "memory", _LIMITS))
        memory = _meminfo(self._root)
        swap_total, swap_free = memory.get("SwapTotal"), memory.get("SwapFree")
        total, used, cached, available = _memory(memory, self._memory_limits)
        return HostSample(
            cores=self._cores(),
            allowed_cores=_allowed_cores(self._root),
            cpu_limit=self._cpu_limit,
            load=_load(self._root),
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_cached_bytes=cached,
            memory_available_bytes=available,
            swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
            swap_total_bytes=swap_total,
            numa_nodes=self._nodes,
        )

    def _cores(self) -> tuple[float, ...]:
        """Busy shares between the last two readings; of cores that are switched off 0."""
        now = self._clock()
        if now - self._times_read >= _SHORTEST_S:
            times = _core_times(self._root)
            self._busy = {
                core: _share(self._times[core], counted)
                for core, counted in times.items()
                if core in self._times
            }
            self._times, self._times_read = times, now
        if not self._busy:
            return ()
        return tuple(self._busy.get(core, 0.0) for core in range(max(self._busy) + 1))


def parse_cores(text: str) -> tuple[int, ...]:
    """The numbers in a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3, 8."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _core_times(root: Path) -> dict[int, tuple[int, int]]:
    """(busy, all) clock ticks of each core that is switched on (proc_pid_stat(5), /proc/stat).

    Waiting for a disk is no work; what a hypervisor took is no idleness. Guests are counted in user and nice already.
    """
    times = {}
    for line in _text(root / "proc/stat").splitlines():
        match = _CORE.match(line)
        if match:
            ticks = [int(word) for word in line.split()[1:9]]
            times[int(match[1])] = (sum(ticks) - sum(ticks[3:5]), sum(ticks))
    return times


def _share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Of (busy, all) ticks. The kernel's counts of idleness can go back a little."""
    passed = after[1] - before[1]
    return min(1.0, max(0.0, (after[0] - before[0]) / passed)) if passed > 0 else 0.0


def _memory(
    memory: dict[str, int], groups: tuple[tuple[Path, int], ...]
) -> tuple[int | None, int | None, int | None, int | None]:
    """Total, used, cached and available bytes: of the machine, or of the cgroup that leaves less."""
    total, free = memory.get("MemTotal"), memory.get("MemFree")
    available = memory.get("MemAvailable")
    if total is None or free is None:
        return total, None, None, available
    # Shared memory counts as cached in /proc/meminfo, and cannot be dropped.
    pages = memory.get("Buffers", 0) + memory.get("Cached", 0) + memory.get("SReclaimable", 0)
    cached = max(0, pages - memory.get("Shmem", 0))
    found = total, max(0, total - free - cached), cached, available
    for folder, limit in groups:
        if limit >= total:
            continue
        usage = number(folder / "memory.current")
        prefix = ""
        if usage is None:
            usage, prefix = number(folder / "memory.usage_in_bytes"), "total_"
        if usage is None:
            continue
        group = _statistics(folder / "memory.stat")
        kept = group.get("file", group.get(f"{prefix}cache", 0)) - group.get(f"{prefix}shmem", 0)
        kept = max(0, kept + group.get("slab_reclaimable", 0))
        left = max(0, limit - usage + group.get(f"{prefix}inactive_file", 0))
        if found[3] is None or left < found[3]:
            found = limit, max(0, usage - kept), kept, left
    return found


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def _statistics(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _allowed_cores(root: Path) -> tuple[int, ...]:
    for line in _text(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cores(line.partition(":")[2])
    return ()


def _cpu_limit(root: Path) -> float | None:
    try:
        return cgroup_quota(root)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _load(root: Path) -> tuple[float, float, float] | None:
    words = _text(root / "proc/loadavg").split()
    try:
        return float(words[0]), float(words[1]), float(words[2])
    except (IndexError, ValueError):
        return None


def _numa_nodes(root: Path) -> tuple[tuple[int, ...], ...]:
    """The cores of each memory node that has any, in the order of their numbers; none where there is only one."""
    folder = root / "sys/devices/system/node"
    try:
        names = [match for path in folder.iterdir() if (match := _NODE.fullmatch(path.name))]
    except OSError:
        return ()
    names.sort(key=lambda match: int(match[1]))
    nodes = [parse_cores(_text(folder / match[0] / "cpulist")) for match in names]
    nodes = [cores for cores in nodes if cores]
    return tuple(nodes) if len(nodes) > 1 else ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
