"""Checks of the host: Python, packages, cores, memory, limits, folders, the cached machine profile, the terminal.

Packages are read from their metadata; none of them is imported. A folder that does not exist is judged by the one that
it would be made in. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import resource
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from workbench.doctor import Context, Finding, failure, ok, warning
from workbench.formatting import GIB, MIB, amount
from workbench.system.folders import cache_folder
from workbench.system.foreign import parse_json
from workbench.system.free_space import (
    IN_MEMORY,
    NOT_TOLD,
    free_host_bytes,
    host_memory,
    mount_of,
    nearest_folder,
)
from workbench.system.processor import affinity, cgroup_quota, limits, number, usable_cpus

TOO_LITTLE_BYTES, LITTLE_BYTES = 512 * MIB, 2 * GIB
"""Free host memory: torch alone takes the first, the smallest training less than the second."""
FEWEST_FILES, FEWEST_THREADS = 1024, 256
"""Open files; threads that a run and its libraries may start on a machine of many cores."""
LITTLE_ROOM, NO_ROOM = 10 * GIB, 256 * MIB
"""A checkpoint of a billion parameters takes about the first, the smallest run less than the second."""
SMALLEST_SCREEN, RECOMMENDED_SCREEN = (60, 16), (80, 24)
REMOTE = frozenset(
    "nfs nfs4 cifs smb3 9p fuse.sshfs ceph glusterfs fuse.glusterfs lustre afs".split()  # noqa: SIM905
)
PAGE_BYTES = 4096
PREFIX = ".workbench-doctor-"


def check_python(context: Context) -> Iterator[Finding]:
    """Yield the line of Python's version and environment; the installer has refused a Python that is too old."""
    if sys.prefix != sys.base_prefix:
        place = f"in the virtual environment {sys.prefix}"
    elif conda := os.environ.get("CONDA_PREFIX"):
        place = f"in the conda environment {conda}"
    else:
        place = f"in {sys.prefix}, not a virtual environment"
    yield ok("python", f"{platform.python_version()}, {place}")


def check_packages(context: Context) -> Iterator[Finding]:
    """Yield one line for each required package that is missing or too old, and one that lists the others."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    try:
        lines = metadata.requires("workbench") or []
    except metadata.PackageNotFoundError:
        yield warning(
            "packages",
            "the requirements of Workbench are not known: it is imported but not installed",
            "in the checkout, `python -m pip install --editable .`",
        )
        return
    right = []
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name
        remedy = f'`python -m pip install "{name}{requirement.specifier}"`'
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield failure("packages", f"{name} is not installed", remedy)
            continue
        # By its release: a container's own build of torch 2.11 calls itself 2.11.0a0+...
        if requirement.specifier.contains(Version(version).base_version):
            right.append(f"{name} {version}")
        else:
            wanted = f"{name}{requirement.specifier}"
            yield failure("packages", f"{name} {version} is installed, {wanted} is required", remedy)
    if right:
        yield ok("packages", ", ".join(right))


def check_threads(context: Context) -> Iterator[Finding]:
    """Yield the line of cores: of the machine, those allowed, and the threads that torch takes."""
    machine, allowed, quota, usable = os.cpu_count() or 1, affinity(), cgroup_quota(), usable_cpus()
    finding = f"{usable} of {machine} cores" if usable < machine else f"{usable} core{'s' * (usable > 1)}"
    if allowed < machine:
        finding += f", affinity allows {allowed}"
    if quota is not None:
        finding += f", the cgroup's quota {quota:g}"
    if wanted := os.environ.get("OMP_NUM_THREADS"):
        finding += f", OMP_NUM_THREADS={wanted}"
    torch = context.trial("torch")
    if torch.problem:
        yield ok("threads", finding)
        return
    threads = int(torch.values["threads"])
    finding += f", torch takes {threads} thread{'s' * (threads > 1)}"
    remedy = f"`export OMP_NUM_THREADS={usable}`"
    if threads > usable:
        yield warning("threads", f"{finding}: more than there are cores for", remedy)
    elif 2 * threads < usable:  # half is what torch takes where a core runs two threads
        yield warning("threads", f"{finding}: cores stay idle", remedy)
    else:
        yield ok("threads", finding)


def check_memory(context: Context) -> Iterator[Finding]:
    """Yield the line of free host memory, and one for an overcommit setting that refuses large mappings."""
    import psutil

    free, swap = free_host_bytes(), psutil.swap_memory()
    _, total = host_memory()
    parts = [f"{amount(free)} free of {amount(total)}"]
    memory_limits = limits(Path("/"), "memory", ("memory.max", "memory.limit_in_bytes"))
    limit = min((size for _, size in memory_limits), default=total)
    if limit < total:
        parts.append(f"the cgroup's limit is {amount(limit)}")
    parts.append(f"{amount(swap.free)} of {amount(swap.total)} swap free" if swap.total else "no swap")
    if "[never]" in _read("/sys/kernel/mm/transparent_hugepage/enabled"):
        parts.append("transparent huge pages off (madvise is faster)")
    finding, more = ", ".join(parts), "end other programs, or give the container more (`docker run --memory`)"
    if free < TOO_LITTLE_BYTES:
        yield failure("memory", f"{finding}: too little to import torch and train", more)
    elif free < LITTLE_BYTES:
        yield warning("memory", f"{finding}: enough for the smallest models only", more)
    else:
        yield ok("memory", finding)
    if _read("/proc/sys/vm/overcommit_memory").strip() == "2":
        yield warning(
            "memory",
            "vm.overcommit_memory is 2: the kernel may refuse memory that is free",
            "`sudo sysctl vm.overcommit_memory=0`",
        )
    nodes = _read("/sys/devices/system/node/has_memory").strip()
    # The second word of each line is the policy that this process was started with.
    interleaved = any(
        line.split()[1].startswith("interleave") for line in _read("/proc/self/numa_maps").splitlines()
    )
    if nodes.strip("0123456789") and not interleaved:
        yield warning(
            "memory",
            f"memory nodes {nodes}: pinned memory and a resumed run's state are on one of them",
            "start with `numactl --interleave=all workbench run PRESET`",
        )


def _read(path: str) -> str:
    """Return the text of a file; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def check_limits(context: Context) -> Iterator[Finding]:
    """Yield one line for each limit of a process that is too low, or one line if all are high enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = []
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        most = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
        remedy = f"`ulimit -n {most}`"
        if most < FEWEST_FILES:
            remedy = "`nofile` in /etc/security/limits.conf, or `docker run --ulimit nofile=4096`"
        found.append(warning("limits", f"{soft:,} open files are few (at most {_count(hard)})", remedy))
    for folder, limit in limits(Path("/"), "pids", ("pids.max",)):
        used = number(folder / "pids.current") or 0
        if limit - used < FEWEST_THREADS:
            finding = (
                f"the cgroup allows {limit:,} threads and processes, {used:,} exist: few are left for a run"
            )
            remedy = "`docker run --pids-limit 4096`, or `TasksMax=4096` of the systemd unit"
            found.append(warning("limits", finding, remedy))
            break
    for name, kind, flag in (
        ("address space", resource.RLIMIT_AS, "-v"),
        ("the size of a file", resource.RLIMIT_FSIZE, "-f"),
    ):
        size, _ = resource.getrlimit(kind)
        if size != resource.RLIM_INFINITY:
            found.append(
                warning("limits", f"{name} is limited to {amount(size)}", f"`ulimit {flag} unlimited`")
            )
    yield from found or [ok("limits", f"open files {_count(soft)} (at most {_count(hard)})")]


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


# Folders


@dataclass(frozen=True)
class Folder:
    """A folder after a trial. `there`: it exists. `problem`: why it cannot be written. `kind`: its file system."""

    path: Path
    there: bool
    problem: str
    free_bytes: int
    kind: str

    def __str__(self) -> str:
        made = "" if self.there else " (made by the first run)"
        return f"{self.path}{made}, {amount(self.free_bytes)} free{f', {self.kind}' if self.kind else ''}"


def try_folder(path: Path) -> Folder:
    """Write a file in `path`, or in the folder that it would be made in, and remove it."""
    path = path.absolute()
    nearest = nearest_folder(path)
    problem = ""
    try:
        with tempfile.NamedTemporaryFile(prefix=PREFIX, dir=nearest) as file:
            file.write(bytes(PAGE_BYTES))
            file.flush()
    except OSError as error:
        problem = f"{path}: nothing can be written in {nearest} ({error.strerror or error})"
    kind = ""
    with contextlib.suppress(ImportError):  # without psutil, as the packages' line says
        kind = mount_of(nearest).kind.replace(NOT_TOLD, "")
    return Folder(path, nearest == path, problem, shutil.disk_usage(nearest).free, kind)


def check_runs(context: Context) -> Iterator[Finding]:
    """Yield the line of the folder for runs and their checkpoints."""
    folder = try_folder(context.runs)
    remedy = (
        "`--runs DIR`, or `export WORKBENCH_RUNS=DIR`, with DIR on a local disk with room that you may write"
    )
    if folder.problem:
        yield failure("runs", folder.problem, remedy)
    elif folder.free_bytes < NO_ROOM:
        yield failure("runs", f"{folder}: no room for checkpoints", remedy)
    elif folder.kind in IN_MEMORY:
        yield warning("runs", f"{folder}: is in host memory and is lost at the next reboot", remedy)
    elif folder.kind in REMOTE:
        yield warning("runs", f"{folder}: checkpoints go over the network", remedy)
    elif folder.free_bytes < LITTLE_ROOM:
        yield warning("runs", f"{folder}: little room for checkpoints", remedy)
    else:
        yield ok("runs", str(folder))


def check_disk(context: Context) -> Iterator[Finding]:
    """Yield the line of the folder for the disk tier, where one was named."""
    path = context.disk
    if path is None:
        return
    folder = try_folder(path)
    wrong = ""
    if folder.kind in IN_MEMORY:
        wrong = "is in host memory: offloading to it saves no memory"
    elif folder.kind in REMOTE:
        wrong = "is on a network file system: every step waits for it"
    elif folder.free_bytes < LITTLE_ROOM:
        wrong = "little room for state"
    elif folder.there and not folder.problem and not takes_direct(path):
        wrong = "does not support direct I/O: everything goes through the page cache"
    remedy = (
        "`--set offload.disk_path=DIR`, with DIR on a fast local disk (NVMe, ext4 or xfs) that you may write"
    )
    if folder.problem:
        yield failure("disk tier", folder.problem, remedy)
    elif not folder.there:
        yield failure("disk tier", f"{path}: there is no such folder", f"`mkdir -p {shlex.quote(str(path))}`")
    elif wrong:
        yield warning("disk tier", f"{folder}: {wrong}", remedy)
    else:
        yield ok("disk tier", f"{folder}, direct I/O works")


def takes_direct(folder: Path) -> bool:
    """Return True where a file in `folder` can be written past the page cache. Raises OSError where not at all."""
    with (
        tempfile.NamedTemporaryFile(prefix=PREFIX, dir=folder) as file,
        mmap.mmap(-1, PAGE_BYTES) as page,
        contextlib.ExitStack() as opened,
    ):
        try:
            descriptor = os.open(file.name, os.O_RDWR | os.O_DIRECT)
            opened.callback(os.close, descriptor)
            return os.pwritev(descriptor, [page], 0) == PAGE_BYTES
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP):
                return False
            raise


def check_cache(context: Context) -> Iterator[Finding]:
    """Yield the line of the cache, which holds measurements; without it they are repeated."""
    folder = try_folder(cache_folder())
    if folder.problem:
        finding = f"{folder.problem}: measurements are repeated each time"
        remedy = "`export WORKBENCH_CACHE=DIR`, with DIR a folder that you may write"
        yield warning("cache", finding, remedy)
    else:
        yield ok("cache", str(folder.path))


def check_profile(context: Context) -> Iterator[Finding]:
    """Yield a line for each device and disk that `workbench probe` measured; a warning where the machine was busy."""
    from workbench.profiles.this_machine import cached_profile  # needs pydantic, which may be missing

    devices = []
    for path in sorted((cache_folder() / "machines").glob("*.toml")):
        device = path.stem.replace("-", ":")
        profile = cached_profile(device)
        if profile is None:
            continue
        devices.append(device)
        measured = f"{device}, measured {profile.measured_at}"
        if profile.busy_cores:
            finding = (
                f"{measured} while other programs used {profile.busy_cores} cores: plans are slower than runs"
            )
            remedy = f"`workbench probe --device {device}`, while the machine is idle"
            yield warning("profile", finding, remedy)
        else:
            yield ok("profile", measured)
    if not devices:
        yield ok("profile", "not measured yet: `workbench probe` does it in under a minute")
        return
    for path in sorted((cache_folder() / "disks").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            folder = str(parse_json(path.read_bytes())["disk"]["path"])
            profile = cached_profile(devices[0], folder)
            if profile is not None and profile.disk is not None:
                yield ok("profile", f"disk {folder}, measured")


# The terminal


def terminal_size() -> tuple[int, int] | None:
    """Return the columns and lines of the terminal of stdout, stderr or stdin; None where none of them is one."""
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, lines = os.get_terminal_size(stream.fileno())
            return columns, lines
    return None


def check_terminal(context: Context) -> Iterator[Finding]:
    """Yield a line for each thing that hinders the screen, or one if nothing does. Runs need no terminal."""
    size, name = terminal_size(), os.environ.get("TERM", "")
    if size is None:
        yield ok("terminal", "skipped (no standard stream is a terminal)")
        return
    shape, small, enough = ("x".join(map(str, each)) for each in (size, SMALLEST_SCREEN, RECOMMENDED_SCREEN))
    problems = []
    # A serial line reports 0 for a size that it does not know.
    if size[0] < SMALLEST_SCREEN[0] or size[1] < SMALLEST_SCREEN[1]:
        finding = f"{shape} is too small for the screen, which needs {small}"
        remedy = f"enlarge the window to {enough} or more; where it is larger already, `stty cols 80 rows 24`"
        problems.append(warning("terminal", finding, remedy))
    if name in ("", "dumb", "unknown"):
        shown = f'TERM is "{name}"' if name else "TERM is not set"
        problems.append(warning("terminal", f"{shown}: nothing can be drawn", "`export TERM=xterm-256color`"))
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    if encoding.lower().replace("-", "").replace("_", "") != "utf8":
        finding = f"the encoding is {encoding}, not UTF-8, which charts need"
        remedy = "`export LANG=C.UTF-8`, and unset LC_ALL and PYTHONIOENCODING"
        problems.append(warning("terminal", finding, remedy))
    is_small = size[0] < RECOMMENDED_SCREEN[0] or size[1] < RECOMMENDED_SCREEN[1]
    more = f" ({enough} shows more)" if is_small else ""
    yield from problems or [ok("terminal", f"{shape}{more}, UTF-8, TERM={name}, {_colours(name)}")]


def _colours(name: str) -> str:
    if os.environ.get("NO_COLOR"):
        return "no colours (NO_COLOR is set)"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "all colours"
    return "256 colours" if "256" in name else "few colours"
