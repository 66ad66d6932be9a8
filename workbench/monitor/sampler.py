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
from types import TracebackType
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
        self._interval_s = interval_s
        self._pcie_interval_s = pcie_interval_s
        self._silent_s = silent_s
        self._gpu_reader = gpu_reader
        self.clock = clock
        self.process: TrainingProcessReader | None = None
        self.disks: tuple[DiskReader, ...] = ()
        self._threads: _Threads | None = None
        self._last: MonitorSample | None = None

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to sample; nothing where it has begun."""
        if self._threads is None:
            self._threads = self._begin(self._interval_s)

    def stop(self) -> None:
        """End the threads, in a second at the most; one that hangs in the driver is left behind as a daemon."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.stop()
            self._last = threads.latest or self._last

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None:
        """From now on sample this process and the disks under these folders."""
        if pid != (None if self.process is None else self.process.pid):
            self.process = None if pid is None else TrainingProcessReader(pid)
        there = {disk.folder: disk for disk in self.disks}
        self.disks = tuple(there.get(folder) or DiskReader(folder) for folder in dict.fromkeys(folders))
        if self._threads is not None:
            self._threads.wake()

    @property
    def latest(self) -> MonitorSample | None:
        """The newest sample; None before the first. The last one stays after `stop`."""
        threads = self._threads
        return (None if threads is None else threads.latest) or self._last

    def sample_once(self, settle_s: float = 0.2, timeout_s: float = 3.0) -> MonitorSample:
        """Return a whole sample with its rates, over `settle_s`; after `timeout_s` what there is by then.

        Where nothing samples yet, threads are begun and ended for it. Raises TimeoutError where the host itself
        could not be read.
        """
        threads = self._threads or self._begin(settle_s)
        try:
            return threads.whole(timeout_s)
        finally:
            if threads is not self._threads:
                threads.stop()

    def _begin(self, interval_s: float) -> _Threads:
        return _Threads(
            self,
            interval_s,
            max(interval_s, self._pcie_interval_s),
            max(4 * interval_s, self._silent_s),
            self._gpu_reader(),
        )


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


class _Threads:
    """The threads of one start, and what they have read so far. Each attribute is written by one thread alone."""

    def __init__(
        self,
        sampler: Sampler,
        interval_s: float,
        pcie_interval_s: float,
        silent_s: float,
        gpu_reader: GpuReader,
    ) -> None:
        self._sampler = sampler
        self._silent_s = silent_s
        self._host_reader = HostReader()
        self._began = time.monotonic()
        self._traffic: dict[int, tuple[float, PcieTraffic]] = {}
        self._done = done = threading.Condition()
        self._gpus = _Source(
            "nvml", gpu_reader.read, interval_s, done, gpu_reader.close, self._gpus_are_known
        )
        self._pcie = _Source("pcie", self._read_pcie, pcie_interval_s, done)
        self._disks = _Source("disks", self._read_disks, interval_s, done)
        self._samples = _Source("host", self._read_sample, interval_s, done)
        for source in (self._gpus, self._pcie, self._disks, self._samples):
            source.start()

    def stop(self) -> None:
        """Stop the GPUs' thread last: it closes NVML, in which no counter should be waited for then."""
        for source in (self._pcie, self._disks, self._samples):
            source.stop()
        self._pcie.join(_ENDING_S)
        self._gpus.stop()
        deadline = time.monotonic() + _ENDING_S
        for join in (self._samples.join, self._disks.join, self._gpus.join):
            join(deadline - time.monotonic())

    def wake(self) -> None:
        """Read now: something else is watched."""
        self._disks.wake()
        self._samples.wake()

    @property
    def latest(self) -> MonitorSample | None:
        reading = self._samples.latest
        return None if reading is None else reading.value

    @property
    def problem(self) -> str:
        sources = (self._samples, self._gpus, self._pcie, self._disks)
        return next((source.problem for source in sources if source.problem), "")

    def whole(self, timeout_s: float) -> MonitorSample:
        """Wait for a sample with all rates. Raises TimeoutError where there is none at all."""
        with self._done:
            self._done.wait_for(self._is_whole, timeout_s)
        sample = self.latest
        if sample is None:
            raise TimeoutError(f"the host could not be read within {timeout_s:g} s {self.problem}".rstrip())
        return self._put_together(sample.host, sample.trainer)

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
        process = self._sampler.process
        return self._put_together(self._host_reader.read(), None if process is None else process.read())

    def _read_disks(self) -> dict[str, DiskSample]:
        return {str(disk.folder): disk.read() for disk in self._sampler.disks}

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
            time=self._sampler.clock(),
            host=host,
            gpus=gpus,
            gpu_note=note,
            trainer=trainer,
            disks=self._disks_at(now),
        )

    def _gpus_at(self, now: float) -> GpuReading:
        reading = self._gpus.latest
        silent_s = now - (self._began if reading is None else reading.time)
        if reading is None:
            if silent_s < self._silent_s:
                return GpuReading((), "The NVIDIA driver is being asked.")
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
        folders = (str(disk.folder) for disk in self._sampler.disks)
        return tuple(known.get(folder) or DiskSample(folder) for folder in folders)
