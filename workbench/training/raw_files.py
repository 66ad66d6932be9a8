"""Tensors as raw little-endian files: written and read straight from and into their memory, with a checksum.

Whatever the tensor's size, at most one piece of it is held a second time, and only where it lives on a device.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

PIECE_BYTES = 16 << 20


class DamagedFileError(Exception):
    """A file is not what was written; the message names it and says how it differs."""


def write_tensor(path: Path, tensor: Tensor) -> int:
    """Write a 1-D contiguous tensor's bytes to `path`, durably; returns their CRC-32."""
    _require_little_endian()
    checksum = 0
    with path.open("wb") as file:
        for start, stop in _pieces(tensor):
            piece = tensor[start:stop].cpu()
            view = _bytes_of(piece)
            checksum = zlib.crc32(view, checksum)
            file.write(view)
        file.flush()
        os.fsync(file.fileno())
    return checksum


def read_tensor(path: Path, tensor: Tensor, checksum: int) -> None:
    """Fill a 1-D contiguous tensor with what `write_tensor` wrote.

    Raises:
        DamagedFileError: the file is missing, of another length, or its checksum is not `checksum`. The tensor then
            holds what could be read.
    """
    _require_little_endian()
    expected = tensor.numel() * tensor.element_size()
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected:
                raise DamagedFileError(f"{path} has {size:,} bytes instead of {expected:,}")
            seen = 0
            for start, stop in _pieces(tensor):
                seen = _read_piece(file, tensor[start:stop], seen)
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if seen != checksum:
        raise DamagedFileError(f"{path} is damaged: its checksum is {seen:08x} instead of {checksum:08x}")


def _read_piece(file: BinaryIO, target: Tensor, checksum: int) -> int:
    piece = target if target.device.type == "cpu" else torch.empty_like(target, device="cpu")
    view = _bytes_of(piece)
    if file.readinto(view) != len(view):  # type: ignore[attr-defined]
        raise DamagedFileError(f"{file.name} ended early")
    if piece is not target:
        target.copy_(piece)
    return zlib.crc32(view, checksum)


def _pieces(tensor: Tensor) -> list[tuple[int, int]]:
    step = PIECE_BYTES // tensor.element_size()
    return [(at, min(at + step, tensor.numel())) for at in range(0, tensor.numel(), step)]


def _bytes_of(tensor: Tensor) -> memoryview:
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _require_little_endian() -> None:
    assert sys.byteorder == "little", "raw state files are little-endian, as this machine is not"
