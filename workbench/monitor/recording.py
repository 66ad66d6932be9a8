"""`system.bin`: the machine's load during a run, one record every few seconds, in the manner of `metrics.bin`.

The trainer's process records itself, in threads of its own. Invariant: recording never ends or delays a run; where it
cannot write it says so once.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.monitor.sampler import Sampler
from workbench.monitor.samples import GpuSample, HostSample, MonitorSample
from workbench.runs import Column, Metrics, MetricsWriter, RunDirectory, read_metrics

RECORD_EVERY_S = 10.0
LOOK_EVERY_S = 1.0
_ENDING_S = 2.0

SYSTEM_COLUMNS = (
    Column("step", "records"),
    Column("time", "unix s"),
    Column("gpu_busy", "1"),
    Column("gpu_memory_bytes", "B"),
    Column("gpu_power_w", "W"),
    Column("gpu_temperature_c", "°C"),
    Column("gpu_received_bytes_per_s", "B/s"),
    Column("gpu_sent_bytes_per_s", "B/s"),
    Column("host_busy", "1"),
    Column("host_memory_bytes", "B"),
    Column("swap_bytes", "B"),
    Column("trainer_busy", "cores"),
    Column("trainer_memory_bytes", "B"),
    Column("disk_read_bytes_per_s", "B/s"),
    Column("disk_written_bytes_per_s", "B/s"),
)
"""The columns of `system.bin`. `step`: the record's own number, which the writer asks for. `time`: of the last look.

Of the looks since the record before: the mean, of sizes and the temperature the highest. `gpu_*`: the trainer's GPU.
`host_busy`: of the cores that the trainer may use. `disk_*`: of all disks under the run's folders.
"""
_HIGHEST = {
    "gpu_memory_bytes",
    "gpu_temperature_c",
    "host_memory_bytes",
    "swap_bytes",
    "trainer_memory_bytes",
}


class SystemRecording:
    """A context manager that records this process's machine into the run's `system.bin`.

    It begins at once, raises nothing, and ends in a few seconds at the most with a last record of what was seen since
    the one before. `gpu`: the UUID of the trainer's GPU, with or without "GPU-"; None: it trains without one.
    `folders`: those whose disks the run uses. `warn`: called in another thread, once, with a sentence, where nothing
    can be recorded. `sampler`: an own one (tests), which is started and stopped here.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        gpu: str | None,
        folders: tuple[Path, ...] = (),
        warn: Callable[[str], None],
        every_s: float = RECORD_EVERY_S,
        look_every_s: float = LOOK_EVERY_S,
        sampler: Sampler | None = None,
    ) -> None:
        self._run = run
        self._gpu = gpu
        self._warn = warn
        self._every_s = every_s
        self._look_every_s = min(look_every_s, every_s)
        self._sampler = sampler or Sampler(interval_s=self._look_every_s)
        self._sampler.watch(pid=os.getpid(), folders=folders)
        self._warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="system-recording", daemon=True)

    def __enter__(self) -> SystemRecording:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_ENDING_S)

    def _work(self) -> None:
        try:
            with self._sampler, MetricsWriter(self._run.system, SYSTEM_COLUMNS) as writer:
                self._record(writer)
        except Exception as error:
            self._say(error)

    def _record(self, writer: MetricsWriter) -> None:
        looks = _Looks(self._gpu)
        a_record = max(1, round(self._every_s / self._look_every_s))
        waited = 0
        while True:
            ended = self._ended.wait(self._look_every_s)
            looks.add(self._sampler.latest)
            waited += 1
            if looks.count and (ended or waited >= a_record):
                self._append(writer, looks)
                looks, waited = _Looks(self._gpu, looks.last_time), 0
            if ended:
                return

    def _append(self, writer: MetricsWriter, looks: _Looks) -> None:
        try:
            writer.append(step=float(writer.records), **looks.record())
        except WorkbenchError as error:
            # The disk may have room again later: the next record is tried too, without another word.
            self._say(error)

    def _say(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            # The warning may well go to the same full disk.
            with contextlib.suppress(Exception):
                self._warn(f"machine samples are not recorded: {error}")


def read_system(run: RunDirectory) -> Metrics:
    """Return the recorded values of the machine. Never raises; see `problem`."""
    return read_metrics(run.system)


class _Looks:
    """The samples of one record, those of one moment once."""

    def __init__(self, gpu: str | None, last_time: float = -math.inf) -> None:
        self._gpu = gpu
        self._values: dict[str, list[float]] = {}
        self.last_time = last_time
        self.count = 0

    def add(self, sample: MonitorSample | None) -> None:
        if sample is None or sample.time <= self.last_time:
            return
        self.last_time = sample.time
        self.count += 1
        for name, value in _values(sample, self._gpu).items():
            if value is not None:
                self._values.setdefault(name, []).append(value)

    def record(self) -> dict[str, float | None]:
        record: dict[str, float | None] = {"time": self.last_time}
        for name, values in self._values.items():
            record[name] = max(values) if name in _HIGHEST else sum(values) / len(values)
        return record


def _values(sample: MonitorSample, gpu: str | None) -> dict[str, float | None]:
    own, trainer, host = _own_gpu(sample.gpus, gpu), sample.trainer, sample.host
    # Two folders on one disk see the same traffic.
    disks = {disk.device or disk.folder: disk for disk in sample.disks}.values()
    return {
        "gpu_busy": own.busy,
        "gpu_memory_bytes": own.memory_used_bytes,
        "gpu_power_w": own.power_w,
        "gpu_temperature_c": own.temperature_c,
        "gpu_received_bytes_per_s": own.pcie_received_bytes_per_s,
        "gpu_sent_bytes_per_s": own.pcie_sent_bytes_per_s,
        "host_busy": _busy(host),
        "host_memory_bytes": host.memory_used_bytes,
        "swap_bytes": host.swap_used_bytes,
        "trainer_busy": None if trainer is None else trainer.busy,
        "trainer_memory_bytes": None if trainer is None else trainer.memory_bytes,
        "disk_read_bytes_per_s": _sum(disk.read_bytes_per_s for disk in disks),
        "disk_written_bytes_per_s": _sum(disk.written_bytes_per_s for disk in disks),
    }


def _own_gpu(gpus: Sequence[GpuSample], gpu: str | None) -> GpuSample:
    """Return the trainer's GPU; one without any values where it is not there."""
    if gpu is None:
        return GpuSample(-1)
    wanted = f"GPU-{gpu.removeprefix('GPU-')}"
    return next((each for each in gpus if each.uuid == wanted), GpuSample(-1))


def _busy(host: HostSample) -> float | None:
    cores = [host.cores[core] for core in host.allowed_cores if core < len(host.cores)] or host.cores
    return sum(cores) / len(cores) if cores else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
