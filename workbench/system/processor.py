"""The processors that this process may use: instruction sets, CPUs, and the limits of its cgroups.

Linux tells all of it in files. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path

SPIN_COUNT = "1000"
"""Turns of a loop: docs/benchmarks.md has times beside others."""
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_BFLOAT16_FLAGS = frozenset(("avx512_bf16", "amx_bf16"))


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return True where the processor multiplies bf16 matrices; False also where the system does not say."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return not _BFLOAT16_FLAGS.isdisjoint(flags.split())


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP's threads wait for each other by spinning for microseconds only, unless the user has chosen.

    libgomp, which comes with torch's wheels, spins for milliseconds otherwise: where others use the same cores, threads
    that spin keep those that they wait for from running, and a step takes ten times as long. It reads this when torch
    is imported.
    """
    if not any(name in environment for name in _WAITING):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT


def name_this_thread(name: str) -> None:
    """Give the calling thread the name, at most 15 characters, that `htop` and /proc show (comm; proc_tid_comm(5)).

    Before Python 3.14 the name of a `threading.Thread` stays within Python.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name, encoding="ascii")


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs, at least 1. `root` is where `proc` and `sys` lie (tests bring their own)."""
    quota = cgroup_quota(root)
    allowed = affinity()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def affinity() -> int:
    """Return the number of CPUs that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the tightest CPU quota among this process's cgroup and its parents, in CPUs; `None` without one.

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


def limits(root: Path, controller: str, names: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    """Yield (folder, limit) of each cgroup from this process's own up to the top of the mount.

    `names`: what the file with the limit of `controller` is called ("memory.max", "memory.limit_in_bytes"). In a
    container the path that `proc/self/cgroup` names often does not exist; the container's own group is then the top.
    """
    for folder in folders(root, controller):
        for name in names:
            limit = number(folder / name)
            if limit is not None:
                yield folder, limit


def number(path: Path) -> int | None:
    """Return the number in a file; None where there is none, or the word max."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def folders(root: Path, controller: str) -> list[Path]:
    """Return this process's cgroups of `controller` ("cpu", "memory", "pids"), each with its parents up to the top.

    `root` is where `proc` and `sys` lie (tests bring their own).
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    mounts = root / "sys/fs/cgroup"
    found: dict[Path, None] = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            tops = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            tops = [mounts / controllers, mounts / controller]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in tops:
            found |= dict.fromkeys(top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
    return list(found)
