"""The kernel's count of processes that it has killed in a cgroup for lack of memory. Linux alone keeps one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from workbench.system.processor import folders

_FILES = ("memory.events", "memory.oom_control")
"""Of cgroups of version 2 and 1; both have a line "oom_kill N"."""


@cache
def own_cgroup(root: Path = Path("/")) -> str:
    """Return the folder of this process's innermost cgroup that counts; empty where none does."""
    counting = (folder for folder in folders(root, "memory") if oom_kills(folder) is not None)
    return str(next(counting, ""))


def oom_kills(cgroup: Path) -> int | None:
    """Return the count of a cgroup and those in it; None where it is gone or does not count."""
    for name in _FILES:
        try:
            lines = (cgroup / name).read_text(encoding="ascii").splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError, StopIteration):
            continue
    return None
