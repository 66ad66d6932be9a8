"""Measures a folder's disk: with direct I/O as it is, and through the disk tier with its checksums.

Invariant: when the measurement is over, however it ended, the folder is as it was.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.engine.devices.buffers import page_aligned
from workbench.engine.disk_files import DiskError, DiskTier
from workbench.errors import ConfigurationError
from workbench.profiles.machine_profile import DiskProfile
from workbench.profiles.sampling import Budget, rates_together
from workbench.system.free_space import mount_of

RECORD_BYTES = 16 << 20
FILES = 3
"""Of which the room is divided: one without the tier, and two of it, for reading and writing at once."""
ROUNDS = 5
SHARE_OF_FREE = 4

Transfer = Callable[[int], object]
"""Moves one record, by its number."""


class Way(NamedTuple):
    """One way to the disk. A record is written before it is read: what never was would be read from nowhere."""

    write: Transfer
    read: Transfer


def measure_disk(path: Path, budget: Budget) -> DiskProfile:
    """Measure the disk under the folder `path`, which need not exist yet.

    Raises:
        ConfigurationError: the folder cannot be made or written, or has no room for a few records.
    """
    try:
        with _only_for_now(path), contextlib.closing(DiskTier(path)) as tier:
            return _measure(path, tier, budget)
    except DiskError as error:
        raise ConfigurationError(f"--disk {path}: {error}") from error
    except OSError as error:
        raise ConfigurationError(
            f"--disk {path}: cannot be measured: {error.strerror or error}; name a folder that can be written"
        ) from error


def _measure(path: Path, tier: DiskTier, budget: Budget) -> DiskProfile:
    free = shutil.disk_usage(tier.folder).free
    records = min(budget.disk_bytes, free // SHARE_OF_FREE) // (FILES * RECORD_BYTES)
    if not records:
        needed = FILES * RECORD_BYTES * SHARE_OF_FREE >> 20
        raise ConfigurationError(
            f"--disk {path}: {free >> 20} MiB are free; a measurement needs {needed} MiB"
        )
    generator = torch.Generator().manual_seed(records)
    content = torch.randint(0, 256, (RECORD_BYTES,), dtype=torch.uint8, generator=generator)
    outgoing, incoming = page_aligned(RECORD_BYTES).copy_(content), page_aligned(RECORD_BYTES)
    one, other = (tier.create(name, [RECORD_BYTES] * records) for name in ("one", "other"))
    with _raw_file(tier, records) as raw:
        ways = {
            "": Way(lambda record: raw.write(record, outgoing), lambda record: raw.read(record, incoming)),
            "checked_": Way(
                lambda record: one.write(record, outgoing), lambda record: one.read(record, incoming)
            ),
        }
        rates, written = _rates(ways, records, budget.disk_s)
    to_read, to_write = itertools.cycle(range(written)), itertools.cycle(range(records))
    works = (
        lambda: one.read(next(to_read), incoming),
        lambda: other.write(next(to_write), outgoing),
    )
    both_read, both_write = rates_together(works, RECORD_BYTES, budget.disk_s / 6)
    found: dict[str, Any] = {f"{name}_bytes_per_s": rate for name, rate in rates.items()}
    return DiskProfile(
        path=str(path),
        free_bytes=free,
        direct=tier.direct and not mount_of(path).in_memory,
        **found,
        both_read_bytes_per_s=both_read,
        both_write_bytes_per_s=both_write,
    )


def _rates(ways: dict[str, Way], records: int, limit_s: float) -> tuple[dict[str, float], int]:
    """Return bytes a second by "read", "write" and the same of each way, and how many records were written in each.

    Medians of rounds in turns. The first round finds files without blocks of their own, and counts only where the time
    is up after it.
    """
    samples: dict[str, list[float]] = {}
    each_s = limit_s / (ROUNDS + 1) / (2 * len(ways))
    written = dict.fromkeys(ways, 0)
    began = time.perf_counter()
    for number in range(ROUNDS + 1):
        if number and time.perf_counter() - began > limit_s:
            break
        for name, way in ways.items():
            rate, done = _rate(way.write, records, each_s)
            samples.setdefault(f"{name}write", []).append(rate)
            written[name] = max(written[name], done)
            rate, _ = _rate(way.read, written[name], each_s)
            samples.setdefault(f"{name}read", []).append(rate)
    medians = {name: statistics.median(taken[1:] or taken) for name, taken in samples.items()}
    return medians, min(written.values())


def _rate(transfer: Transfer, records: int, limit_s: float) -> tuple[float, int]:
    """Return bytes a second over the records in order, as many as `limit_s` allows, and their number."""
    began, done = time.perf_counter(), 0
    while done < records and (not done or time.perf_counter() - began < limit_s):
        transfer(done)
        done += 1
    return done * RECORD_BYTES / (time.perf_counter() - began), done


class _RawFile:
    """Records without checksums, in a file that stays open."""

    def __init__(self, descriptor: int, direct: bool) -> None:
        self._descriptor = descriptor
        self._direct = direct

    def write(self, record: int, buffer: Tensor) -> None:
        self._move(os.pwritev, record, buffer)
        if not self._direct:
            os.fdatasync(self._descriptor)
            self._drop_cache()

    def read(self, record: int, buffer: Tensor) -> None:
        self._move(os.preadv, record, buffer)
        if not self._direct:
            self._drop_cache()

    def _move(self, call: Callable[..., int], record: int, buffer: Tensor) -> None:
        view = buffer.numpy().data
        moved = 0
        while moved < RECORD_BYTES:
            count = call(self._descriptor, [view[moved:]], record * RECORD_BYTES + moved)
            if count == 0:
                raise OSError("the disk stopped within a record")
            moved += count

    def _drop_cache(self) -> None:
        """Let the next read come from the disk and not from memory."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _raw_file(tier: DiskTier, records: int) -> Iterator[_RawFile]:
    """Open a file in the tier's folder, with which it is removed."""
    path = tier.folder / "raw"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if tier.direct else 0), 0o600)
    try:
        os.posix_fallocate(descriptor, 0, records * RECORD_BYTES)
        yield _RawFile(descriptor, tier.direct)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _only_for_now(path: Path) -> Iterator[None]:
    """Remove the folders that are made on the way to `path` when the block ends."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
