"""How many CPUs this process may keep busy: what affinity and the cgroup's quota leave of the machine.

Not for placing threads on cores. `os.cpu_count()` is wrong in a container: it tells what the machine has.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from workbench.cgroups import folders


def usable_cpus(root: Path = Path("/")) -> int:
    """The number of CPUs, at least 1. `root` is where `proc` and `sys` lie (tests bring their own)."""
    quota = cgroup_quota(root)
    allowed = affinity()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def affinity() -> int:
    """The CPUs that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """The tightest CPU quota among this process's cgroup and its parents, in CPUs; `None` without one.

    Version 2 writes `cpu.max` ("quota period", or "max"); version 1 writes `cpu.cfs_quota_us` (-1: none) and
    `cpu.cfs_period_us`.
    """
    quotas = [quota for folder in folders(root, "cpu") if (quota := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _quota_in(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return float(quota) / float(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
