"""Read safetensors files: their headers first, then any tensor straight into memory that is there for it.

The format: a length (8 bytes, little-endian), a JSON header of so many bytes that says where each tensor lies, and the
tensors' bytes. Nothing of it can run code.

Invariant: what a header says is held against the file's own length before anything is believed of it. Files are read
and not mapped: one that is cut off meanwhile ends in a message, not in a signal.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model.safetensors_files import DTYPE_NAMES

LONGEST_HEADER_BYTES = 100_000_000
"""As the format's own library has it."""
PIECE_BYTES = 16 << 20
LARGE_BYTES = 256 << 10
READERS = 4
"""Threads: one waits for the disk while another copies."""

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class TensorInFile:
    """Where a tensor lies. `start`: bytes from the beginning of the file at `path`."""

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path) -> dict[str, TensorInFile]:
    """The tensors in the file at `path`, by name.

    Raises:
        ConfigurationError: it cannot be read, is no safetensors file, or was cut off.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= LONGEST_HEADER_BYTES:
                raise ConfigurationError(
                    f"{path} is no safetensors file: {_beginning(size, length)}; get it again from where it came from"
                )
            if 8 + length > size:
                raise ConfigurationError(
                    f"{path} was cut off: it has {size:,} bytes and its header alone needs {8 + length:,}; get it again"
                )
            text = file.read(length)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(text)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: its header is not readable ({error}); get the file again"
        ) from error
    return {name: _entry(path, name, entry, 8 + length, size) for name, entry in entries.items()}


def _beginning(size: int, length: int) -> str:
    if size < 8:
        return f"it has {size} bytes"
    return f"it begins with a header length of {length:,} bytes"


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> TensorInFile:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise ConfigurationError(
            f"{path}: its header says nothing readable of tensor {name}; get the file again"
        )
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise ConfigurationError(
            f"{path}: tensor {name} is stored as {kind}, which weights are not trained from; "
            "name a model with weights in BF16, F16 or F32"
        )
    place = TensorInFile(name, path, dtype, shape, base + begin)
    if place.nbytes != end - begin:
        raise ConfigurationError(
            f"{path}: its header gives tensor {name} of shape {list(shape)} and type {kind} {end - begin:,} bytes "
            f"instead of {place.nbytes:,}; get the file again"
        )
    if base + end > size:
        raise ConfigurationError(
            f"{path} was cut off: it has {size:,} bytes, and tensor {name} ends at byte {base + end:,}; get it again"
        )
    return place


def room_for(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for a tensor, which goes back to the system as soon as nobody holds it.

    The C library keeps blocks below 32 MiB that were freed: of a unit's tensors another unit would be left there.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(tuple(shape))


def read_into(pairs: Iterable[tuple[TensorInFile, Tensor]]) -> None:
    """Fill CPU tensors, each of the dtype and shape of its place, in parallel.

    Raises:
        WorkbenchError: a file cannot be read any more.
    """
    with _opened() as opened, ThreadPoolExecutor(READERS, "read-weights") as pool:
        jobs = [
            pool.submit(_read, opened(place.path), place, target, start, stop)
            for place, target in pairs
            for start, stop in _pieces(place, target)
        ]
        for job in jobs:
            job.result()


def read_pieces(place: TensorInFile) -> Iterator[tuple[int, Tensor]]:
    """The tensor's elements in their order, flat, a piece at a time, each with the number of its first element.

    A piece is to be used before the next is asked for, which comes in the same memory.

    Raises:
        WorkbenchError: the file cannot be read any more.
    """
    numel = math.prod(place.shape)
    step = PIECE_BYTES // place.dtype.itemsize
    buffer = torch.empty(min(numel, step), dtype=place.dtype)
    with _opened() as opened:
        for first in range(0, numel, step):
            piece = buffer[: min(step, numel - first)]
            _fill(opened(place.path), place, _bytes_of(piece), first * place.dtype.itemsize)
            yield first, piece


def same_bytes(one: TensorInFile, other: TensorInFile) -> bool:
    """Whether two tensors in files are bit for bit the same; a piece of each is held at a time."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with _opened() as opened:
        for start in range(0, one.nbytes, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, one.nbytes)
            pieces = [torch.empty(stop - start, dtype=torch.uint8) for _ in range(2)]
            for place, piece in zip((one, other), pieces, strict=True):
                _fill(opened(place.path), place, _bytes_of(piece), start)
            if not torch.equal(*pieces):
                return False
    return True


@contextmanager
def _opened() -> Iterator[Any]:
    """Gives a function from a path to a descriptor, which is open until the end."""
    with ExitStack() as stack:
        descriptors: dict[Path, int] = {}

        def descriptor(path: Path) -> int:
            if path not in descriptors:
                try:
                    descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise WorkbenchError(f"{path} cannot be read: {error.strerror or error}") from error
                stack.callback(os.close, descriptors[path])
            return descriptors[path]

        yield descriptor


def _pieces(place: TensorInFile, target: Tensor) -> list[tuple[int, int]]:
    """The parts to read at once, in bytes: all of it where it does not lie in a row in memory."""
    assert (place.dtype, place.shape) == (target.dtype, tuple(target.shape)), place
    if not target.is_contiguous():
        return [(0, place.nbytes)]
    return [(at, min(at + PIECE_BYTES, place.nbytes)) for at in range(0, place.nbytes, PIECE_BYTES)]


def _read(descriptor: int, place: TensorInFile, target: Tensor, start: int, stop: int) -> None:
    flat = target if target.is_contiguous() else torch.empty(place.shape, dtype=place.dtype)
    _fill(descriptor, place, _bytes_of(flat)[start:stop], start)
    if flat is not target:
        target.copy_(flat)


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _fill(descriptor: int, place: TensorInFile, view: memoryview, start: int) -> None:
    done = 0
    while done < len(view):
        try:
            count = os.preadv(descriptor, [view[done:]], place.start + start + done)
        except OSError as error:
            raise WorkbenchError(f"{place.path} cannot be read: {error.strerror or error}") from error
        if not count:
            raise WorkbenchError(f"{place.path} was cut off while tensor {place.name} was read")
        done += count
