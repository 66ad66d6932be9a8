"""What the system allows one process: open files, threads, address space, the size of a file."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from workbench.doctor.findings import Finding, gib, ok, warning
from workbench.doctor.surroundings import Surroundings
from workbench.system.processor import limits, number

FEWEST_FILES = 1024
FEWEST_PIDS = 256
"""Threads that a run and its libraries may start, on a machine of many cores."""


def check_limits(around: Surroundings) -> Iterator[Finding]:
    """One line if all is right, else one for each limit that is too low."""
    found = [*_files(), *_pids(around), *_sizes()]
    yield from found
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not found:
        lock = (
            ""
            if locked == resource.RLIM_INFINITY
            else f", memlock {gib(locked)} (does not bound pinned memory)"
        )
        yield ok("limits", f"open files {_count(soft)} (at most {_count(hard)}){lock}")


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEWEST_FILES:
        return
    raised = f"`ulimit -n {4096 if hard == resource.RLIM_INFINITY else min(4096, hard)}`"
    if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
        raised = (
            "`nofile` in /etc/security/limits.conf, `LimitNOFILE=4096` of a service, or "
            "`docker run --ulimit nofile=4096`"
        )
    yield warning("limits", f"{soft:,} open files are few (at most {_count(hard)})", raised)


def _pids(around: Surroundings) -> Iterator[Finding]:
    for folder, limit in limits(around.root, "pids", ("pids.max",)):
        used = number(folder / "pids.current") or 0
        if limit - used < FEWEST_PIDS:
            yield warning(
                "limits",
                f"the cgroup allows {limit:,} threads and processes, {used:,} are there: few are left for a run",
                "`docker run --pids-limit 4096`, or `TasksMax=4096` of the systemd unit",
            )
            return


def _sizes() -> Iterator[Finding]:
    for name, kind, flag in (
        ("address space", resource.RLIMIT_AS, "-v"),
        ("the size of a file", resource.RLIMIT_FSIZE, "-f"),
    ):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield warning("limits", f"{name} is limited to {gib(soft)}", f"`ulimit {flag} unlimited`")


def _count(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else f"{number:,}"
