"""What this machine has free, now: host memory within its cgroup, and room on a disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from workbench.system.processor import folders, number


def free_host_bytes(root: Path = Path("/")) -> int:
    """What a new process could take without swapping: MemAvailable, or less where a cgroup limits it.

    `root` is where `proc` and `sys` lie (tests bring their own).
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in _cgroup_limits(root):
        free = min(free, max(0, limit - used))
    return free


def free_disk_bytes(path: Path) -> int:
    """Room on the disk that holds `path`, or would hold it."""
    return shutil.disk_usage(_nearest(path)).free


def same_disk(one: Path, other: Path) -> bool:
    """Whether two folders, which need not be there yet, share their room."""
    return _nearest(one).stat().st_dev == _nearest(other).stat().st_dev


def _nearest(path: Path) -> Path:
    """The folder that is there on the way to `path`."""
    there = path.absolute()
    while not _is_seen(there) and there != there.parent:
        there = there.parent
    return there


def _is_seen(path: Path) -> bool:
    """False also where this user may not look."""
    try:
        return path.exists()
    except OSError:
        return False


def _cgroup_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, used) in bytes of every cgroup this process is in that has a limit; used without its page cache."""
    found = []
    for folder in folders(root, "memory"):
        for limit_name, used_name, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = number(folder / limit_name), number(folder / used_name)
            if limit is not None and used is not None:
                found.append((limit, max(0, used - _statistic(folder / "memory.stat", cache_key))))
    return found


def _statistic(path: Path, key: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), 0)
