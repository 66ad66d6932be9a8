"""A small application that shows one panel at a size, and the samples that panels are tested with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from workbench.monitor.samples import (
    DiskSample,
    GpuProcess,
    GpuSample,
    HostSample,
    MonitorSample,
    ThreadSample,
    TrainerSample,
)
from workbench.runs import Lanes, LaneSpan

GIB = 1 << 30
SIZES = ((20, 3), (40, 10), (80, 24), (120, 40))
TRAINER = 4242

AnyWidget = TypeVar("AnyWidget", bound=Widget)


class OneWidget(App[None]):
    """Shows one widget, as large as it is told to be."""

    def __init__(self, widget: Widget, width: int, height: int) -> None:
        super().__init__()
        self.widget = widget
        widget.styles.width, widget.styles.height = width, height

    def compose(self) -> ComposeResult:
        yield self.widget


def with_widget(
    widget: AnyWidget,
    size: tuple[int, int],
    scenario: Callable[[Pilot[None], AnyWidget], Awaitable[None]],
) -> None:
    """Run the scenario with the widget on a screen a little larger than itself."""

    async def run() -> None:
        width, height = size
        app = OneWidget(widget, width, height)
        async with app.run_test(size=(width + 2, height + 2)) as pilot:
            await pilot.pause()
            await scenario(pilot, widget)

    asyncio.run(run())


def picture(widget: Widget) -> list[str]:
    """What the widget draws, its border too, as the screen would show it."""
    size = widget.outer_size
    strips = widget.render_lines(size.region)
    return ["".join(segment.text for segment in strip) for strip in strips]


def drawn(widget: AnyWidget, size: tuple[int, int], prepare: Callable[[AnyWidget], None]) -> list[str]:
    """The picture of the widget after `prepare`."""
    out: list[str] = []

    async def scenario(pilot: Pilot[None], shown: AnyWidget) -> None:
        prepare(shown)
        await pilot.pause()
        out.extend(picture(shown))

    with_widget(widget, size, scenario)
    return out


def check_box(rows: list[str], size: tuple[int, int], *, ascii_only: bool) -> None:
    """Exactly as large as asked for; plain mode has no character above U+007F."""
    from rich.cells import cell_len

    assert [cell_len(row) for row in rows] == [size[0]] * size[1]
    if ascii_only:
        assert all(row.isascii() for row in rows), [row for row in rows if not row.isascii()]


def gpu(index: int, **changes: object) -> GpuSample:
    """An H200 at work."""
    values: dict[str, object] = {
        "name": "NVIDIA H200",
        "busy": 0.87,
        "memory_busy": 0.41,
        "memory_used_bytes": 103 * GIB,
        "memory_total_bytes": 140 * GIB,
        "power_w": 410.0,
        "power_limit_w": 700.0,
        "temperature_c": 62.0,
        "temperature_limit_c": 87.0,
        "clock_mhz": 1755,
        "clock_limit_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_clock_limit_mhz": 3201,
        "throttled_by": (),
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_limit_bytes_per_s": 63.0e9,
        "pcie_received_bytes_per_s": 24.0 * GIB,
        "pcie_sent_bytes_per_s": 3.5 * GIB,
        "processes": (
            GpuProcess(TRAINER, "python", 98 * GIB),
            GpuProcess(99, "Xorg", 4 * GIB),
        ),
    }
    return GpuSample(index=index, **{**values, **changes})  # type: ignore[arg-type]


def server(time: float = 1000.0, gpus: int = 8, cores: int = 192) -> MonitorSample:
    """A machine with 8 H200 and 192 cores in two memory nodes; the last quarter of the cores is not ours."""
    busy = tuple((core * 37 % 101) / 100 for core in range(cores))
    threads = [ThreadSample("python", 500, 0.99, 0)]
    threads += [ThreadSample(f"host-adam/{i}", 501 + i, 0.95 - i / 100, 2 * i) for i in range(16)]
    return MonitorSample(
        time=time,
        host=HostSample(
            cores=busy,
            allowed_cores=tuple(range(3 * cores // 4)),
            cpu_limit=64.0,
            load=(61.2, 55.0, 40.1),
            memory_total_bytes=1024 * GIB,
            memory_used_bytes=300 * GIB,
            memory_cached_bytes=200 * GIB,
            memory_available_bytes=700 * GIB,
            swap_used_bytes=0,
            swap_total_bytes=8 * GIB,
            numa_nodes=(tuple(range(cores // 2)), tuple(range(cores // 2, cores))),
        ),
        gpus=tuple(gpu(i) for i in range(gpus)),
        trainer=TrainerSample(
            pid=TRAINER,
            memory_bytes=250 * GIB,
            busy=16.2,
            threads=tuple(threads),
            read_bytes_per_s=1.5 * GIB,
            written_bytes_per_s=0.25 * GIB,
        ),
        disks=(
            DiskSample("/data/runs", "nvme0n1", 3500 * GIB, 1200 * GIB, 2.0 * GIB, 0.5 * GIB, 0.66),
            DiskSample("/scratch", "nvme1n1", 7000 * GIB, 300 * GIB, 0.0, 0.0, 0.0),
        ),
    )


def laptop(time: float = 1000.0) -> MonitorSample:
    """8 cores, no GPU, nobody trains."""
    return MonitorSample(
        time=time,
        host=HostSample(
            cores=(0.5, 0.25, 0.0, 1.0, 0.1, 0.2, 0.3, 0.4),
            allowed_cores=tuple(range(8)),
            load=(1.5, 1.2, 0.9),
            memory_total_bytes=16 * GIB,
            memory_used_bytes=9 * GIB,
            memory_cached_bytes=4 * GIB,
            memory_available_bytes=6 * GIB,
            swap_used_bytes=1 * GIB,
            swap_total_bytes=2 * GIB,
        ),
        gpu_note="No GPU is shown: there is no NVIDIA driver here.",
        disks=(DiskSample(str(Path("/home")), None, 500 * GIB, 20 * GIB, None, None, None),),
    )


def nothing(time: float = 1000.0) -> MonitorSample:
    """Everything that may be None is."""
    return MonitorSample(
        time=time,
        host=HostSample(cores=(0.0, 0.0)),
        gpus=(GpuSample(0), GpuSample(1, fault="The GPU has fallen off the bus.")),
        trainer=TrainerSample(pid=TRAINER, threads=(ThreadSample("worker", 7, 0.5),)),
        disks=(DiskSample("/data"),),
    )


def step_lanes(spans: int = 2000, seed: int = 0) -> Lanes:
    """A step of 3.2 s: forward, backward with downloads behind it, then updates and uploads, partly after it."""
    random = Random(seed)
    out = [
        LaneSpan("compute", "forward", -1, -1, 0.0, 1.0),
        LaneSpan("compute", "backward", -1, -1, 1.0, 2.6),
    ]
    each = max(1, (spans - 2) // 3)
    for lane, name, begin, end in (
        ("download", "download", 1.1, 2.7),
        ("update", "update", 1.3, 3.1),
        ("upload", "upload", 1.4, 3.2),
    ):
        length = (end - begin) / each
        for i in range(each):
            start = begin + i * length
            out.append(LaneSpan(lane, name, i // 8, i % 8, start, start + length * random.uniform(0.3, 1.0)))
    return Lanes(step=120, spans=tuple(out))
