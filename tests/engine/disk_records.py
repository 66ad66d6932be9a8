"""What tests of the disk tier need: buffers with known contents, files of them, and disks that refuse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.engine import disk_files as disk
from workbench.engine.devices.buffers import page_aligned
from workbench.engine.disk_files import DiskTier, RecordFile
from workbench.layout import PAGE_BYTES

SIZES = (1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES, 10_000)
Transfer = Callable[[int, list[Any], int], int]


def filled(nbytes: int, seed: int) -> Tensor:
    """A buffer for a record of `nbytes`; the padding is noise too."""
    buffer = page_aligned(nbytes)
    buffer.copy_(
        torch.randint(256, buffer.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    )
    return buffer


def written(tier: DiskTier, sizes: tuple[int, ...] = SIZES) -> tuple[RecordFile, list[Tensor]]:
    file = tier.create("state", sizes)
    buffers = [filled(size, seed) for seed, size in enumerate(sizes)]
    for record, buffer in enumerate(buffers):
        file.write(record, buffer)
    return file, buffers


def path_of(tier: DiskTier) -> Path:
    """The tier's only file of records."""
    (path,) = (p for p in tier.folder.iterdir() if p.name != disk.LOCK)
    return path


def refused(reason: int) -> Transfer:
    def transfer(descriptor: int, buffers: list[Any], offset: int) -> int:
        raise OSError(reason, os.strerror(reason))

    return transfer


def open_descriptors() -> int:
    """How many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
