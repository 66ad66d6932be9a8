"""Host memory: what there is, what is free, and what the cgroup and the kernel's settings leave of it."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.findings import Finding, failure, gib, ok, warning
from workbench.doctor.surroundings import Surroundings
from workbench.plan.memory.free import free_host_bytes
from workbench.system.processor import limits

TOO_LITTLE, LITTLE = 512 << 20, 2 << 30
"""Bytes: torch alone takes the first; the smallest training takes less than the second."""
MORE = "end other programs, or give the container more (`docker run --memory`)"


def check_memory(around: Surroundings) -> Iterator[Finding]:
    """The line of what is free, and one for an overcommit setting that refuses large mappings."""
    sizes = _sizes(around.read("proc/meminfo"))
    free = free_host_bytes()
    parts = [f"{gib(free)} free"]
    total = sizes.get("MemTotal")
    if total is not None:
        parts[0] += f" of {gib(total)}"
    limit = min(
        (size for _, size in limits(around.root, "memory", ("memory.max", "memory.limit_in_bytes"))),
        default=None,
    )
    if limit is not None and (total is None or limit < total):
        parts.append(f"the cgroup's limit is {gib(limit)}")
    if "SwapTotal" in sizes:
        swap, unused = sizes["SwapTotal"], sizes.get("SwapFree", 0)
        parts.append(f"{gib(unused)} of {gib(swap)} swap free" if swap else "no swap")
    if "[never]" in around.read("sys/kernel/mm/transparent_hugepage/enabled"):
        parts.append("transparent huge pages off (madvise is faster)")
    finding = ", ".join(parts)
    if free < TOO_LITTLE:
        yield failure("memory", f"{finding}: too little to import torch and train", MORE)
    elif free < LITTLE:
        yield warning("memory", f"{finding}: enough for the smallest models only", MORE)
    else:
        yield ok("memory", finding)
    yield from _overcommit(around, sizes, free)


def _overcommit(around: Surroundings, sizes: dict[str, int], free: int) -> Iterator[Finding]:
    if around.read("proc/sys/vm/overcommit_memory").strip() != "2":
        return
    left = sizes.get("CommitLimit", 0) - sizes.get("Committed_AS", 0)
    if left < free:
        yield warning(
            "memory",
            f"vm.overcommit_memory is 2: the kernel promises {gib(max(0, left))} more, though {gib(free)} are free",
            "`sudo sysctl vm.overcommit_memory=0`",
        )


def _sizes(meminfo: str) -> dict[str, int]:
    """Bytes by name; the file says kB and means KiB."""
    sizes = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            sizes[name] = int(words[0]) << 10
    return sizes
