"""A file that is written from its beginning to its end past the page cache, where the file system lets it.

Writing through the page cache copies the data, evicts other data, and reaches a fast disk at a fifth of its speed.
Direct writes need memory, offsets and lengths in whole blocks: aligned data is written from its place, the rest goes
through two buffers, of which one is written while the other is filled.

Invariant: when `close` returns, every byte is on the disk; otherwise it raises an OSError.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

PAGE = 4096
BUFFER_BYTES = 8 << 20
MEMORY_ALIGNMENT = 512
"""The alignment of memory that most drivers need; where one refuses it, whole pages are used."""
REFUSES_DIRECT = (errno.EINVAL, errno.ENOTSUP)
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectFile:
    """A new file at `path`; one that is there is replaced. Raises OSError where the disk does not take it."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._direct = bool(_DIRECT)
        try:
            self._descriptor = os.open(path, flags | _DIRECT, 0o666)
        except OSError as error:
            if error.errno not in REFUSES_DIRECT:
                raise
            self._direct = False
            self._descriptor = os.open(path, flags, 0o666)
        self._buffers: list[Tensor] = []
        self._filled = 0
        self._end = 0
        """The offset of the next write; the buffer's contents follow there."""
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[bool] | None = None
        self._aligned = MEMORY_ALIGNMENT

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._abandon()

    def write(self, tensor: Tensor) -> None:
        """Append the bytes of a contiguous tensor on the CPU; it is not kept."""
        flat = tensor.reshape(-1).view(torch.uint8)
        at = 0
        while at < flat.numel():
            rest = flat.numel() - at
            whole = rest - rest % PAGE
            if not self._filled and whole and (flat.data_ptr() + at) % self._aligned == 0:
                self._wait()
                if self._write_all(flat[at : at + whole], self._end):
                    self._end += whole
                    at += whole
                    continue
            buffer = self._buffer()
            count = min(rest, buffer.numel() - self._filled)
            buffer[self._filled : self._filled + count].copy_(flat[at : at + count])
            self._filled += count
            at += count
            if self._filled == buffer.numel():
                self._write_behind()

    def close(self, beginning: bytes = b"") -> None:
        """Write the rest, and `beginning` over the file's first bytes, and wait until the disk has it all."""
        try:
            self._wait()
            if self._direct:
                # The last page is not a whole one.
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
                self._direct = False
            if self._filled:
                self._write_all(self._buffers[0][: self._filled], self._end)
            if beginning:
                self._write_all(torch.frombuffer(bytearray(beginning), dtype=torch.uint8), 0)
            os.fsync(self._descriptor)
        finally:
            self._abandon()

    def _buffer(self) -> Tensor:
        if not self._buffers:
            self._buffers = [
                torch.frombuffer(mmap.mmap(-1, BUFFER_BYTES), dtype=torch.uint8) for _ in range(2)
            ]
        return self._buffers[0]

    def _write_behind(self) -> None:
        """Write the buffer, which is full, while the other is filled."""
        self._wait()
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "write-behind")
        self._writing = self._writer.submit(self._write_all, self._buffers[0], self._end)
        self._end += self._filled
        self._filled = 0
        self._buffers.reverse()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_all(self, flat: Tensor, at: int) -> bool:
        """Write `flat` at the offset `at`; return False, with nothing written, where it is not aligned enough."""
        view = flat.numpy().data
        done = 0
        while done < len(view):
            try:
                done += os.pwrite(self._descriptor, view[done:], at + done)
            except OSError as error:
                if not self._direct or error.errno not in REFUSES_DIRECT:
                    raise
                if not done and flat.data_ptr() % PAGE:
                    self._aligned = PAGE
                    return False
                # Some file systems open a file with O_DIRECT and then refuse to write it.
                self._direct = False
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
        return True

    def _abandon(self) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True, cancel_futures=True)
            self._writer = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._buffers = []
