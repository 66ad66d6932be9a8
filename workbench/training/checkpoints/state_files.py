"""Tensors as raw little-endian files: written and read straight from and into where they live, with a checksum.

Whatever the tensor's size, at most one piece of it is held a second time, and only where it is not in host memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from workbench.engine.stored_tensor import SharedTensor, StoredTensor
from workbench.model.direct_file import DirectFile
from workbench.runs.checkpoints import DamagedFileError
from workbench.system.files import crc32, crc32_combine
from workbench.system.processor import usable_cpus

assert sys.byteorder == "little", "raw state files are little-endian, as this machine is not"

PIECE_BYTES = 16 << 20
FEWEST_AT_ONCE, MOST_AT_ONCE = 3, 8
"""Files written or read at once: one for each core, and more than cores where there are two: they take turns."""


Parts = list[list[int]]
"""A rank's parts of a file: where each begins, its bytes and their CRC-32."""


def write_tensor(path: Path, tensor: Tensor | StoredTensor) -> int:
    """Write a 1-D contiguous tensor's bytes to `path`, durably; return their CRC-32."""
    checksum = 0
    with DirectFile(path) as file:
        for start, stop in _pieces(tensor):
            piece = tensor[start:stop].cpu() if isinstance(tensor, Tensor) else tensor.read(start, stop)
            checksum = crc32(_bytes_of(piece), checksum)
            file.write(piece)
    return checksum


def write_tensors(
    folder: Path, tensors: Iterable[tuple[str, Tensor | StoredTensor]], beside: Callable[[], None]
) -> dict[str, int]:
    """Write `tensors` into files of their names, durably, and call `beside` meanwhile; return their CRC-32 by name.

    Several are written at once, so that the disk never waits for a checksum; those that are in no memory one after
    another, since each holds a piece of itself.

    Raises:
        OSError: the disk does not take them. Nothing is being written any more.
    """
    with _at_once("write-state") as pool:
        jobs: dict[str, Future[int] | int] = {}
        try:
            for name, tensor in tensors:
                path = folder / name
                in_memory = isinstance(tensor, Tensor)
                jobs[name] = (
                    pool.submit(write_tensor, path, tensor) if in_memory else write_tensor(path, tensor)
                )
            beside()
            return {name: job if isinstance(job, int) else job.result() for name, job in jobs.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write_parts(folder: Path, tensors: Iterable[tuple[str, Tensor | StoredTensor]]) -> dict[str, Parts]:
    """Write this rank's parts of `tensors` into the files that all ranks share, durably. Return of each file the parts:
    where they begin, their bytes and their CRC-32.

    Raises:
        OSError: the disk does not take them.
    """
    written: dict[str, Parts] = {}
    for name, tensor in tensors:
        assert isinstance(tensor, SharedTensor), "ranks share the state"
        file = name.replace("/", ".")
        written[file] = []
        number = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            item = tensor.element_size()
            for start, count, _ in tensor.parts:
                checksum = 0
                for first in range(start, start + count, PIECE_BYTES // item):
                    piece = tensor.read(first, min(first + PIECE_BYTES // item, start + count))
                    view = _bytes_of(piece)
                    checksum = crc32(view, checksum)
                    done = 0
                    while done < len(view):
                        done += os.pwrite(number, view[done:], first * item + done)
                written[file].append([start * item, count * item, checksum])
            os.fsync(number)
        finally:
            os.close(number)
    return written


def read_parts(tensors: Iterable[tuple[Path, Tensor | StoredTensor]]) -> dict[str, Parts]:
    """Fill this rank's parts of tensors with what was saved of them, and read nothing else; return what `write_parts`
    does. Whether a file is what was saved, `whole` of all ranks' parts says.

    Raises:
        DamagedFileError: a file is missing or of another length.
    """
    found: dict[str, Parts] = {}
    for path, tensor in tensors:
        assert isinstance(tensor, SharedTensor), "ranks share the state"
        found[path.name] = []
        item = tensor.element_size()
        try:
            with path.open("rb", buffering=0) as file:
                _check_size(path, file, tensor)
                for start, count, _ in tensor.parts:
                    checksum = 0
                    file.seek(start * item)
                    for first in range(start, start + count, PIECE_BYTES // item):
                        elements = min(PIECE_BYTES // item, start + count - first)
                        piece = torch.empty(elements, dtype=tensor.dtype)
                        checksum = _fill(path, file, piece, checksum)
                        tensor.write(first, piece)
                    found[path.name].append([start * item, count * item, checksum])
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    return found


def whole(parts: Iterable[Parts]) -> tuple[int, int]:
    """Return CRC-32 and bytes of the file whose parts, which have no gap, the ranks have."""
    checksum = known = 0
    for start, nbytes, crc in sorted(part for rank in parts for part in rank):
        assert start == known, "every byte is one rank's"
        checksum, known = crc32_combine(checksum, crc, nbytes), start + nbytes
    return checksum, known


def check_checksum(path: Path, found: int, checksum: int) -> None:
    """Raise DamagedFileError where a file's checksum is not `checksum`."""
    if found != checksum:
        raise DamagedFileError(f"{path} is damaged: its checksum is {found:08x} instead of {checksum:08x}")


def read_tensors(tensors: Iterable[tuple[Path, Tensor | StoredTensor, int]]) -> None:
    """Fill tensors with what `write_tensors` wrote: (file, tensor, CRC-32) of each, several at once.

    Raises:
        DamagedFileError: as `read_tensor` does. Nothing is being read any more.
    """
    with _at_once("read-state") as pool:
        jobs: list[Future[None]] = []
        try:
            for path, tensor, checksum in tensors:
                if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                    jobs.append(pool.submit(read_tensor, path, tensor, checksum))
                else:
                    read_tensor(path, tensor, checksum)
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def read_tensor(path: Path, tensor: Tensor | StoredTensor, checksum: int) -> None:
    """Fill a 1-D contiguous tensor with what `write_tensor` wrote.

    Raises:
        DamagedFileError: the file is missing, of another length, or its checksum is not `checksum`. The tensor then
            holds what could be read.
    """
    seen = 0
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        _check_size(path, file, tensor)
        for start, stop in _pieces(tensor):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                seen = _fill(path, file, tensor[start:stop], seen)
                continue
            piece = torch.empty(stop - start, dtype=tensor.dtype)
            seen = _fill(path, file, piece, seen)
            if isinstance(tensor, Tensor):
                tensor[start:stop] = piece
            else:
                tensor.write(start, piece)
    check_checksum(path, seen, checksum)


def _check_size(path: Path, file: BinaryIO, tensor: Tensor | StoredTensor) -> None:
    size, expected = os.fstat(file.fileno()).st_size, tensor.numel() * tensor.element_size()
    if size != expected:
        raise DamagedFileError(f"{path} has {size:,} bytes instead of {expected:,}")


def _fill(path: Path, file: BinaryIO, piece: Tensor, checksum: int) -> int:
    """Read the next bytes of `file` into a CPU tensor; return `checksum` continued over them."""
    view = _bytes_of(piece)
    done = 0
    while done < len(view):
        try:
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
        if not count:
            raise DamagedFileError(f"{path} ended early")
        done += count
    return crc32(view, checksum)


def _at_once(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(FEWEST_AT_ONCE, min(MOST_AT_ONCE, usable_cpus())), name)


def _pieces(tensor: Tensor | StoredTensor) -> list[tuple[int, int]]:
    step = PIECE_BYTES // tensor.element_size()
    return [(at, min(at + step, tensor.numel())) for at in range(0, tensor.numel(), step)]


def _bytes_of(tensor: Tensor) -> memoryview:
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
