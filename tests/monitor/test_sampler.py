"""The sampler: whole samples, nothing that waits for a driver, and threads that end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded_nvml import RecordedNvml, h200, install, rtx_4090

from workbench.monitor.host import DiskReader
from workbench.monitor.nvml import GpuReader, GpuReading
from workbench.monitor.sampler import Sampler
from workbench.monitor.samples import DiskSample, MonitorSample

TICK_S = 0.005


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("monitor-")}


def soon(holds: Callable[[], object]) -> bool:
    """Whether it comes to hold within ten seconds."""
    until = time.monotonic() + 10
    while not holds():
        if time.monotonic() > until:
            return False
        threading.Event().wait(0.001)
    return True


def newest(sampler: Sampler) -> MonitorSample:
    assert soon(lambda: sampler.latest is not None)
    assert sampler.latest is not None
    return sampler.latest


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert soon(lambda: not own_threads())


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> RecordedNvml:
    library = RecordedNvml(h200(), rtx_4090())
    install(monkeypatch, library)
    return library


class HangingReader(GpuReader):
    """Answers as often as it may, then hangs until it is let go."""

    def __init__(self, answers: int, letting_go: threading.Event) -> None:
        super().__init__()
        self.answers = answers
        self.letting_go = letting_go

    def read(self) -> GpuReading:
        if self.answers == 0:
            self.letting_go.wait(20)
        self.answers = max(0, self.answers - 1)
        return super().read()


@pytest.fixture
def letting_go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_one_sample_is_whole_and_leaves_no_thread_behind(library: RecordedNvml, tmp_path: Path) -> None:
    sampler = Sampler(interval_s=0.11, clock=lambda: 123.0)
    sampler.watch(pid=os.getpid(), folders=(tmp_path, Path("/")))
    sample = sampler.sample_once(timeout_s=20)
    assert not own_threads()
    assert sample.time == 123.0
    assert len(sample.host.cores) >= 1
    assert sample.trainer is not None and sample.trainer.busy is not None
    assert [disk.folder for disk in sample.disks] == [str(tmp_path), "/"]
    assert all(disk.total_bytes for disk in sample.disks)
    assert (sample.gpu_note, [gpu.busy for gpu in sample.gpus]) == ("", [0.97, 0.03])
    assert [gpu.pcie_received_bytes_per_s for gpu in sample.gpus] == [41e9, 550e3]
    assert [gpu.pcie_sent_bytes_per_s for gpu in sample.gpus] == [12.5e9, 1650e3]
    assert library.opened == 0


def test_it_can_be_started_again(library: RecordedNvml) -> None:
    sampler = Sampler(interval_s=TICK_S)
    for _ in range(2):
        sampler.start()
        sampler.start()
        assert len(own_threads()) == 4
        before = sampler.latest
        assert soon(lambda before=before: sampler.latest is not before)
        assert soon(lambda: newest(sampler).gpus)
        sampler.stop()
        sampler.stop()
        assert not own_threads()
        assert sampler.latest is not None and sampler.latest.gpus, "the last sample stays"
        assert library.opened == 0


def test_a_driver_that_hangs_delays_no_value_of_the_host(
    library: RecordedNvml, letting_go: threading.Event
) -> None:
    sampler = Sampler(interval_s=TICK_S, silent_s=0.1, gpu_reader=lambda: HangingReader(0, letting_go))
    with sampler:
        note = newest(sampler).gpu_note
        assert note == "Waiting for the NVIDIA driver."
        assert soon(lambda: newest(sampler).host.cores)
        assert soon(lambda: newest(sampler).gpu_note != note)
        assert newest(sampler).gpu_note.startswith("The NVIDIA driver has not answered for ")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert own_threads()
    letting_go.set()


def test_a_driver_that_hangs_in_mid_run_has_its_old_values_taken_down(
    library: RecordedNvml, letting_go: threading.Event
) -> None:
    sampler = Sampler(interval_s=TICK_S, silent_s=0.1, gpu_reader=lambda: HangingReader(3, letting_go))
    with sampler:
        assert soon(lambda: newest(sampler).gpus)
        assert newest(sampler).gpus[0].busy == 0.97
        assert soon(lambda: newest(sampler).gpus[0].fault)
        gpu = newest(sampler).gpus[0]
        assert (gpu.name, gpu.busy) == ("NVIDIA H200", None)
        assert gpu.fault.startswith("the driver has not answered for ")
        letting_go.set()
        assert soon(lambda: newest(sampler).gpus[0].busy == 0.97)


def test_a_pcie_counter_that_hangs_takes_only_its_own_values_down(library: RecordedNvml) -> None:
    sampler = Sampler(interval_s=TICK_S, pcie_interval_s=TICK_S, silent_s=0.1)
    with sampler:
        assert soon(lambda: newest(sampler).gpus and newest(sampler).gpus[1].pcie_sent_bytes_per_s)
        library.may_count.clear()
        assert soon(lambda: newest(sampler).gpus[0].pcie_sent_bytes_per_s is None)
        before = newest(sampler)
        assert soon(lambda: newest(sampler) is not before)
        assert newest(sampler).gpus[0].busy == 0.97
        began = time.monotonic()
    assert time.monotonic() - began < 5
    before_it_came_back = len(library.called)
    library.may_count.set()
    assert soon(lambda: not own_threads())
    assert "nvmlDeviceGetHandleByIndex_v2" not in library.called[before_it_came_back:]


def test_what_is_watched_can_be_changed_while_it_samples(library: RecordedNvml, tmp_path: Path) -> None:
    sampler = Sampler(interval_s=TICK_S)
    with sampler:
        assert newest(sampler).trainer is None
        sampler.watch(pid=os.getpid(), folders=(tmp_path,))
        assert soon(lambda: newest(sampler).trainer is not None)
        assert soon(lambda: any(disk.total_bytes for disk in newest(sampler).disks))
        sampler.watch(pid=None, folders=())
        assert soon(lambda: newest(sampler).trainer is None and newest(sampler).disks == ())


def test_watching_the_same_again_loses_no_rates(
    library: RecordedNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def disk_reader(folder: Path) -> DiskReader:
        made.append(folder)
        return DiskReader(folder)

    monkeypatch.setattr("workbench.monitor.sampler.DiskReader", disk_reader)
    sampler = Sampler(interval_s=TICK_S)
    sampler.watch(pid=os.getpid(), folders=(tmp_path,))
    with sampler:
        assert soon(lambda: newest(sampler).trainer.busy is not None)
        before = newest(sampler)
        sampler.watch(pid=os.getpid(), folders=(tmp_path,))
        for _ in range(5):
            assert soon(lambda before=before: newest(sampler) is not before)
            before = newest(sampler)
            assert before.trainer.busy is not None
    assert made == [tmp_path]


def test_a_disk_that_hangs_leaves_only_its_own_values_unknown(
    library: RecordedNvml, letting_go: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang(_: object) -> None:
        letting_go.wait(20)
        raise OSError

    monkeypatch.setattr("workbench.monitor.host.psutil.disk_usage", hang)
    sampler = Sampler(interval_s=TICK_S)
    sampler.watch(pid=os.getpid(), folders=(tmp_path,))
    with sampler:
        assert soon(lambda: newest(sampler).host.cores)
        assert newest(sampler).disks == (DiskSample(str(tmp_path)),)
        letting_go.set()


def test_a_reading_that_raises_ends_no_sampling(library: RecordedNvml) -> None:
    class Broken(GpuReader):
        def read(self) -> GpuReading:
            raise RuntimeError("a mistake of ours")

    with Sampler(interval_s=TICK_S, gpu_reader=Broken) as sampler:
        before = newest(sampler)
        assert soon(lambda: newest(sampler) is not before)
