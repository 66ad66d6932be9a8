"""The training process and its threads: what they do, not what they wait for.

Not for its children, nor for finding it: the pid is given. Invariant: a pid that has gone to another process is a
process that has ended; nothing of the other process is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import psutil

from workbench.monitor.samples import ThreadSample, TrainerSample

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SHORTEST_S = 0.1
"""Between readings closer than this too few clock ticks have been counted: the last rates are kept."""


class _Thread(NamedTuple):
    name: str
    ticks: int
    """Of work, the user's and the system's, since it began."""
    core: int


class _Counters(NamedTuple):
    time: float
    work_s: float
    threads: dict[int, _Thread]
    traffic: tuple[int, int] | None
    """Bytes read from and written to disks; None where they may not be seen."""


class TrainingProcessReader:
    """Reads one process, for one thread."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.pid = pid
        self._clock = clock
        self._before: _Counters | None = None
        self._last = TrainerSample(pid)
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.Error:
            self._process = None

    def read(self) -> TrainerSample:
        """Return one sample, without rates the first time. Never raises."""
        process = self._process
        try:
            if process is None or not process.is_running() or process.status() in _ENDED:
                return self._ended()
            with process.oneshot():
                memory, times = process.memory_info().rss, process.cpu_times()
        except psutil.Error:
            return self._ended()
        now, before = self._clock(), self._before
        if before is not None and now - before.time < _SHORTEST_S:
            return replace(self._last, memory_bytes=memory)
        self._before = _Counters(now, times.user + times.system, self._threads(), _traffic(process))
        self._last = replace(_rates(self.pid, before, self._before), memory_bytes=memory)
        return self._last

    def _ended(self) -> TrainerSample:
        self._before = None
        return TrainerSample(self.pid, alive=False)

    def _threads(self) -> dict[int, _Thread]:
        """Return all threads by their ids. psutil gives neither their names nor their cores."""
        folder = f"{psutil.PROCFS_PATH}/{self.pid}/task"
        try:
            ids = os.listdir(folder)  # noqa: PTH208 - twice a second, of hundreds of threads
        except OSError:
            return {}
        found = ((int(each), _thread(f"{folder}/{each}/stat")) for each in ids)
        return {each: thread for each, thread in found if thread is not None}


_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def _rates(pid: int, before: _Counters | None, now: _Counters) -> TrainerSample:
    if before is None:
        return TrainerSample(pid)
    seconds = now.time - before.time
    threads = []
    for thread_id, thread in now.threads.items():
        # A thread that is new since then has done all its work since then.
        known = before.threads.get(thread_id)
        ticks = thread.ticks - (known.ticks if known else 0)
        if ticks > 0:
            busy = min(1.0, ticks / _TICKS_PER_S / seconds)
            threads.append(ThreadSample(thread.name, thread_id, busy, thread.core))
    read = written = None
    if now.traffic is not None and before.traffic is not None:
        read, written = (
            max(0, new - old) / seconds for new, old in zip(now.traffic, before.traffic, strict=True)
        )
    return TrainerSample(
        pid,
        busy=max(0.0, now.work_s - before.work_s) / seconds,
        threads=tuple(sorted(threads, key=lambda thread: (-thread.busy, thread.name, thread.thread_id))),
        read_bytes_per_s=read,
        written_bytes_per_s=written,
    )


def _traffic(process: psutil.Process) -> tuple[int, int] | None:
    try:
        counters = process.io_counters()
    except (psutil.Error, OSError, ValueError, NotImplementedError):
        return None
    return counters.read_bytes, counters.write_bytes


def _thread(path: str) -> _Thread | None:
    """Read /proc/PID/task/TID/stat (proc_pid_stat(5)); None where there is no such thread any more."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            data = file.read(4096) or b""
        # The name stands in parentheses and may hold spaces and parentheses itself.
        closing = data.rindex(b")")
        fields = data[closing + 2 :].split()
        name = data[data.index(b"(") + 1 : closing].decode(errors="replace")
        return _Thread(name, int(fields[11]) + int(fields[12]), int(fields[36]))
    except (OSError, ValueError, IndexError):
        return None
