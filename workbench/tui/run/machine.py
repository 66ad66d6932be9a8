"""The monitor's panels in a grid, and one panel of what a run that has ended recorded of its machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.containers import VerticalScroll
from textual.strip import Strip

from workbench.formatting import NOT_KNOWN, amount, number, percent, rate
from workbench.monitor.samples import MonitorSample
from workbench.runs import Metrics
from workbench.tui.canvas import CachedLines, CanvasWidget
from workbench.tui.charts.bars import sparkline
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.cores import CoresPanel, ThreadsPanel
from workbench.tui.panels.gpu import GpuPanel, PciePanel
from workbench.tui.panels.host_optimizer import HostOptimizerPanel, OptimizerLoad
from workbench.tui.panels.memory_and_disk import DiskPanel, MemoryPanel
from workbench.tui.panels.panel import Line, Panel, clean, cut, filled_up
from workbench.tui.run.events import clock

LEAST_HEIGHT = 3
MonitorPanel = HostOptimizerPanel | GpuPanel | CoresPanel | MemoryPanel | ThreadsPanel | PciePanel | DiskPanel
_POINTS = 240
_ROWS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("gpu_busy", "GPU busy", percent),
    ("gpu_memory_bytes", "GPU memory", amount),
    ("gpu_power_w", "GPU power", lambda value: number(value, 0, "W")),
    ("gpu_temperature_c", "GPU temperature", lambda value: number(value, 0, "C")),
    ("gpu_received_bytes_per_s", "PCIe to GPU", rate),
    ("gpu_sent_bytes_per_s", "PCIe to host", rate),
    ("host_busy", "CPU busy", percent),
    ("host_memory_bytes", "host memory", amount),
    ("swap_bytes", "swap", amount),
    ("trainer_busy", "trainer's cores", lambda value: number(value, 1)),
    ("trainer_memory_bytes", "trainer's memory", amount),
    ("disk_read_bytes_per_s", "disk read", rate),
    ("disk_written_bytes_per_s", "disk written", rate),
)
"""Column, name, and the format of its values."""
_NAME, _VALUE = 18, 13


class NoGpuLine(CanvasWidget):
    """One line in the place of the panels of GPU and PCIe where there is no GPU to show."""

    DEFAULT_CSS = """
    NoGpuLine { height: 1; color: $text-muted; }
    """

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="no-gpu")
        self._glyphs = glyphs
        self.note = ""

    def show(self, note: str) -> None:
        if note != self.note:
            self.note = note
            self.changed()

    def draw_rows(self, width: int, height: int) -> list[Strip]:
        text = cut(f" {clean(self.note, self._glyphs)}", width, self._glyphs)
        return [filled_up([Segment(text)], width, self._glyphs, self.rich_style)]


class MachinePanels(VerticalScroll, CachedLines, can_focus=False):
    """Seven panels that share the height by what they have to show. `columns`: how many fit into (width, height).

    Where there is no GPU its panels give their room away, and one line says so. A panel that the user has put away
    (`hidden`) stays away.
    """

    DEFAULT_CSS = """
    MachinePanels { layout: grid; scrollbar-size-vertical: 1; }
    MachinePanels > Panel { height: 100%; }
    """

    def __init__(self, glyphs: Glyphs, columns: Callable[[int, int], int], *, id: str | None = None) -> None:
        self.optimizer = HostOptimizerPanel(glyphs, id="optimizer")
        self.cores = CoresPanel(glyphs, id="cores")
        self.threads = ThreadsPanel(glyphs, id="threads")
        self.panels: tuple[MonitorPanel, ...] = (
            self.optimizer,
            self.cores,
            GpuPanel(glyphs, id="gpu"),
            MemoryPanel(glyphs, id="memory"),
            self.threads,
            PciePanel(glyphs, id="pcie"),
            DiskPanel(glyphs, id="disk"),
        )
        self.no_gpu = NoGpuLine(glyphs)
        super().__init__(*self.panels, self.no_gpu, id=id)
        self.hidden: frozenset[str] = frozenset()
        """The ids of panels that are put away."""
        self.sample: MonitorSample | None = None
        self._columns = columns
        self._arranged: tuple[object, ...] = ()

    def show(self, sample: MonitorSample | None) -> None:
        """Draw a sample, unless it is drawn already."""
        if sample is None or (self.sample is not None and sample.time == self.sample.time):
            return
        before, self.sample = self.sample, sample
        if before is None or len(before.gpus) != len(sample.gpus):
            self.lay_out()
        self.no_gpu.show(sample.gpu_note or "No GPU is shown here.")
        for panel in self.panels:
            panel.show(sample)

    def set_load(self, load: OptimizerLoad | None) -> None:
        """Show the host optimizer's load from the next sample on."""
        self.cores.load = self.threads.load = load or OptimizerLoad()
        self.optimizer.set_load(load)

    @property
    def shown(self) -> list[MonitorPanel]:
        """The panels that have something to show, and are not put away."""
        no_gpu = self.sample is not None and not self.sample.gpus
        return [
            panel
            for panel in self.panels
            if panel.id not in self.hidden and not (no_gpu and isinstance(panel, GpuPanel | PciePanel))
        ]

    def on_resize(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """Put the panels that are displayed into rows and columns; rows that do not fit are scrolled to."""
        width, height = self.outer_size
        shown = self.shown
        folded = self.sample is not None and not self.sample.gpus
        for panel in self.panels:
            panel.display = panel in shown
        self.no_gpu.display = folded
        columns = max(1, min(len(shown), self._columns(width, height)))
        wanted = [self._wanted(panel) for panel in shown]
        rows = [max(wanted[start : start + columns]) for start in range(0, len(wanted), columns)]
        heights = [*share_height(height - folded, rows, LEAST_HEIGHT), *([1] if folded else [])]
        if self._arranged == (columns, heights, shown):
            return
        self._arranged = (columns, heights, shown)
        self.styles.grid_size_columns = columns
        self.styles.grid_rows = " ".join(map(str, heights))
        for place, panel in enumerate(shown):
            # The last panel takes what is left of its row.
            panel.styles.column_span = columns - place % columns if place == len(shown) - 1 else 1
        self.no_gpu.styles.column_span = columns

    def _wanted(self, panel: MonitorPanel) -> int:
        """Return the height, with its box, at which a panel leaves nothing out."""
        gpus = len(self.sample.gpus) if self.sample else 0
        if isinstance(panel, GpuPanel):
            return 2 + (9 if gpus == 1 else min(16, max(3, gpus)))
        if isinstance(panel, PciePanel):
            return 2 + (6 if gpus == 1 else min(8, max(3, gpus)))
        if isinstance(panel, CoresPanel):
            return 2 + 12
        return 2 + (6 if isinstance(panel, MemoryPanel | DiskPanel) else 7)


class RecordedPanel(Panel):
    TITLE = "Machine during the run"
    HELP: ClassVar[str | None] = """\
### The machine during the run

From `system.bin`, which the trainer writes every ten seconds: the last value, the highest, and all of them over the
run's time. `N/A`: never known.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._recorded: Metrics | None = None
        self._series: dict[str, list[float | None]] = {}
        self._at: float | None = None

    def show_at(self, time: float | None) -> None:
        """Show the sample of this moment, seconds since 1970, in the place of the last one; None: the last one."""
        self._at = time
        self.changed()

    def _chosen(self, recorded: Metrics) -> Mapping[str, float]:
        if self._at is None or not len(recorded):
            return recorded.last()
        # A record is of the time since the one before.
        place = min(int(recorded.column("time").searchsorted(self._at)), len(recorded) - 1)
        return {column.name: float(recorded.column(column.name)[place]) for column in recorded.columns}

    def show(self, recorded: Metrics) -> None:
        """Draw what `workbench.monitor.recording.read_system` returns."""
        self._recorded = recorded
        self._series = {
            name: _highest_of_parts(
                [value if math.isfinite(value) else None for value in recorded.column(name)],
                min(_POINTS, len(recorded)),
            )
            for name, _, _ in _ROWS
        }
        self.changed()

    def heading(self) -> tuple[str, ...]:
        last = self._chosen(self._recorded) if self._recorded else {}
        if self._at is not None and "time" in last:
            return (f"at {clock(last['time'])}",)
        return (f"ended {clock(last['time'])}",) if "time" in last else ()

    def lines(self, width: int, height: int) -> list[Line]:
        recorded = self._recorded
        if recorded is None:
            return self.note("Reading.", width)
        if not len(recorded):
            is_damaged = recorded.problem and "missing" not in recorded.problem
            problem = recorded.problem if is_damaged else "The machine was not recorded during this run."
            return self.note(clean(problem, self.glyphs), width)
        last = self._chosen(recorded)
        head = "last" if self._at is None else "then"
        out = [self.write(f"{'':{_NAME}}{head:>{_VALUE}}{'highest':>{_VALUE}}", "dim")]
        room = width - _NAME - 2 * _VALUE - 2
        for name, label, form in _ROWS:
            values = self._series[name]
            highest = max((value for value in values if value is not None), default=None)
            text = NOT_KNOWN if highest is None else form(highest)
            line = [
                *self.write(f"{label:{_NAME}}", "dim"),
                *self.write(f"{form(last.get(name)):>{_VALUE}}{text:>{_VALUE}}"),
            ]
            if room >= 8 and highest is not None:
                parts = _highest_of_parts(values, room)
                line += self.write("  ")
                line += self.write(sparkline(parts, room, self.glyphs, high=highest or None)[0], "good")
            out.append(line)
        return out


def _highest_of_parts(values: list[float | None], count: int) -> list[float | None]:
    """Return the highest value of each of `count` parts of equal length."""
    out: list[float | None] = []
    for part in range(count if values else 0):
        start = part * len(values) // count
        stop = max(start + 1, (part + 1) * len(values) // count)
        out.append(max((value for value in values[start:stop] if value is not None), default=None))
    return out


def share_height(height: int, wanted: Sequence[int], least: int) -> list[int]:
    """Share `height` rows of cells among rows of panels that want so many; none gets less than `least`.

    A row of cells goes where most is lacking; when nothing is, to the lowest in turn.
    """
    heights = [least] * len(wanted)
    for _ in range(height - sum(heights)):
        lacking = [want - has for want, has in zip(wanted, heights, strict=True)]
        most = max(lacking)
        heights[lacking.index(most) if most > 0 else heights.index(min(heights))] += 1
    return heights
