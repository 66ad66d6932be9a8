"""The monitor's six panels in a grid, and one panel of what a run that has ended recorded of its machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.containers import VerticalScroll

from workbench.formatting import NOT_KNOWN, amount, number, percent, rate
from workbench.monitor.samples import MonitorSample
from workbench.runs import Metrics
from workbench.tui.canvas import CachedLines
from workbench.tui.charts.bars import sparkline
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.cores import CoresPanel, ThreadsPanel
from workbench.tui.panels.gpu import GpuPanel, PciePanel
from workbench.tui.panels.memory_and_disk import DiskPanel, MemoryPanel
from workbench.tui.panels.panel import Line, Panel, clean
from workbench.tui.run.events import clock

LEAST_HEIGHT = 3
MonitorPanel = GpuPanel | CoresPanel | MemoryPanel | ThreadsPanel | PciePanel | DiskPanel
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


class MachinePanels(VerticalScroll, CachedLines, can_focus=False):
    """Six panels that share the height by what they have to show. `columns`: how many fit into (width, height)."""

    DEFAULT_CSS = """
    MachinePanels { layout: grid; scrollbar-size-vertical: 1; }
    MachinePanels > Panel { height: 100%; }
    """

    def __init__(self, glyphs: Glyphs, columns: Callable[[int, int], int], *, id: str | None = None) -> None:
        self.threads = ThreadsPanel(glyphs, id="threads")
        self.panels: tuple[MonitorPanel, ...] = (
            GpuPanel(glyphs, id="gpu"),
            CoresPanel(glyphs, id="cores"),
            MemoryPanel(glyphs, id="memory"),
            self.threads,
            PciePanel(glyphs, id="pcie"),
            DiskPanel(glyphs, id="disk"),
        )
        super().__init__(*self.panels, id=id)
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
        for panel in self.panels:
            panel.show(sample)

    def on_resize(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """Put the panels that are displayed into rows and columns; rows that do not fit are scrolled to."""
        width, height = self.outer_size
        shown = [panel for panel in self.panels if panel.display]
        columns = max(1, min(len(shown), self._columns(width, height)))
        wanted = [self._wanted(panel) for panel in shown]
        rows = [max(wanted[start : start + columns]) for start in range(0, len(wanted), columns)]
        heights = share_height(height, rows, LEAST_HEIGHT)
        if self._arranged == (columns, heights, shown):
            return
        self._arranged = (columns, heights, shown)
        self.styles.grid_size_columns = columns
        self.styles.grid_rows = " ".join(map(str, heights))
        for place, panel in enumerate(shown):
            # The last panel takes what is left of its row.
            panel.styles.column_span = columns - place % columns if place == len(shown) - 1 else 1

    def _wanted(self, panel: MonitorPanel) -> int:
        """Return the height, with its box, at which a panel leaves nothing out."""
        gpus = len(self.sample.gpus) if self.sample else 0
        if isinstance(panel, GpuPanel):
            return 2 + (9 if gpus == 1 else min(16, max(3, gpus)))
        if isinstance(panel, PciePanel):
            return 2 + (6 if gpus == 1 else min(8, max(3, gpus)))
        return 2 + (6 if isinstance(panel, MemoryPanel | DiskPanel) else 8)


class RecordedPanel(Panel):
    TITLE = "Machine then"
    HELP: ClassVar[str | None] = """\
### The machine during the run

From `system.bin`, which the trainer writes every ten seconds: the last value, the highest, and all of them over the
run's time. `N/A`: it was never known.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._recorded: Metrics | None = None
        self._series: dict[str, list[float | None]] = {}

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
        last = self._recorded.last() if self._recorded else {}
        return (f"until {clock(last['time'])}",) if "time" in last else ()

    def lines(self, width: int, height: int) -> list[Line]:
        recorded = self._recorded
        if recorded is None:
            return self.note("Reading.", width)
        if not len(recorded):
            is_damaged = recorded.problem and "missing" not in recorded.problem
            problem = recorded.problem if is_damaged else "The machine was not recorded during this run."
            return self.note(clean(problem, self.glyphs), width)
        last = recorded.last()
        out = [self.write(f"{'':{_NAME}}{'last':>{_VALUE}}{'highest':>{_VALUE}}", "dim")]
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
