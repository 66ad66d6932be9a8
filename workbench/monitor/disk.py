"""The file system of a folder and the device under it: room and traffic.

A file system without a device of its own (tmpfs, overlay, a network) gives what it has: room, and the name of its
source. Traffic is the whole device's, not this folder's alone. Reading may wait where a network file system hangs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from workbench.monitor.samples import DiskSample

_SECTOR_BYTES = 512
"""/sys/dev/block/*/stat and /proc/diskstats count in these, whatever the device's own sector is."""
_SHORTEST_S = 0.02
_OCTAL = re.compile(r"\\([0-7]{3})")


class _Counters(NamedTuple):
    """Since the boot (the kernel's Documentation/block/stat.rst)."""

    time: float
    read_bytes: int
    written_bytes: int
    busy_ms: int


class DiskReader:
    """Reads the disk under one folder, for one thread. The folder need not be there yet.

    `root` is where `proc` and `sys` lie; `clock`: seconds that only rise.
    """

    def __init__(
        self, folder: Path, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder = folder
        self._root = root
        self._clock = clock
        self._before: _Counters | None = None
        self._number: int | None = None
        self._device: tuple[int, int] | None = None
        self._name: str | None = None
        self._last = DiskSample(str(folder))

    def read(self) -> DiskSample:
        """One sample; without rates the first time. Never raises."""
        try:
            folder = _nearest(self.folder)
            room = os.statvfs(folder)
            number = folder.stat().st_dev
        except OSError:
            self._before = None
            return DiskSample(str(self.folder))
        if number != self._number:
            self._number, self._before = number, None
            self._device, self._name = _device_under(self._root, (os.major(number), os.minor(number)))
        sample = replace(
            self._last,
            device=self._name,
            total_bytes=room.f_blocks * room.f_frsize,
            free_bytes=room.f_bavail * room.f_frsize,
        )
        self._last = self._with_rates(sample)
        return self._last

    def _with_rates(self, sample: DiskSample) -> DiskSample:
        now = self._clock()
        before = self._before
        if before is not None and now - before.time < _SHORTEST_S:
            return sample
        counters = None if self._device is None else _counters(self._root, self._device, now)
        self._before = counters
        if counters is None or before is None:
            return replace(sample, read_bytes_per_s=None, written_bytes_per_s=None, busy=None)
        seconds = counters.time - before.time
        return replace(
            sample,
            read_bytes_per_s=max(0, counters.read_bytes - before.read_bytes) / seconds,
            written_bytes_per_s=max(0, counters.written_bytes - before.written_bytes) / seconds,
            busy=min(1.0, max(0, counters.busy_ms - before.busy_ms) / 1000 / seconds),
        )


def _device_under(root: Path, number: tuple[int, int]) -> tuple[tuple[int, int] | None, str | None]:
    """The block device that a file system of this device number lies on, and what to call it.

    A file system that spans devices (btrfs) has a number of its own, with major 0; its source in /proc/self/mountinfo
    is one of its devices.
    """
    name = _block_name(root, number)
    if name is not None:
        return number, name
    source, kind = _mounted(root, number)
    if source is None:
        return None, None
    if source.startswith("/dev/"):
        try:
            inner = (root / source.lstrip("/")).stat().st_rdev
        except OSError:
            return None, source.removeprefix("/dev/")
        under = os.major(inner), os.minor(inner)
        name = _block_name(root, under)
        return (None if name is None else under), name or source.removeprefix("/dev/")
    # "tmpfs on tmpfs", "overlay on overlay": once is enough; "server:/path" says where it is.
    return None, source if source not in ("none", "") else kind


def _block_name(root: Path, number: tuple[int, int]) -> str | None:
    try:
        return (root / f"sys/dev/block/{number[0]}:{number[1]}").resolve(strict=True).name
    except (OSError, RuntimeError):
        return None


def _counters(root: Path, device: tuple[int, int], now: float) -> _Counters | None:
    try:
        words = (root / f"sys/dev/block/{device[0]}:{device[1]}/stat").read_text(encoding="ascii").split()
        return _Counters(now, int(words[2]) * _SECTOR_BYTES, int(words[6]) * _SECTOR_BYTES, int(words[9]))
    except (OSError, ValueError, IndexError):
        return None


def _mounted(root: Path, number: tuple[int, int]) -> tuple[str | None, str | None]:
    """Source and kind of the mounted file system with this number (proc_pid_mountinfo(5))."""
    wanted = f"{number[0]}:{number[1]}"
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None, None
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[2] == wanted and "-" in fields:
            rest = fields[fields.index("-") + 1 :]
            if len(rest) >= 2:
                return _OCTAL.sub(lambda match: chr(int(match[1], 8)), rest[1]), rest[0]
    return None, None


def _nearest(path: Path) -> Path:
    """The folder that is there on the way to `path`."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there
