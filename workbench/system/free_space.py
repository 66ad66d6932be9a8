"""Free room on this machine: host memory within its cgroup, room on a disk; and the file system of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from workbench.errors import WorkbenchError
from workbench.system.processor import folders, number

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
NOT_TOLD = "N/A"


def host_memory() -> tuple[int, int]:
    """Return the host's memory in bytes: what a new process can take without swapping, and all.

    Raises WorkbenchError where the machine does not tell, as a container that hides /proc.
    """
    import psutil

    try:
        memory = psutil.virtual_memory()
    except (OSError, ValueError, KeyError) as error:
        raise WorkbenchError(
            f"the machine does not say how much memory it has: {psutil.PROCFS_PATH}/meminfo cannot be read; "
            "a container must not hide /proc"
        ) from error
    return int(memory.available), int(memory.total)


def free_host_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that a new process can take without swapping: MemAvailable, or less where a cgroup limits it.

    `root`: the folder that `proc` and `sys` lie in (tests bring their own). Raises as `host_memory`.
    """
    free = host_memory()[0]
    for limit, used in _cgroup_limits(root):
        free = min(free, max(0, limit - used))
    return free


def free_disk_bytes(path: Path) -> int:
    """Return the room on the disk that holds `path`, or would hold it."""
    return shutil.disk_usage(nearest_folder(path)).free


def same_disk(one: Path, other: Path) -> bool:
    """True where two folders, which need not exist yet, are on one disk."""
    return nearest_folder(one).stat().st_dev == nearest_folder(other).stat().st_dev


def nearest_folder(path: Path) -> Path:
    """Return `path` where it exists, else the nearest of its parents that does."""
    there = path.absolute()
    while not _is_seen(there) and there != there.parent:
        there = there.parent
    return there


def _is_seen(path: Path) -> bool:
    """False also where this user has no permission to look."""
    try:
        return path.exists()
    except OSError:
        return False


def _cgroup_limits(root: Path) -> list[tuple[int, int]]:
    """Return (limit, used) in bytes of every cgroup of this process that has a limit; used without its page cache."""
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


class Mount(NamedTuple):
    """`point`: where it is mounted. `kind`: the file system's name ("ext4")."""

    device: str
    point: str
    kind: str

    @property
    def in_memory(self) -> bool:
        """True where its files are in the host's memory."""
        return self.kind in IN_MEMORY


def mount_of(path: Path) -> Mount:
    """Return the mount that holds `path`, which need not exist yet; all "N/A" where the system does not say."""
    import psutil

    resolved = path.resolve()
    best = Mount(NOT_TOLD, NOT_TOLD, NOT_TOLD)
    try:
        partitions = psutil.disk_partitions(all=True)
    except (OSError, RuntimeError):
        return best
    longest = -1
    for each in partitions:
        # Of several at one point the last one hides the others.
        if resolved.is_relative_to(each.mountpoint) and len(each.mountpoint) >= longest:
            longest = len(each.mountpoint)
            best = Mount(each.device, each.mountpoint, each.fstype)
    return best
