"""The disk tier: files of records that lanes read and write, with direct I/O where the file system takes it.

Invariant: a record's checksum is kept in memory from its write on and compared at every read; what the disk gives back is
what was written, or an error says so.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

PAGE_BYTES = 4096
LARGEST_CALL_BYTES = 64 << 20
PREFIX = "workbench-state-"
LOCK = "lock"
SECONDS_A_DAY = 86_400.0
REFUSES_DIRECT = (errno.EINVAL, errno.ENOTSUP)


class DiskError(RuntimeError):
    """The disk has no room, gave something else than was written, or refused; the message names the file."""


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def page_aligned(nbytes: int) -> Tensor:
    """Zeroed memory of its own pages: uint8, 1-D, `padded(nbytes)` long; it goes back to the system when freed."""
    size = padded(nbytes)
    return (
        torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        if size
        else torch.empty(0, dtype=torch.uint8)
    )


class DiskTier:
    """The files of one engine, in a folder of their own under `folder`.

    Files that processes left there which are gone now are removed.

    Raises:
        DiskError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self._files: list[RecordFile] = []
        self._lock = threading.Lock()
        self._began: float | None = None
        self._numbers = itertools.count()
        self.bytes_read = 0
        self.bytes_written = 0
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(folder)
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
            self._held = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._held, fcntl.LOCK_EX)
        except OSError as error:
            raise DiskError(f"{folder} cannot hold the disk tier: {error.strerror or error}") from error
        self.direct = self._takes_direct()

    def require(self, nbytes: int) -> None:
        """Raises DiskError where less than `nbytes` is free."""
        free = shutil.disk_usage(self.folder).free
        if free < nbytes:
            raise DiskError(
                f"{self.folder.parent}: the disk tier needs {nbytes / 2**30:,.2f} GiB and the disk has "
                f"{free / 2**30:,.2f} GiB free; make room, or name another disk_path"
            )

    def create(self, name: str, record_bytes: Sequence[int]) -> RecordFile:
        """A file of records of these lengths, allocated in full.

        Raises:
            DiskError: the disk has no room for it; nothing of it is left.
        """
        # Parameter names may hold what a file name may not, and two may be alike but for that.
        safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in name)[-120:]
        path = self.folder / f"{next(self._numbers):05d}-{safe}"
        file = RecordFile(self, path, name, tuple(record_bytes))
        with self._lock:
            self._files.append(file)
        return file

    def written_per_day(self) -> float:
        """Bytes a day at the rate since the first write: what decides how long a disk endures."""
        if self._began is None:
            return 0.0
        return self.bytes_written / max(time.monotonic() - self._began, 1e-9) * SECONDS_A_DAY

    def close(self) -> None:
        """Close and delete every file; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for file in self._files:
                file.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._held)

    def count(self, *, read: int = 0, written: int = 0) -> None:
        """Add to the totals."""
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written
            if written and self._began is None:
                self._began = time.monotonic()

    def _takes_direct(self) -> bool:
        probe = self.folder / "probe"
        page = page_aligned(PAGE_BYTES)
        try:
            descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError:
            return False
        try:
            os.pwrite(descriptor, _memory(page, PAGE_BYTES), 0)
            return True
        except OSError as error:
            if error.errno in REFUSES_DIRECT:
                return False
            raise DiskError(f"{self.folder} cannot be written: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)


class RecordFile:
    """Records of fixed lengths, each beginning at a page of the file. `nbytes`: what it takes of the disk."""

    def __init__(self, tier: DiskTier, path: Path, name: str, record_bytes: tuple[int, ...]) -> None:
        self.name = name
        self.record_bytes = record_bytes
        self._tier = tier
        self._path = path
        self._starts = [0, *itertools.accumulate(padded(size) for size in record_bytes)]
        self.nbytes = self._starts[-1]
        self._checksums: list[int | None] = [None] * len(record_bytes)
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if tier.direct else 0)
        try:
            self._descriptor = os.open(path, flags, 0o600)
            if self.nbytes:
                os.posix_fallocate(self._descriptor, 0, self.nbytes)
        except OSError as error:
            self.close()
            path.unlink(missing_ok=True)
            free = shutil.disk_usage(path.parent).free
            raise DiskError(
                f"{name}: {self.nbytes / 2**30:,.2f} GiB cannot be allocated in {path.parent} "
                f"({error.strerror or error}; {free / 2**30:,.2f} GiB are free): make room, or name another disk_path"
            ) from error

    def write(self, record: int, buffer: Tensor) -> None:
        """Write a record from `buffer`: 1-D, on the CPU, page aligned, at least the record's pages long.

        Raises:
            DiskError: the disk does not take it.
        """
        size = self._check(record, buffer)
        view = _memory(buffer, padded(size))
        self._checksums[record] = zlib.crc32(view[:size])
        start = self._starts[record]
        done = 0
        while done < len(view):
            part = view[done : done + LARGEST_CALL_BYTES]
            try:
                count = os.pwritev(self._descriptor, [part], start + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise DiskError(
                    f"{self._path}: record {record} could not be written ({error.strerror or error})"
                ) from error
            if count <= 0:
                raise DiskError(
                    f"{self._path}: record {record} could not be written: the disk took {done:,} bytes"
                )
            # A short write of direct I/O goes on at a page.
            done += count if count == len(part) or not self._tier.direct else count // PAGE_BYTES * PAGE_BYTES
            if count < PAGE_BYTES and count < len(part) and self._tier.direct:
                raise DiskError(f"{self._path}: record {record} was written short, {count:,} bytes at a time")
        if not self._tier.direct:
            os.posix_fadvise(self._descriptor, start, len(view), os.POSIX_FADV_DONTNEED)
        self._tier.count(written=len(view))

    def read(self, record: int, buffer: Tensor) -> None:
        """Read a record into `buffer` (see `write`). One that was never written is zeros.

        Raises:
            DiskError: the disk does not give it, or it is not what was written.
        """
        size = self._check(record, buffer)
        view = _memory(buffer, padded(size))
        checksum = self._checksums[record]
        if checksum is None:
            ctypes.memset(buffer.data_ptr(), 0, len(view))
            return
        start = self._starts[record]
        done = 0
        while done < len(view):
            part = view[done : done + LARGEST_CALL_BYTES]
            try:
                count = os.preadv(self._descriptor, [part], start + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise DiskError(
                    f"{self._path}: record {record} could not be read ({error.strerror or error})"
                ) from error
            whole = count if count == len(part) or not self._tier.direct else count // PAGE_BYTES * PAGE_BYTES
            if whole <= 0:
                raise DiskError(
                    f"{self._path}: record {record} ends after {done + max(count, 0):,} of {len(view):,} bytes"
                )
            done += whole
        if zlib.crc32(view[:size]) != checksum:
            raise DiskError(
                f"{self._path}: record {record} is damaged: its checksum is not that of what was written"
            )
        self._tier.count(read=len(view))

    def close(self) -> None:
        """Close the file; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _check(self, record: int, buffer: Tensor) -> int:
        size = self.record_bytes[record]
        if buffer.nbytes < padded(size) or buffer.data_ptr() % PAGE_BYTES:
            raise ValueError(
                f"{self.name}: the buffer of record {record} must begin at a page and hold {padded(size):,} bytes"
            )
        return size


def _memory(tensor: Tensor, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B")


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(left / LOCK, os.O_RDWR)
        except OSError:
            continue  # just being made by another process, or not ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # its process lives
        finally:
            os.close(descriptor)
