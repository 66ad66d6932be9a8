"""Checks of the folders for runs, the disk tier and the cache: writable, with room, on a local disk.

A folder that does not exist is judged by the one that it would be made in. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.doctor.findings import Context, Finding, failure, ok, warning
from workbench.formatting import amount
from workbench.system.free_space import IN_MEMORY, NOT_TOLD, mount_of

REMOTE = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "fuse.sshfs",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
    "lustre",
    "afs",
)
LITTLE_ROOM, NO_ROOM = 10 << 30, 256 << 20
"""Bytes: a checkpoint of a billion parameters takes about the first, the smallest run less than the second."""
PAGE_BYTES = 4096
PREFIX = ".workbench-doctor-"


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


def check_runs(context: Context) -> Iterator[Finding]:
    """Yield the line of the folder for runs and their checkpoints."""
    folder = try_folder(context.runs)
    elsewhere = "`--runs DIR`, or `export WORKBENCH_RUNS=DIR`, with DIR"
    if folder.problem:
        yield failure("runs", folder.problem, f"{elsewhere} a folder that you may write")
    elif folder.free_bytes < NO_ROOM:
        yield failure(
            "runs", f"{folder}: no room for checkpoints", f"make room, or {elsewhere} on a larger disk"
        )
    elif folder.kind in IN_MEMORY:
        yield warning(
            "runs",
            f"{folder}: is host memory and goes with the next reboot",
            f"{elsewhere} on a disk that lasts",
        )
    elif folder.kind in REMOTE:
        yield warning("runs", f"{folder}: checkpoints cross the network", f"{elsewhere} on a local disk")
    elif folder.free_bytes < LITTLE_ROOM:
        yield warning(
            "runs", f"{folder}: little room for checkpoints", f"make room, or {elsewhere} on a larger disk"
        )
    else:
        yield ok("runs", str(folder))


def check_disk(context: Context) -> Iterator[Finding]:
    """Yield the line of the folder for the disk tier, where one was named."""
    path = context.disk
    if path is None:
        return
    elsewhere = "`--set offload.disk_path=DIR`, with DIR"
    folder = try_folder(path)
    if not folder.there and not folder.problem:
        yield failure("disk tier", f"{path}: there is no such folder", f"`mkdir -p {shlex.quote(str(path))}`")
        return
    if folder.problem:
        yield failure(
            "disk tier", folder.problem, f"{elsewhere} a folder that you may write, on a fast local disk"
        )
        return
    poor = {
        **dict.fromkeys(
            IN_MEMORY, "is host memory and no disk: what moves there takes the memory that it is to save"
        ),
        **dict.fromkeys(REMOTE, "lies across a network: every step waits for it"),
    }.get(folder.kind)
    if poor is not None:
        yield warning("disk tier", f"{folder}: {poor}", f"{elsewhere} on a fast local disk (NVMe)")
    elif not takes_direct(path):
        yield warning(
            "disk tier",
            f"{folder}: takes no direct I/O, so that everything passes through the page cache",
            f"{elsewhere} on ext4 or xfs on a local disk",
        )
    elif folder.free_bytes < LITTLE_ROOM:
        yield warning(
            "disk tier", f"{folder}: little room for state", f"make room, or {elsewhere} on a larger disk"
        )
    else:
        yield ok("disk tier", f"{folder}, direct I/O works")


def check_cache(context: Context) -> Iterator[Finding]:
    """Yield the line of the cache, which holds measurements; without it they are repeated."""
    folder = try_folder(context.cache)
    if folder.problem:
        yield warning(
            "cache",
            f"{folder.problem}: what is measured is measured again each time",
            "`export WORKBENCH_CACHE=DIR`, with DIR a folder that you may write",
        )
    else:
        yield ok("cache", str(folder.path))


def try_folder(path: Path) -> Folder:
    """Write a file in `path`, or in the folder that it would be made in, and remove it."""
    path = path.absolute()
    folders = (path, *path.parents)
    nearest = next(each for each in folders if os.path.lexists(each) or each == each.parent)
    there = nearest == path
    where = str(path) if there else f"{path} cannot be made in {nearest}"
    if not _exists(nearest):
        return Folder(path, False, f"{nearest} is a link that leads nowhere", 0, "")
    if not nearest.is_dir():
        return Folder(path, there, f"{nearest} is not a folder", 0, "")
    problem = ""
    try:
        with tempfile.NamedTemporaryFile(prefix=PREFIX, dir=nearest) as file:
            file.write(bytes(PAGE_BYTES))
            file.flush()
    except OSError as error:
        problem = f"{where}: nothing can be written ({error.strerror or error})"
    return Folder(path, there, problem, shutil.disk_usage(nearest).free, file_system(nearest))


def _exists(path: Path) -> bool:
    """Return False also where this user has no access."""
    try:
        return path.exists()
    except OSError:
        return False


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`; empty where it is not known."""
    try:
        kind = mount_of(folder).kind
    except ImportError:  # without psutil, as the packages' line says
        return ""
    return "" if kind == NOT_TOLD else kind


def takes_direct(folder: Path) -> bool:
    """Return True where a file in `folder` can be written past the page cache. Raises OSError where not at all."""
    page = mmap.mmap(-1, PAGE_BYTES)
    descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
    try:
        os.close(descriptor)
        descriptor = os.open(name, os.O_RDWR | os.O_DIRECT)
        try:
            return os.pwritev(descriptor, [page], 0) == PAGE_BYTES
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            return False
        raise
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        page.close()
