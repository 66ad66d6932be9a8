"""What the screen is measured with: a run of any length, made on the spot, and a busy machine of 64 cores and 8 GPUs.

The same every time: values come from seeds, and only what a machine's clock says differs.
"""

from __future__ import annotations

import math
import os
import random
import socket
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.screen.machine import DISK, GIB, H200, host, trainer
from workbench.monitor.samples import GpuProcess, MonitorSample, ThreadSample
from workbench.runs import LaneSpan, MetricsWriter, RunDirectory, Status, write_lanes, write_status
from workbench.runs.status import process_started

CORES, GPUS = 64, 8
SPANS = 400
"""Of each lane, in a step."""
CONFIG = '[model]\narchitecture = "gpt2"\n[train]\ndevice = "cpu"\nsteps = 2000000\n'


class ForgedRun:
    """A run in `root` that this process trains; `step_on` does a step of it."""

    def __init__(self, root: Path, steps: int) -> None:
        self.directory = RunDirectory(root / "20260101-000001-forged-0a1b2c")
        self.directory.checkpoints.mkdir(parents=True)
        self.directory.samples.mkdir()
        self.directory.config.write_text(CONFIG)
        self.directory.events.touch()
        self._chance = random.Random(1)
        self._writer = MetricsWriter(self.directory.metrics)
        self.step = 0
        for _ in range(steps):
            self._record()
        self._write_rest("training")

    def step_on(self) -> None:
        """A record, a status, the lanes of the step and a line of the log."""
        self._record()
        self._write_rest("training")

    def end(self, exit_code: int = 0) -> None:
        self._write_rest("finished", exit_code)
        self._writer.close()

    def _loss(self) -> float:
        return 3.05 + 7 * math.exp(-self.step / 500) + self._chance.gauss(0, 0.05)

    def _record(self) -> None:
        self.step += 1
        self._writer.append(
            step=self.step,
            time=1.7e9 + self.step,
            loss=self._loss(),
            grad_norm=1 + self._chance.random(),
            learning_rate=1e-4,
            tokens_total=4096.0 * self.step,
            step_s=1.0,
            tokens_per_s=self._chance.gauss(4096, 50),
            mfu=0.3,
            update_s=0.1,
        )

    def _write_rest(self, phase: str, exit_code: int | None = None) -> None:
        run, pid = self.directory, os.getpid()
        status = Status(
            phase=phase,
            step=self.step,
            total_steps=2_000_000,
            loss=self._loss(),
            tokens_per_s=self._chance.gauss(4096, 50),
            elapsed_s=float(self.step),
            eta_s=3600.0 if exit_code is None else None,
            pid=pid,
            pid_started=process_started(pid) or 0.0,
            host=socket.gethostname(),
            heartbeat=time.time(),
            exit_code=exit_code,
        )
        write_status(run, status, durable=False)
        each = 0.7 / SPANS
        spans = [
            LaneSpan("compute", "forward", -1, -1, 0.0, 0.3),
            LaneSpan("compute", "backward", -1, -1, 0.3, 1.0),
        ]
        for lane in ("download", "update", "upload"):
            for number in range(SPANS):
                begin = 0.3 + number * each
                end = begin + each * self._chance.random()
                spans.append(LaneSpan(lane, lane, number // 8, number % 8, begin, end))
        write_lanes(run, self.step, spans)
        with run.log.open("a") as log:
            log.write(f"step {self.step:07}/2000000 | loss {self._loss():.4f} | gnorm 1.00 | lr 1.0e-04\n")


class ForgedMonitor:
    """A new sample of a busy machine every `interval_s`, in which everything has changed."""

    def __init__(self, interval_s: float = 0.5) -> None:
        self._interval_s = interval_s
        self._sample: MonitorSample | None = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None: ...

    @property
    def latest(self) -> MonitorSample:
        number = int(time.time() / self._interval_s)
        now = number * self._interval_s
        if self._sample is None or self._sample.time != now:
            self._sample = sample(now, random.Random(number))
        return self._sample


def sample(now: float, chance: random.Random) -> MonitorSample:
    """One moment of it."""
    pid = os.getpid()
    gpus = tuple(
        replace(
            H200,
            index=index,
            busy=chance.random(),
            memory_busy=chance.random(),
            memory_used_bytes=chance.randrange(90 * GIB, 110 * GIB),
            power_w=chance.uniform(300, 700),
            temperature_c=chance.uniform(50, 80),
            clock_mhz=chance.randrange(1500, 1980),
            pcie_received_bytes_per_s=chance.uniform(1, 50) * GIB,
            pcie_sent_bytes_per_s=chance.uniform(1, 50) * GIB,
            processes=(GpuProcess(pid, "python", 90 * GIB),),
        )
        for index in range(GPUS)
    )
    threads = tuple(ThreadSample(f"host-adam/{i}", 500 + i, chance.random(), i) for i in range(16))
    return MonitorSample(
        time=now,
        host=replace(
            host(CORES),
            cores=tuple(chance.random() for _ in range(CORES)),
            load=(chance.uniform(30, 60), 50.0, 40.0),
            memory_used_bytes=chance.randrange(200 * GIB, 300 * GIB),
            numa_nodes=(tuple(range(CORES // 2)), tuple(range(CORES // 2, CORES))),
        ),
        gpus=gpus,
        trainer=replace(
            trainer(pid),
            memory_bytes=chance.randrange(200 * GIB, 250 * GIB),
            busy=chance.uniform(10, 20),
            threads=threads,
            read_bytes_per_s=chance.uniform(0, 2) * GIB,
            written_bytes_per_s=chance.uniform(0, 2) * GIB,
        ),
        disks=(replace(DISK, read_bytes_per_s=chance.uniform(0, 2) * GIB),),
    )
