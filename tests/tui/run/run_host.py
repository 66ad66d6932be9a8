"""A small application that shows the run's screen, and run directories made on the spot."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import screen_host
from screen_host import NEVER_S, NoMonitor, text_of, until
from textual.app import App
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.monitor.samples import MonitorSample
from workbench.runs import (
    LaneSpan,
    MetricsWriter,
    RunDirectory,
    Status,
    append_event,
    write_lanes,
    write_plan,
    write_sample,
    write_status,
)
from workbench.runs.status import process_started
from workbench.tui.context import AppContext
from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.messages import ResumeRun
from workbench.tui.run.screen import RunScreen

GIB = 1 << 30
NAME = "20260101-000001-quickstart-0a1b2c"
CONFIG = """
[train]
device = "cpu"
precision = "bf16"
[offload]
weights = "device"
state = "host"
state_format = "exact"
disk_path = ""
"""
PLAN: dict[str, object] = {
    "placement": {"weights": "device", "state": "host", "device_fraction": 0.0},
    "memory": {
        "parameters": 1_000_000,
        "tiers": [
            {"tier": "device", "needs": {"weights": 2_000_000}, "needed_bytes": 3 * GIB},
            {"tier": "host", "needs": {"exp_avg and exp_avg_sq": 8_000_000}, "needed_bytes": 4 * GIB},
        ],
    },
    "time": {"step_s": 0.5, "tokens_per_s": 2000.0},
}


class FixedMonitor(NoMonitor):
    """Gives what it was given, and remembers what it is to watch."""

    def __init__(self, latest: MonitorSample | None = None) -> None:
        super().__init__(latest)
        self.watched: list[tuple[int | None, tuple[Path, ...]]] = []

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None:
        self.watched.append((pid, folders))


class Host(App[None]):
    """Shows one run's screen, and remembers what it is asked for."""

    def __init__(self, screen: RunScreen, monitor: FixedMonitor) -> None:
        super().__init__()
        self.run_screen = screen
        self.monitor = monitor
        self.resumed: list[RunDirectory] = []
        self.copied = ""
        self.bells = 0
        self.toasts: list[str] = []

    def on_mount(self) -> None:
        self.push_screen(self.run_screen)

    def on_resume_run(self, message: ResumeRun) -> None:
        self.resumed.append(message.run)

    def copy_to_clipboard(self, text: str) -> None:
        self.copied = text

    def bell(self) -> None:
        self.bells += 1

    @property
    def text(self) -> str:
        return text_of(self)

    def notify(self, message: str, **options: Any) -> None:
        self.toasts.append(message)
        super().notify(message, **options)


async def look(host: Host, pilot: Pilot[None]) -> None:
    """Look at the run once more, and show what was found."""
    screen = host.run_screen
    await until(pilot, lambda: not screen.reading)
    screen.tick()
    await until(pilot, lambda: not screen.reading)


@asynccontextmanager
async def shown(
    run: RunDirectory,
    *,
    size: tuple[int, int] = (120, 40),
    glyphs: Glyphs = BLOCKS,
    sample: MonitorSample | None = None,
    read_only: bool = False,
) -> AsyncIterator[tuple[Host, Pilot[None]]]:
    """Show a run's screen, once the run was read for the first time."""
    monitor = FixedMonitor(sample)
    context = AppContext(run.path.parent, monitor, glyphs, interval_s=NEVER_S, read_only=read_only)
    screen = RunScreen(context, run)
    host = Host(screen, monitor)
    async with host.run_test(size=size) as pilot:
        await until(
            pilot, lambda: screen.latest is not None and not screen.latest.more and not screen.reading
        )
        yield host, pilot


def picture(widget: Widget) -> str:
    """What the widget draws, its border too."""
    return "\n".join(screen_host.picture(widget))


def live(phase: str = "training", **changes: object) -> Status:
    """The status of a run whose trainer is this very process."""
    values: dict[str, object] = {
        "phase": phase,
        "step": 20,
        "total_steps": 100,
        "pid": os.getpid(),
        "pid_started": process_started(os.getpid()),
        "host": socket.gethostname(),
        "loss": 3.2,
        "tokens_per_s": 2048.0,
        "elapsed_s": 65.0,
        "eta_s": 3600.0,
    }
    return Status(**{**values, **changes})  # type: ignore[arg-type]


def ended(phase: str, exit_code: int | None, message: str, **changes: object) -> Status:
    return live(phase, exit_code=exit_code, message=message, eta_s=None, **changes)


def add_steps(
    run: RunDirectory, first: int, last: int, *, loss: Callable[[int], float] = lambda step: 2 + 5 / step
) -> None:
    """The records of the steps first to last, both with them; every tenth is evaluated."""
    with MetricsWriter(run.metrics) as writer:
        writer.truncate(first)
        for step in range(first, last + 1):
            writer.append(
                step=step,
                time=2e9 + step,  # later than this process began
                loss=loss(step),
                grad_norm=1 + 1 / step,
                learning_rate=1e-4 * step,
                tokens_total=1000 * step,
                step_s=0.5,
                tokens_per_s=2000.0,
                update_s=0.1,
                update_exposed_s=0.02,
                update_threads=4,
                speculated=750_000,
                undone=250_000 if step == last else 0,
                validation_loss=loss(step) + 0.1 if step % 10 == 0 else None,
            )


def new_run(root: Path, status: Status | None = None, *, steps: int = 20) -> RunDirectory:
    """A run with everything in it; without a status where none is given."""
    path = root / NAME
    path.mkdir(parents=True)
    run = RunDirectory(path)
    run.samples.mkdir()
    run.checkpoints.mkdir()
    run.config.write_text(CONFIG)
    write_plan(run, PLAN)
    if steps:
        add_steps(run, 1, steps)
        write_lanes(
            run,
            steps,
            [
                LaneSpan("compute", "forward", -1, -1, 0.0, 0.2),
                LaneSpan("compute", "backward", -1, -1, 0.2, 0.4),
                LaneSpan("download", "download", 0, 0, 0.25, 0.45),
                LaneSpan("update", "update", 0, 0, 0.4, 0.5),
                LaneSpan("upload", "upload", 0, 0, 0.45, 0.5),
            ],
        )
        append_event(run, "evaluation", step=10, loss=2.6, perplexity=13.46, seconds=1.5)
        append_event(run, "checkpoint", step=20, path="checkpoints/step-00000020", seconds=0.2)
        write_sample(run, 20, "Once upon a time\nthere was a sample of the model.\n")
        append_event(run, "sample", step=20, path="samples/step-00000020.txt")
        append_event(run, "warning", message="the disk is slow")
        run.log.write_text(
            "\n".join(f"step {step:05}/00100 | loss 3.2" for step in range(1, steps + 1)) + "\n"
        )
    if status is not None:
        write_status(run, status, durable=False)
    return run


def rewrite(run: RunDirectory, **values: object) -> None:
    """Change fields of the status as they stand in the file, the heartbeat too."""
    there = json.loads(run.status.read_text())
    run.status.write_text(json.dumps({**there, **values}))
