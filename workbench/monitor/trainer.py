"""The training process and its threads, from /proc: what they do, not what they wait for.

Not for its children, nor for finding it: the pid is given. Invariant: a pid that has gone to another process is a
trainer that is gone; nothing of the other process is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from workbench.monitor.samples import ThreadSample, TrainerSample

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SHORTEST_S = 0.1
"""Between readings closer than this, too few ticks have been counted: the rates of before are told again."""


class _Stat(NamedTuple):
    """Of /proc/PID/stat and /proc/PID/task/TID/stat (proc_pid_stat(5))."""

    name: str
    state: str
    ticks: int
    """utime + stime."""
    started: int
    """Clock ticks after the boot."""
    pages: int
    """Resident."""
    core: int


class _Counters(NamedTuple):
    time: float
    ticks: int
    threads: dict[int, int]
    io: tuple[int, int] | None


class TrainerReader:
    """Reads one process, for one thread. `root` is where `proc` lies; `clock`: seconds that only rise."""

    def __init__(self, pid: int, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self.pid = pid
        self._folder = f"{root / 'proc' / str(pid)}"
        self._clock = clock
        self._started: int | None = None
        self._before: _Counters | None = None
        self._last = TrainerSample(pid)

    def read(self) -> TrainerSample:
        """One sample; without rates the first time. Never raises."""
        stat = _stat(f"{self._folder}/stat")
        if self._started is None and stat is not None:
            self._started = stat.started
        if stat is None or stat.state in "ZXx" or stat.started != self._started:
            self._before = None
            return TrainerSample(self.pid, alive=False)
        now = self._clock()
        if self._before is not None and now - self._before.time < _SHORTEST_S:
            return replace(self._last, memory_bytes=stat.pages * _PAGE_BYTES)
        stats = self._threads()
        counters = _Counters(
            now, stat.ticks, {tid: thread.ticks for tid, thread in stats.items()}, self._io()
        )
        self._last = self._sample(stat, stats, counters)
        self._before = counters
        return self._last

    def _sample(self, stat: _Stat, stats: dict[int, _Stat], counters: _Counters) -> TrainerSample:
        memory = stat.pages * _PAGE_BYTES
        before = self._before
        if before is None:
            return TrainerSample(self.pid, memory_bytes=memory)
        seconds = counters.time - before.time
        threads = []
        for tid, thread in stats.items():
            # A thread that is new since then has done all its work since then.
            ticks = thread.ticks - before.threads.get(tid, 0)
            if ticks > 0:
                busy = min(1.0, ticks / _TICKS_PER_S / seconds)
                threads.append(ThreadSample(thread.name, tid, busy, thread.core))
        read = written = None
        if counters.io is not None and before.io is not None:
            read = max(0, counters.io[0] - before.io[0]) / seconds
            written = max(0, counters.io[1] - before.io[1]) / seconds
        return TrainerSample(
            self.pid,
            memory_bytes=memory,
            busy=max(0, counters.ticks - before.ticks) / _TICKS_PER_S / seconds,
            threads=tuple(sorted(threads, key=lambda thread: (-thread.busy, thread.name, thread.thread_id))),
            read_bytes_per_s=read,
            written_bytes_per_s=written,
        )

    def _threads(self) -> dict[int, _Stat]:
        try:
            with os.scandir(f"{self._folder}/task") as entries:
                names = [entry.name for entry in entries]
        except OSError:
            return {}
        found = ((name, _stat(f"{self._folder}/task/{name}/stat")) for name in names if name.isdigit())
        return {int(name): stat for name, stat in found if stat is not None}

    def _io(self) -> tuple[int, int] | None:
        """Bytes that it has read from and written to disks; None where they may not be seen."""
        counted = {}
        for line in _read(f"{self._folder}/io").split(b"\n"):
            name, _, count = line.partition(b": ")
            if count.isdigit():
                counted[name] = int(count)
        if b"read_bytes" not in counted or b"write_bytes" not in counted:
            return None
        return counted[b"read_bytes"], counted[b"write_bytes"]


def _stat(path: str) -> _Stat | None:
    """None where there is no such process or thread any more."""
    data = _read(path)
    # The name stands in parentheses and may hold spaces and parentheses itself.
    opening, closing = data.find(b"("), data.rfind(b")")
    fields = data[closing + 2 :].split()
    if opening < 0 or len(fields) < 37:
        return None
    try:
        return _Stat(
            name=data[opening + 1 : closing].decode(errors="replace"),
            state=fields[0].decode(),
            ticks=int(fields[11]) + int(fields[12]),
            started=int(fields[19]),
            pages=int(fields[21]),
            core=int(fields[36]),
        )
    except ValueError:
        return None


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
