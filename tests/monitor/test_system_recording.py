"""system.bin: what the machine did during a run, and a run that goes on whatever becomes of it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.monitor.recording import SYSTEM_COLUMNS, SystemRecording, read_system
from workbench.monitor.sampler import Sampler
from workbench.monitor.samples import DiskSample, GpuSample, HostSample, MonitorSample, TrainerSample
from workbench.runs import RunDirectory

LOOK_S = 0.001


class Script(Sampler):
    """Shows one sample after the other, one a look; then the last one for ever."""

    def __init__(self, *samples: MonitorSample) -> None:
        super().__init__()
        self.samples = list(samples)
        self.shown = threading.Event()
        self.sampling = False

    def start(self) -> None:
        self.sampling = True

    def stop(self) -> None:
        self.sampling = False

    @property
    def latest(self) -> MonitorSample | None:
        if len(self.samples) > 1:
            return self.samples.pop(0)
        self.shown.set()
        return self.samples[0]


def sample(moment: int, **other: Any) -> MonitorSample:
    gpus = (GpuSample(0, uuid="GPU-a", busy=moment / 10, memory_used_bytes=moment),)
    return MonitorSample(**{"time": 1000.0 + moment, "host": HostSample(), "gpus": gpus, **other})


@pytest.fixture
def warnings() -> list[str]:
    return []


def recorded(
    run: RunDirectory, script: Script, warnings: list[str], *, gpu: str | None = "a", looks: int = 3
) -> None:
    with SystemRecording(
        run, gpu=gpu, warn=warnings.append, every_s=looks * LOOK_S, look_every_s=LOOK_S, sampler=script
    ):
        assert script.shown.wait(10)
    assert not script.sampling


def test_a_record_is_the_mean_of_its_looks_and_of_sizes_the_highest(
    run: RunDirectory, warnings: list[str]
) -> None:
    looks = [
        sample(moment, gpus=(GpuSample(0, uuid="GPU-a", busy=busy, memory_used_bytes=memory),))
        for moment, (busy, memory) in enumerate(
            [(0.0, 5), (0.5, 9), (1.0, 4), (0.75, 2), (None, None), (0.25, 1), (1.0, 8)]
        )
    ]
    recorded(run, Script(*looks), warnings, looks=3)
    metrics = read_system(run)
    assert metrics.problem == ""
    assert metrics.column("time").tolist() == [1002.0, 1005.0, 1006.0]
    assert metrics.column("gpu_busy").tolist() == [0.5, 0.5, 1.0]
    assert metrics.column("gpu_memory_bytes").tolist() == [9.0, 2.0, 8.0]
    assert warnings == []


def test_each_column_has_its_value(run: RunDirectory, warnings: list[str]) -> None:
    full = sample(
        1,
        host=HostSample(
            cores=(1.0, 0.5, 0.0, 0.25), allowed_cores=(0, 3), memory_used_bytes=7, swap_used_bytes=2
        ),
        gpus=(
            GpuSample(
                0,
                uuid="GPU-a",
                busy=0.5,
                memory_used_bytes=11,
                power_w=300.5,
                temperature_c=60.0,
                pcie_received_bytes_per_s=1e9,
                pcie_sent_bytes_per_s=2e9,
            ),
        ),
        trainer=TrainerSample(1, memory_bytes=5, busy=1.5),
        disks=(
            DiskSample("/a", "nvme0n1", read_bytes_per_s=10.0, written_bytes_per_s=1.0),
            DiskSample("/b", "nvme0n1", read_bytes_per_s=10.0, written_bytes_per_s=1.0),
            DiskSample("/c", "nvme1n1", read_bytes_per_s=5.0, written_bytes_per_s=None),
        ),
    )
    recorded(run, Script(full), warnings)
    assert read_system(run).last() == {
        "step": 0.0,
        "time": 1001.0,
        "gpu_busy": 0.5,
        "gpu_memory_bytes": 11.0,
        "gpu_power_w": 300.5,
        "gpu_temperature_c": 60.0,
        "gpu_received_bytes_per_s": 1e9,
        "gpu_sent_bytes_per_s": 2e9,
        "host_busy": 0.625,
        "host_memory_bytes": 7.0,
        "swap_bytes": 2.0,
        "trainer_busy": 1.5,
        "trainer_memory_bytes": 5.0,
        "disk_read_bytes_per_s": 15.0,
        "disk_written_bytes_per_s": 1.0,
    }
    assert len(read_system(run).last()) == len(SYSTEM_COLUMNS)


@pytest.mark.parametrize(
    ("gpu", "busy"), [("b", 0.9), ("GPU-b", 0.9), (None, None), ("GPU-c", None), ("", None)]
)
def test_the_trainers_gpu_is_found_by_its_uuid_and_no_other_is_taken_for_it(
    run: RunDirectory, warnings: list[str], gpu: str | None, busy: float | None
) -> None:
    gpus = (GpuSample(0, busy=0.1), GpuSample(1, uuid="GPU-b", busy=0.9))
    recorded(run, Script(sample(1, gpus=gpus)), warnings, gpu=gpu)
    assert read_system(run).last().get("gpu_busy") == busy


def test_a_full_disk_is_one_warning_and_recording_goes_on_when_there_is_room(
    run: RunDirectory, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.write, []

    def write(descriptor: int, data: bytes) -> int:
        if len(refused) < 3:
            refused.append(data)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr("workbench.runs.metrics.os.write", write)

    def warn(message: str) -> None:
        """What the trainer does with a warning needs the same disk."""
        warnings.append(message)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    script = Script(*(sample(moment) for moment in range(1, 6)))
    with SystemRecording(run, gpu="a", warn=warn, every_s=LOOK_S, look_every_s=LOOK_S, sampler=script):
        assert script.shown.wait(10)
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    assert read_system(run).column("time").tolist() == [1004.0, 1005.0]


def test_a_file_that_is_something_else_is_left_alone_with_a_warning(
    run: RunDirectory, warnings: list[str]
) -> None:
    run.system.write_bytes(b"no metrics file at all, but something else")
    with SystemRecording(run, gpu="a", warn=warnings.append, look_every_s=LOOK_S, sampler=Script(sample(1))):
        pass
    assert len(warnings) == 1
    assert "not a metrics file" in warnings[0]
    assert run.system.read_bytes() == b"no metrics file at all, but something else"


def test_a_run_that_ends_at_once_is_not_held_up(
    run: RunDirectory, warnings: list[str], tmp_path: Path
) -> None:
    began = time.monotonic()
    with SystemRecording(run, gpu=None, folders=(tmp_path,), warn=warnings.append):
        pass
    assert time.monotonic() - began < 1.5
    assert warnings == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("monitor-", "system-"))]


def test_the_real_machine_is_recorded_with_this_process_as_the_trainer(
    run: RunDirectory, warnings: list[str], tmp_path: Path
) -> None:
    recording = SystemRecording(
        run, gpu=None, folders=(tmp_path,), warn=warnings.append, every_s=0.02, look_every_s=0.02
    )
    with recording:
        until = time.monotonic() + 10
        while not len(read_system(run)) and time.monotonic() < until:
            threading.Event().wait(0.005)
    last = read_system(run).last()
    assert last["trainer_memory_bytes"] > 1 << 20
    assert last["host_memory_bytes"] > 1 << 20
    assert abs(last["time"] - time.time()) < 60
