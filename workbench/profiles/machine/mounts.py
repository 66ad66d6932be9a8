"""Which file system a folder is on. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
NOT_TOLD = "N/A"


class Mount(NamedTuple):
    """`point`: where it is mounted. `kind`: the file system's name ("ext4")."""

    device: str
    point: str
    kind: str

    @property
    def in_memory(self) -> bool:
        """Whether its files are in the host's memory, whatever their reads and writes look like."""
        return self.kind in IN_MEMORY


def mount_of(path: Path) -> Mount:
    """The mount that holds `path`, which need not be there yet; all "N/A" where the system does not tell."""
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
