"""The disk tier: files of records that lanes read and write, with direct I/O where the file system takes it.

Not for what is kept beyond the engine's life: the files go with it, and a checkpoint is written elsewhere.

Invariant: a record's checksum is kept in memory from its write on and compared at every read; what the disk gives
back is what was written, or an error says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from workbench.engine.devices.buffers import page_aligned
from workbench.engine.stored_tensor import StoredTensor
from workbench.layout import PAGE_BYTES, padded
from workbench.system.files import crc32

LARGEST_CALL_BYTES = 64 << 20
PREFIX = "workbench-state-"
LOCK = "workbench.lock"
LONGEST_NAME = 120
SECONDS_A_DAY = 86_400.0
REFUSES_DIRECT = (errno.EINVAL, errno.ENOTSUP)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_UNWRITTEN, _UNFINISHED = -1, -2
"""In place of a checksum, which is never negative: no write was begun, or the last one did not come to its end."""


class DiskError(RuntimeError):
    """The disk has no room, gave something else than was written, or refused; the message names the file."""


class DiskTier:
    """The files of one engine, in a folder of their own under `folder`, which is made where it is not there.

    Files that ended processes left in `folder` are removed. Everything goes with `close`, or else with the last
    reference to the tier and its files, or the end of the process. `direct`: reads and writes go past the page cache.

    Raises:
        DiskError: the folder cannot be made, written or locked; nothing is left there.
    """

    def __init__(self, folder: Path) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._lock = threading.Lock()
        self._began: float | None = None
        self._numbers = itertools.count()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(folder)
            self.folder, held = _make_own(folder)
        except OSError as error:
            raise DiskError(
                f"{folder} cannot hold the disk tier ({_reason(error)}); name another disk_path"
            ) from error
        self._remove = weakref.finalize(self, _remove_own, self.folder, held, os.getpid())
        try:
            self.direct = _takes_direct(self.folder)
        except OSError as error:
            self.close()
            raise DiskError(
                f"{folder} cannot be written ({_reason(error)}); make room, or name another disk_path"
            ) from error

    def create(self, name: str, record_bytes: Sequence[int]) -> RecordFile:
        """Return a file of records of these lengths, allocated in full. Names need not be unique, nor fit for a file.

        Raises:
            DiskError: the disk has no room for it, and nothing of it is left; or the tier is closed.
        """
        if not self._remove.alive:
            raise DiskError(f"{self.folder}: {name} cannot be made: the disk tier is closed")
        safe = "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "_" for c in name)
        path = self.folder / f"{next(self._numbers):05d}-{safe[-LONGEST_NAME:]}"
        return RecordFile(self, path, name, tuple(record_bytes))

    def written_per_day(self) -> float:
        """Return the bytes a day at the rate since the first write, on which the life of a disk depends."""
        if self._began is None:
            return 0.0
        return self.bytes_written / max(time.monotonic() - self._began, 1e-9) * SECONDS_A_DAY

    def close(self) -> None:
        """Delete every file; idempotent. A forked child's call does nothing: the files are its parent's."""
        self._remove()

    def count_read(self, nbytes: int) -> None:
        """Add to the total."""
        with self._lock:
            self.bytes_read += nbytes

    def count_written(self, nbytes: int, began: float) -> None:
        """Add to the total what was written since `began` (time.monotonic())."""
        with self._lock:
            self.bytes_written += nbytes
            if self._began is None:
                self._began = began


class RecordFile:
    """Records of fixed lengths, each beginning at a page of the file. `nbytes`: what it takes of the disk.

    Different records may be read and written at the same time; what one thread writes while another reads or writes the
    same record is the callers' to order.
    """

    def __init__(self, tier: DiskTier, path: Path, name: str, record_bytes: tuple[int, ...]) -> None:
        self.name = name
        self.record_bytes = record_bytes
        self._tier = tier
        self._path = path
        self._starts = [0, *itertools.accumulate(padded(size) for size in record_bytes)]
        self.nbytes = self._starts[-1]
        self._checksums = [_UNWRITTEN] * len(record_bytes)
        self._allocate()

    def write(self, record: int, buffer: Tensor) -> None:
        """Write a record from `buffer`: 1-D, contiguous, on the CPU, page aligned, at least the record's pages long.

        Raises:
            ValueError: no such record, or not such a buffer.
            DiskError: the disk does not take it; what the record held before is lost.
        """
        began = time.monotonic()
        size, view = self._memory(record, buffer)
        checksum = crc32(view[:size])
        self._checksums[record] = _UNFINISHED
        with self._opened(record, "written") as descriptor:
            self._transfer(record, "written", view, lambda part, at: os.pwritev(descriptor, [part], at))
            if not self._tier.direct and len(view):
                # Only what has reached the disk can be dropped; and the disk's speed shows where it is waited for.
                os.fdatasync(descriptor)
                self._drop_cache(descriptor, record)
        self._checksums[record] = checksum
        self._tier.count_written(len(view), began)

    def read(self, record: int, buffer: Tensor) -> None:
        """Read a record into `buffer` (see `write`), padding included. One that was never written is zeros.

        Raises:
            ValueError: no such record, or not such a buffer.
            DiskError: the disk does not give it, or it is not what was written; `buffer` is to be taken for spoilt.
        """
        size, view = self._memory(record, buffer)
        checksum = self._checksums[record]
        if checksum == _UNWRITTEN:
            ctypes.memset(buffer.data_ptr(), 0, len(view))
            return
        if checksum == _UNFINISHED:
            raise DiskError(
                f"{self._path}: record {record} cannot be read: its last write failed; "
                "resume from the last checkpoint"
            )
        with self._opened(record, "read") as descriptor:
            self._transfer(record, "read", view, lambda part, at: os.preadv(descriptor, [part], at))
            if not self._tier.direct and len(view):
                self._drop_cache(descriptor, record)
        if crc32(view[:size]) != checksum:
            raise DiskError(
                f"{self._path}: record {record} is damaged: its checksum is not that of what was written; "
                "check the disk, and resume from the last checkpoint"
            )
        self._tier.count_read(len(view))

    def _allocate(self) -> None:
        """Take the file's room, through the page cache: where the system has to write for it, that is no direct I/O."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                if self.nbytes:
                    os.posix_fallocate(descriptor, 0, self.nbytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            free = shutil.disk_usage(self._tier.folder).free
            raise DiskError(
                f"{self._path}: {_size(self.nbytes)} cannot be allocated ({_reason(error)}; {_size(free)} are free); "
                "make room, or name another disk_path"
            ) from error

    def _memory(self, record: int, buffer: Tensor) -> tuple[int, memoryview]:
        """Check `buffer`; return a record's length and its pages of the buffer."""
        if not 0 <= record < len(self.record_bytes):
            raise ValueError(f"{self.name} has records 0 to {len(self.record_bytes) - 1}, and no {record}")
        size = self.record_bytes[record]
        length = padded(size)
        fits = buffer.device.type == "cpu" and buffer.dim() == 1 and buffer.is_contiguous()
        if not fits or buffer.nbytes < length or buffer.data_ptr() % PAGE_BYTES:
            raise ValueError(
                f"{self.name}: the buffer of record {record} must be 1-D and contiguous on the CPU, begin at a "
                f"multiple of {PAGE_BYTES:,} and hold {length:,} bytes"
            )
        return size, memoryview((ctypes.c_char * length).from_address(buffer.data_ptr())).cast("B")

    @contextlib.contextmanager
    def _opened(self, record: int, done: str) -> Iterator[int]:
        """Open a descriptor for one record's transfer; every refusal in it becomes a DiskError.

        Held no longer than that: a thousand files do not meet the limit of open files, and no close takes a descriptor
        from under a lane that is stuck.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | (os.O_DIRECT if self._tier.direct else 0))
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DiskError(
                f"{self._path}: record {record} could not be {done} ({_reason(error)}); {_advice(error)}"
            ) from error

    def _transfer(
        self, record: int, done: str, view: memoryview, call: Callable[[memoryview, int], int]
    ) -> None:
        """Move all of `view`, in calls that are not too large, going on where one came up short."""
        moved = 0
        while moved < len(view):
            part = view[moved : moved + LARGEST_CALL_BYTES]
            count = call(part, self._starts[record] + moved)
            # Direct I/O can only go on at a page.
            whole = count // PAGE_BYTES * PAGE_BYTES if self._tier.direct else count
            if whole == 0:
                raise DiskError(
                    f"{self._path}: record {record} could not be {done}: the disk stopped after {moved + count:,} of "
                    f"{len(view):,} bytes; check that nothing truncates the file, and resume from the last checkpoint"
                )
            moved += whole

    def _drop_cache(self, descriptor: int, record: int) -> None:
        """Take a record out of the page cache, which would hold it in the very memory that is to be saved."""
        start, stop = self._starts[record : record + 2]
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)


def _make_own(folder: Path) -> tuple[Path, int]:
    """Make a folder in `folder`; return it and the descriptor that holds its lock."""
    while True:
        own = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
        held = -1
        try:
            held = os.open(own / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)
            if os.fstat(held).st_nlink:
                return own, held
            os.close(held)
        except FileNotFoundError:
            pass
        except OSError:
            _remove_own(own, held, os.getpid())
            raise
        # Another process took it for a leftover before it was locked.


def _remove_own(folder: Path, held: int, process: int) -> None:
    if os.getpid() != process:
        return
    shutil.rmtree(folder, ignore_errors=True)
    if held >= 0:
        os.close(held)


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders whose lock nobody holds."""
    for left in sorted(folder.glob(f"{PREFIX}*")):
        try:
            descriptor = os.open(left / LOCK, os.O_RDWR)
        except FileNotFoundError:
            # Its process ended before it made the lock, or is about to: then it makes another folder.
            with contextlib.suppress(OSError):
                left.rmdir()
            continue
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock that was removed since it was opened guards nothing: there may be a new one.
            if os.fstat(descriptor).st_nlink:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _takes_direct(folder: Path) -> bool:
    """Return True where files in `folder` can be written past the page cache."""
    probe = folder / "probe"
    page = page_aligned(PAGE_BYTES)
    memory = (ctypes.c_char * PAGE_BYTES).from_address(page.data_ptr())
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            return os.pwritev(descriptor, [memory], 0) == PAGE_BYTES
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in REFUSES_DIRECT:
            return False
        raise
    finally:
        probe.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _advice(error: OSError) -> str:
    if error.errno in NO_ROOM:
        return "make room, and resume from the last checkpoint"
    if error.errno == errno.ENOENT:
        return "the engine was closed, or something else removed the file"
    return "check the disk, and resume from the last checkpoint"


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.2f} MiB"


class FiledTensor(StoredTensor):
    """1-D, `numel()` elements of `dtype`, in consecutive records of a file: (record, elements) in order.

    The last record that was touched stays in memory, so that going through in order reads each once.
    """

    def __init__(self, file: RecordFile, dtype: torch.dtype, records: Sequence[tuple[int, int]]) -> None:
        self.dtype = dtype
        self._file = file
        self._records = records
        self._held: tuple[int, Tensor] | None = None

    def numel(self) -> int:
        return sum(count for _, count in self._records)

    def read(self, start: int, stop: int) -> Tensor:
        out = torch.empty(stop - start, dtype=self.dtype)
        for record, count, begin, first, last in self._overlaps(start, stop):
            held = self._hold(record, count)
            out[first - start : last - start] = held[first - begin : last - begin]
        return out

    def write(self, start: int, values: Tensor) -> None:
        for record, count, begin, first, last in self._overlaps(start, start + values.numel()):
            whole = first == begin and last == begin + count
            held = self._blank(record, count) if whole else self._hold(record, count)
            held[first - begin : last - begin] = values[first - start : last - start]
            assert self._held is not None
            self._file.write(record, self._held[1])

    def _overlaps(self, start: int, stop: int) -> list[tuple[int, int, int, int, int]]:
        found = []
        begin = 0
        for record, count in self._records:
            first, last = max(start, begin), min(stop, begin + count)
            if first < last:
                found.append((record, count, begin, first, last))
            begin += count
        return found

    def _blank(self, record: int, count: int) -> Tensor:
        size = padded(count * self.dtype.itemsize)
        if self._held is None or self._held[1].numel() != size:
            self._held = None  # before the next is made: never two at a time
            self._held = (record, page_aligned(size))
        self._held = (record, self._held[1])
        return self._held[1].view(self.dtype)[:count]

    def _hold(self, record: int, count: int) -> Tensor:
        if self._held is not None and self._held[0] == record:
            return self._held[1].view(self.dtype)[:count]
        values = self._blank(record, count)
        assert self._held is not None
        self._file.read(record, self._held[1])
        return values
