"""Samples everything in threads and hands out the newest sample without waiting.

Host and training process are read in one thread, which puts the samples together; GPUs, their PCIe counters and disks
have threads of their own. Invariant: a driver or a file system that is slow or hangs delays only its own values; they
then say so, or are None. Whatever a reading raises, its thread goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from workbench.monitor.host import DiskReader, HostReader
from workbench.monitor.nvml import GpuReader, GpuReading, PcieTraffic, read_pcie_traffic
from workbench.monitor.samples import DiskSample, GpuSample, HostSample, MonitorSample, TrainerSample
from workbench.monitor.training_process import TrainingProcessReader

PCIE_INTERVAL_S = 1.0
"""Eight GPUs are waited for a third of this."""
SILENT_S = 5.0
"""A value that was not renewed for so long, nor for four intervals, is not shown as if it were new."""
_CORES_WITHIN = 5
"""Samples after which a host without busy shares is taken to give none."""
_ENDING_S = 0.5
"""Longest wait of `stop` for the PCIe counters, and then for all the rest."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Reading(Generic[T]):
    value: T
    time: float
    """When the reading was done, seconds of the monotonic clock."""
    number: int
    """1 for the first."""


class _Source(Generic[T]):
    """Calls `read` every `interval_s` until it is stopped, then `finish` once, in a daemon thread.

    `first` is called after the first reading, `done` notified after each. A reading that takes longer than the interval
    puts off the next.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        interval_s: float,
        done: threading.Condition,
        finish: Callable[[], object] | None = None,
        first: Callable[[], object] | None = None,
    ) -> None:
        self._read = read
        self._interval_s = interval_s
        self._done = done
        self._finish = finish
        self._first = first
        self.stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"monitor-{name}", daemon=True)
        self.latest: _Reading[T] | None = None
        """The newest reading; None before the first."""
        self.problem = ""
        """The error of the last reading; empty where it raised none."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Read now."""
        self._wake.set()

    def stop(self) -> None:
        """Read no more; does not wait."""
        self.stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end. One that hangs is left behind."""
        self._thread.join(max(0.0, timeout_s))

    def _work(self) -> None:
        number = 0
        try:
            while not self.stopping:
                began = time.monotonic()
                try:
                    value = self._read()
                except Exception as error:
                    self.problem = f"{type(error).__name__}: {error}"
                else:
                    number += 1
                    self.problem = ""
                    self.latest = _Reading(value, time.monotonic(), number)
                    if number == 1 and self._first is not None:
                        self._first()
                with self._done:
                    self._done.notify_all()
                self._wake.wait(max(0.0, began + self._interval_s - time.monotonic()))
                self._wake.clear()
        finally:
            if self._finish is not None:
                self._finish()


class Sampler:
    """The monitor of the screen: `start`, `watch`, `latest`, `stop`; also a context manager.

    `interval_s`: between two samples. `gpu_reader`: makes the reader of the GPUs, once a start. `clock`: unix seconds,
    for the samples' times.
    """

    def __init__(
        self,
        *,
        interval_s: float = 0.5,
        pcie_interval_s: float = PCIE_INTERVAL_S,
        silent_s: float = SILENT_S,
        gpu_reader: Callable[[], GpuReader] = GpuReader,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._latest: MonitorSample | None = None
        self._interval_s = interval_s
        self._pcie_interval_s = max(interval_s, pcie_interval_s)
        self._silent_s = max(4 * interval_s, silent_s)
        self._gpu_reader = gpu_reader
        self._clock = clock
        self._process: TrainingProcessReader | None = None
        self._disk_readers: tuple[DiskReader, ...] = ()
        self._done = threading.Condition()
        self._began: float | None = None
        """When it was started, seconds of the monotonic clock; None while it does not sample."""

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to sample; nothing where it has begun."""
        if self._began is not None:
            return
        reader, interval_s, done = self._gpu_reader(), self._interval_s, self._done
        self._host_reader = HostReader()
        self._traffic: dict[int, tuple[float, PcieTraffic]] = {}
        self._gpus = _Source("nvml", reader.read, interval_s, done, reader.close, self._gpus_are_known)
        self._pcie = _Source("pcie", self._read_pcie, self._pcie_interval_s, done)
        self._disks = _Source("disks", self._read_disks, interval_s, done)
        self._samples = _Source("host", self._read_sample, interval_s, done)
        self._began = time.monotonic()
        for source in (self._gpus, self._pcie, self._disks, self._samples):
            source.start()

    def stop(self) -> None:
        """End the threads, in a second at the most; one that hangs in the driver is left behind as a daemon."""
        if self._began is None:
            return
        self._began = None
        for source in (self._pcie, self._disks, self._samples):
            source.stop()
        # The GPUs' thread comes last: it closes NVML, in which no counter should be waited for then.
        self._pcie.join(_ENDING_S)
        self._gpus.stop()
        deadline = time.monotonic() + _ENDING_S
        for join in (self._samples.join, self._disks.join, self._gpus.join):
            join(deadline - time.monotonic())

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None:
        """From now on sample this process and the disks under these folders."""
        if pid != (None if self._process is None else self._process.pid):
            self._process = None if pid is None else TrainingProcessReader(pid)
        there = {disk.folder: disk for disk in self._disk_readers}
        self._disk_readers = tuple(
            there.get(folder) or DiskReader(folder) for folder in dict.fromkeys(folders)
        )
        if self._began is not None:
            self._disks.wake()
            self._samples.wake()

    @property
    def latest(self) -> MonitorSample | None:
        """The newest sample; None before the first. The last one stays after `stop`."""
        return self._latest

    def sample_once(self, timeout_s: float = 3.0) -> MonitorSample:
        """Return a whole sample with its rates over one interval; after `timeout_s` what there is by then.

        Threads are begun and ended for it. Raises TimeoutError where the host itself could not be read.
        """
        with self:
            with self._done:
                self._done.wait_for(self._is_whole, timeout_s)
            reading = self._samples.latest
            if reading is None:
                problem = self._samples.problem
                raise TimeoutError(f"the host could not be read within {timeout_s:g} s {problem}".rstrip())
            return self._put_together(reading.value.host, reading.value.trainer)

    def _is_whole(self) -> bool:
        samples, gpus, disks = self._samples.latest, self._gpus.latest, self._disks.latest
        if samples is None or gpus is None or disks is None or samples.number < 2 or disks.number < 2:
            return False
        if not samples.value.host.cores and samples.number < _CORES_WITHIN:
            return False  # it was woken before any core's time had moved
        trainer = samples.value.trainer
        if trainer is not None and trainer.alive and trainer.busy is None:
            return False
        return all(gpu.fault or gpu.index in self._traffic for gpu in gpus.value.gpus)

    def _read_sample(self) -> MonitorSample:
        process = self._process
        self._latest = self._put_together(
            self._host_reader.read(), None if process is None else process.read()
        )
        return self._latest

    def _read_disks(self) -> dict[str, DiskSample]:
        return {str(disk.folder): disk.read() for disk in self._disk_readers}

    def _read_pcie(self) -> None:
        """Read every GPU in turn and keep each value at once: one that hangs takes nothing from those before it."""
        gpus = self._gpus.latest
        for gpu in () if gpus is None else gpus.value.gpus:
            if self._pcie.stopping:
                return
            if not gpu.fault:
                self._traffic[gpu.index] = (time.monotonic(), read_pcie_traffic(gpu.index))

    def _gpus_are_known(self) -> None:
        self._pcie.wake()
        self._samples.wake()

    def _put_together(self, host: HostSample, trainer: TrainerSample | None) -> MonitorSample:
        now = time.monotonic()
        gpus, note = self._gpus_at(now)
        return MonitorSample(
            time=self._clock(),
            host=host,
            gpus=gpus,
            gpu_note=note,
            trainer=trainer,
            disks=self._disks_at(now),
        )

    def _gpus_at(self, now: float) -> GpuReading:
        reading = self._gpus.latest
        silent_s = now - ((self._began or now) if reading is None else reading.time)
        if reading is None:
            if silent_s < self._silent_s:
                return GpuReading((), "Waiting for the NVIDIA driver.")
            return GpuReading((), f"The NVIDIA driver has not answered for {silent_s:.0f} s.")
        gpus, note = reading.value
        if silent_s < self._silent_s:
            return GpuReading(tuple(self._with_traffic(gpu, now) for gpu in gpus), note)
        fault = f"the driver has not answered for {silent_s:.0f} s"
        return GpuReading(tuple(GpuSample(gpu.index, gpu.name, gpu.uuid, fault=fault) for gpu in gpus), note)

    def _with_traffic(self, gpu: GpuSample, now: float) -> GpuSample:
        then, traffic = self._traffic.get(gpu.index, (now, PcieTraffic()))
        if gpu.fault or now - then >= self._silent_s:
            return gpu
        return replace(
            gpu,
            pcie_received_bytes_per_s=traffic.received_bytes_per_s,
            pcie_sent_bytes_per_s=traffic.sent_bytes_per_s,
        )

    def _disks_at(self, now: float) -> tuple[DiskSample, ...]:
        reading = self._disks.latest
        known = reading.value if reading is not None and now - reading.time < self._silent_s else {}
        folders = (str(disk.folder) for disk in self._disk_readers)
        return tuple(known.get(folder) or DiskSample(folder) for folder in folders)
