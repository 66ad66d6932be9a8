"""How many cores a run may use, and whether torch uses them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from workbench.doctor.findings import Finding, ok, warning
from workbench.doctor.surroundings import Surroundings
from workbench.system.processor import affinity, cgroup_quota, usable_cpus

VARIABLE = "OMP_NUM_THREADS"


def check_threads(around: Surroundings) -> Iterator[Finding]:
    """One line: cores of the machine, cores allowed, threads of torch."""
    machine, allowed, quota = os.cpu_count() or 1, affinity(), cgroup_quota(around.root)
    usable = usable_cpus(around.root)
    finding = (
        f"{usable} of {machine} cores" if usable < machine else f"{usable} core{'s' if usable > 1 else ''}"
    )
    if allowed < machine:
        finding += f", affinity allows {allowed}"
    if quota is not None:
        finding += f", the cgroup's quota {quota:g}"
    remedy = f"`export {VARIABLE}={usable}`"
    wanted = around.environ.get(VARIABLE, "")
    if wanted:
        finding += f", {VARIABLE}={wanted}"
        if not wanted.split(",")[0].strip().isdecimal():
            yield warning("threads", f"{finding}: is no number", f"{remedy}, or `unset {VARIABLE}`")
            return
    tried = around.trial.outcome("torch")
    if tried.problem:
        yield ok("threads", finding)
        return
    threads = int(tried.values["threads"])
    finding += f", torch takes {threads} thread{'s' if threads > 1 else ''}"
    if threads > usable:
        yield warning("threads", f"{finding}: more than there are cores for", remedy)
    elif wanted and threads != int(wanted.split(",")[0]):
        yield warning("threads", f"{finding}: the two disagree", remedy)
    elif 2 * threads < usable:  # half is what torch takes where a core runs two threads
        yield warning("threads", f"{finding}: cores stay idle", remedy)
    else:
        yield ok("threads", finding)
