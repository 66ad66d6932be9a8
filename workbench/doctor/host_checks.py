"""Checks of the host: Python, packages, cores, memory, limits, the kept machine profile, the terminal.

Packages are read from their metadata; none of them is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from workbench.doctor.findings import Context, Finding, Terminal, failure, ok, warning
from workbench.formatting import GIB, MIB, amount
from workbench.system.free_space import free_host_bytes, mount_of
from workbench.system.processor import affinity, cgroup_quota, limits, number, usable_cpus

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

try:
    from packaging.requirements import Requirement
except ImportError:  # transformers requires it: then the packages' line reports transformers
    Requirement = None  # type: ignore[assignment, misc]

OLDEST_PYTHON = (3, 10, 0)
TOO_LITTLE_BYTES, LITTLE_BYTES = 512 * MIB, 2 * GIB
"""Free host memory: torch alone takes the first, the smallest training less than the second."""
FEWEST_FILES = 1024
FEWEST_THREADS = 256
"""Threads that a run and its libraries may start on a machine of many cores."""
SMALLEST_SCREEN, RECOMMENDED_SCREEN = (60, 16), (80, 24)
OPENMP = "OMP_NUM_THREADS"


def check_python(context: Context) -> Iterator[Finding]:
    """Yield the line of Python's version, word size and environment."""
    python = context.python
    version = ".".join(map(str, python.version))
    remedy = "make the environment with a 64-bit CPython 3.10 or later: `python3 -m venv .venv`"
    if python.version < OLDEST_PYTHON:
        yield failure("python", f"{version} is too old", remedy)
    elif python.implementation != "CPython":
        yield failure("python", f"{python.implementation} {version}, for which there is no torch", remedy)
    elif python.bits != 64:
        yield failure("python", f"{version} is a {python.bits}-bit build: torch has none", remedy)
    else:
        if python.prefix != python.base_prefix:
            place = f"in the virtual environment {python.prefix}"
        elif conda := context.environ.get("CONDA_PREFIX"):
            place = f"in the conda environment {conda}"
        else:
            place = f"in {python.prefix}, which is no virtual environment"
        yield ok("python", f"{version}, 64 bit, {place}")


def check_packages(context: Context) -> Iterator[Finding]:
    """Yield one line for each required package that is missing or too old, and one that lists the others."""
    required = own_requirements()
    if not required:
        yield warning(
            "packages",
            "the requirements of Workbench are not known: it is imported but not installed",
            "in the checkout, `python -m pip install --editable .`",
        )
        return
    right = []
    for requirement in required:
        if requirement.name == "torch":  # has a line of its own
            continue
        problem = version_problem("packages", requirement)
        if problem is None:
            right.append(f"{requirement.name} {metadata.version(requirement.name)}")
        else:
            yield problem
    if right:
        yield ok("packages", ", ".join(right))


def own_requirements() -> list[Requirement]:
    """Return the requirements in Workbench's own metadata that hold on this Python, extras left out."""
    try:
        lines = metadata.requires("workbench") or []
    except metadata.PackageNotFoundError:
        return []
    if Requirement is None:
        return []
    found = map(Requirement, lines)
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


def version_problem(check: str, requirement: Requirement) -> Finding | None:
    """Return the finding for an installed version that is not enough; None where it is."""
    name = requirement.name
    remedy = f'`python -m pip install "{name}{requirement.specifier}"`'
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return failure(check, f"{name} is not installed", remedy)
    from packaging.version import InvalidVersion, Version

    try:
        installed = Version(version)
    except InvalidVersion:
        return warning(check, f"{name}: version {version!r} cannot be compared", remedy)
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    wanted = f"{name}{requirement.specifier}"
    # A container's own build of the very release that is asked for calls itself 2.11.0a0+...
    if requirement.specifier.contains(installed.base_version):
        return warning(
            check, f"{name} {version} comes before the release that is required ({wanted})", remedy
        )
    return failure(check, f"{name} {version} is installed, {wanted} is required", remedy)


def check_threads(context: Context) -> Iterator[Finding]:
    """Yield the line of cores: of the machine, those allowed, and the threads that torch takes."""
    machine, allowed, quota = os.cpu_count() or 1, affinity(), cgroup_quota(context.root)
    usable = usable_cpus(context.root)
    finding = f"{usable} of {machine} cores" if usable < machine else f"{usable} core{'s' * (usable > 1)}"
    if allowed < machine:
        finding += f", affinity allows {allowed}"
    if quota is not None:
        finding += f", the cgroup's quota {quota:g}"
    remedy = f"`export {OPENMP}={usable}`"
    wanted = context.environ.get(OPENMP, "")
    if wanted:
        finding += f", {OPENMP}={wanted}"
        if not wanted.split(",")[0].strip().isdecimal():
            yield warning("threads", f"{finding}: is not a number", f"{remedy}, or `unset {OPENMP}`")
            return
    torch = context.trial("torch")
    if torch.problem:
        yield ok("threads", finding)
        return
    threads = int(torch.values["threads"])
    finding += f", torch takes {threads} thread{'s' * (threads > 1)}"
    if threads > usable:
        yield warning("threads", f"{finding}: more than there are cores for", remedy)
    elif wanted and threads != int(wanted.split(",")[0]):
        yield warning("threads", f"{finding}: the two disagree", remedy)
    elif 2 * threads < usable:  # half is what torch takes where a core runs two threads
        yield warning("threads", f"{finding}: cores stay idle", remedy)
    else:
        yield ok("threads", finding)


def check_memory(context: Context) -> Iterator[Finding]:
    """Yield the line of free host memory, and one for an overcommit setting that refuses large mappings."""
    sizes = {}
    for line in context.read("proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if (words := rest.split()) and words[0].isdecimal():
            sizes[name] = int(words[0]) << 10  # the file says kB and means KiB
    free, total = free_host_bytes(), sizes.get("MemTotal")
    parts = [f"{amount(free)} free" + (f" of {amount(total)}" if total is not None else "")]
    memory_limits = limits(context.root, "memory", ("memory.max", "memory.limit_in_bytes"))
    limit = min((size for _, size in memory_limits), default=None)
    if limit is not None and (total is None or limit < total):
        parts.append(f"the cgroup's limit is {amount(limit)}")
    if "SwapTotal" in sizes:
        swap = sizes["SwapTotal"]
        parts.append(f"{amount(sizes.get('SwapFree', 0))} of {amount(swap)} swap free" if swap else "no swap")
    if "[never]" in context.read("sys/kernel/mm/transparent_hugepage/enabled"):
        parts.append("transparent huge pages off (madvise is faster)")
    finding, more = ", ".join(parts), "end other programs, or give the container more (`docker run --memory`)"
    if free < TOO_LITTLE_BYTES:
        yield failure("memory", f"{finding}: too little to import torch and train", more)
    elif free < LITTLE_BYTES:
        yield warning("memory", f"{finding}: enough for the smallest models only", more)
    else:
        yield ok("memory", finding)
    left = max(0, sizes.get("CommitLimit", 0) - sizes.get("Committed_AS", 0))
    if context.read("proc/sys/vm/overcommit_memory").strip() == "2" and left < free:
        yield warning(
            "memory",
            f"vm.overcommit_memory is 2: the kernel promises {amount(left)} more, though {amount(free)} are free",
            "`sudo sysctl vm.overcommit_memory=0`",
        )


def check_limits(context: Context) -> Iterator[Finding]:
    """Yield one line for each limit of a process that is too low, or one line if all are high enough."""
    found = list(_low_limits(context))
    yield from found
    if not found:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        finding = f"open files {_count(soft)} (at most {_count(hard)})"
        if locked != resource.RLIM_INFINITY:
            finding += f", memlock {amount(locked)} (does not bound pinned memory)"
        yield ok("limits", finding)


def _low_limits(context: Context) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        remedy = f"`ulimit -n {4096 if hard == resource.RLIM_INFINITY else min(4096, hard)}`"
        if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
            remedy = (
                "`nofile` in /etc/security/limits.conf, `LimitNOFILE=4096` of a service, or "
                "`docker run --ulimit nofile=4096`"
            )
        yield warning("limits", f"{soft:,} open files are few (at most {_count(hard)})", remedy)
    for folder, limit in limits(context.root, "pids", ("pids.max",)):
        used = number(folder / "pids.current") or 0
        if limit - used < FEWEST_THREADS:
            yield warning(
                "limits",
                f"the cgroup allows {limit:,} threads and processes, {used:,} exist: few are left for a run",
                "`docker run --pids-limit 4096`, or `TasksMax=4096` of the systemd unit",
            )
            break
    for name, kind, flag in (
        ("address space", resource.RLIMIT_AS, "-v"),
        ("the size of a file", resource.RLIMIT_FSIZE, "-f"),
    ):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield warning("limits", f"{name} is limited to {amount(soft)}", f"`ulimit {flag} unlimited`")


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def check_profile(context: Context) -> Iterator[Finding]:
    """Yield a line for each device and disk that `workbench probe` measured; a warning where the machine was busy.

    The kept files are read as plain TOML and JSON: their classes need packages that may be missing.
    """
    devices = list(_measured_devices(context.cache / "machines"))
    if not devices:
        yield ok("profile", "not measured yet: `workbench probe` does it in under a minute")
    for device, profile in devices:
        measured = f"{device}, measured {profile.get('measured_at', '')}"
        if not profile.get("busy_cores"):
            yield ok("profile", measured)
        else:
            yield warning(
                "profile",
                f"{measured} while other programs used {profile['busy_cores']} cores: plans are slower than runs",
                f"`workbench probe --device {device}`, while the machine is idle",
            )
    for folder in sorted(_measured_disks(context.cache / "disks")):
        yield ok("profile", f"disk {folder}, measured")


def _measured_devices(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from workbench.profiles.this_machine import machine_fingerprint  # needs pydantic, which may be missing

    for path in sorted(folder.glob("*.toml")):
        device = path.stem.replace("-", ":")
        with contextlib.suppress(OSError, ValueError, RecursionError):
            profile = tomllib.loads(path.read_text(encoding="utf-8"))
            if profile.get("fingerprint") == machine_fingerprint(device):
                yield device, profile


def _measured_disks(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the disk profiles by folder, those whose file system is still the one that was measured."""
    from workbench.profiles.this_machine import machine_fingerprint

    found = {}
    for path in folder.glob("*.json"):
        # ImportError: without psutil, as the packages' line says.
        with contextlib.suppress(OSError, ValueError, RecursionError, TypeError, KeyError, ImportError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            place = str(kept["disk"]["path"])
            if kept["stamp"] == " ".join((machine_fingerprint("cpu"), *mount_of(Path(place)))):
                found[place] = dict(kept["disk"])
    return found


def this_terminal() -> Terminal:
    """Return the terminal of standard output, else of standard error, else of standard input."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, lines = os.get_terminal_size(stream.fileno())
            return Terminal((columns, lines), encoding)
    return Terminal(None, encoding)


def check_terminal(context: Context) -> Iterator[Finding]:
    """Yield a line for each thing that hinders the screen, or one if nothing does. Runs need no terminal."""
    terminal, name = context.terminal, context.environ.get("TERM", "")
    if terminal.size is None:
        yield ok("terminal", "skipped (no standard stream is a terminal)")
        return
    columns, lines = terminal.size
    problems = []
    # A serial line reports 0 for a size that it does not know.
    if columns < SMALLEST_SCREEN[0] or lines < SMALLEST_SCREEN[1]:
        problems.append(
            warning(
                "terminal",
                f"{columns}x{lines} is too small for the screen, which needs {_size(SMALLEST_SCREEN)}",
                f"enlarge the window to {_size(RECOMMENDED_SCREEN)} or more; "
                "where it is larger already, `stty cols 80 rows 24`",
            )
        )
    if name in ("", "dumb", "unknown"):
        shown = f'TERM is "{name}"' if name else "TERM is not set"
        problems.append(warning("terminal", f"{shown}: nothing can be drawn", "`export TERM=xterm-256color`"))
    if terminal.encoding.lower().replace("-", "").replace("_", "") != "utf8":
        problems.append(
            warning(
                "terminal",
                f"the encoding is {terminal.encoding or 'unknown'}, not UTF-8, which charts need",
                "`export LANG=C.UTF-8`, and unset LC_ALL and PYTHONIOENCODING",
            )
        )
    yield from problems
    if not problems:
        small = columns < RECOMMENDED_SCREEN[0] or lines < RECOMMENDED_SCREEN[1]
        more = f" ({_size(RECOMMENDED_SCREEN)} shows more)" if small else ""
        yield ok("terminal", f"{columns}x{lines}{more}, UTF-8, TERM={name}, {_colours(context)}")


def _colours(context: Context) -> str:
    if context.environ.get("NO_COLOR"):
        return "no colours, by NO_COLOR"
    if context.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "all colours"
    return "256 colours" if "256" in context.environ.get("TERM", "") else "few colours"


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
