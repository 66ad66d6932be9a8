"""The monitor's panels for a living run, with its trainer marked; for one that has ended, what was recorded then."""

from __future__ import annotations

from textual.containers import VerticalScroll

from workbench.monitor.samples import MonitorSample
from workbench.runs import Metrics
from workbench.tui.canvas import CachedLines
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.cores import CoresPanel
from workbench.tui.panels.disk import DiskPanel
from workbench.tui.panels.gpu import GpuPanel
from workbench.tui.panels.memory import MemoryPanel
from workbench.tui.panels.pcie import PciePanel
from workbench.tui.panels.threads import ThreadsPanel
from workbench.tui.run.panel_layout import share_height
from workbench.tui.run.recorded_panel import RecordedPanel

LEAST_HEIGHT = 3
_TWO_WIDTH = 56
"""From this width on panels stand in two columns where one would leave them low."""
_THREE_WIDTH = 150
_LOW = 6

MonitorPanel = GpuPanel | CoresPanel | MemoryPanel | ThreadsPanel | PciePanel | DiskPanel


class MachineGroup(CachedLines, VerticalScroll, can_focus=False):
    """Six panels; the application's monitor samples for them."""

    DEFAULT_CSS = """
    MachineGroup { layout: grid; scrollbar-size-vertical: 1; }
    MachineGroup > Panel { height: 100%; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        self.threads = ThreadsPanel(glyphs, id="threads")
        self.panels: tuple[MonitorPanel, ...] = (
            GpuPanel(glyphs, id="gpu"),
            CoresPanel(glyphs, id="cores"),
            MemoryPanel(glyphs, id="memory"),
            self.threads,
            PciePanel(glyphs, id="pcie"),
            DiskPanel(glyphs, id="disk"),
        )
        self.recorded = RecordedPanel(glyphs, id="recorded")
        self.recorded.display = False
        super().__init__(*self.panels, self.recorded, id=id)
        self._sample: MonitorSample | None = None
        self._gpus = 0
        self._arranged: tuple[object, ...] = ()
        self._compact = False

    @property
    def living(self) -> bool:
        return not self.recorded.display

    def show(self, sample: MonitorSample) -> None:
        """Draw this sample, where the run lives."""
        self._sample = sample
        if not self.living:
            return
        if len(sample.gpus) != self._gpus:
            self._gpus = len(sample.gpus)
            self.lay_out()
        for panel in self.panels:
            panel.show(sample)

    def set_living(self, living: bool) -> None:
        """Whether the machine is shown as it is now, or as it was."""
        if living == self.living:
            return
        focused = any(panel.has_focus for panel in (*self.panels, self.recorded))
        self.recorded.display = not living
        if focused:
            (self.panels[0] if living else self.recorded).focus()
        for panel in self.panels:
            panel.display = living
        self.lay_out()
        if living and self._sample is not None:
            self.show(self._sample)

    def show_recorded(self, recorded: Metrics) -> None:
        self.recorded.show(recorded)

    def set_compact(self, compact: bool) -> None:
        """One column, however wide."""
        self._compact = compact
        self.lay_out()

    def on_resize(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        width, height = self.outer_size
        if not self.living:
            columns, heights = 1, [max(LEAST_HEIGHT, height)]
        else:
            columns = self._columns(width, height)
            wants = [self._wanted(panel) for panel in self.panels]
            rows = [max(wants[start : start + columns]) for start in range(0, len(wants), columns)]
            heights = share_height(height, rows, LEAST_HEIGHT)
        if self._arranged != (columns, heights, self.living):
            self._arranged = (columns, heights, self.living)
            self.styles.grid_size_columns = columns
            self.styles.grid_rows = " ".join(map(str, heights))

    def _columns(self, width: int, height: int) -> int:
        if self._compact or width < _TWO_WIDTH:
            return 1
        if width >= _THREE_WIDTH:
            return 3
        return 1 if height // len(self.panels) >= _LOW else 2

    def _wanted(self, panel: MonitorPanel) -> int:
        if isinstance(panel, GpuPanel):
            return 2 + (8 if self._gpus == 1 else min(16, max(3, self._gpus)))
        if isinstance(panel, PciePanel):
            return 2 + (5 if self._gpus == 1 else min(8, max(3, self._gpus)))
        return 2 + (5 if isinstance(panel, MemoryPanel | DiskPanel) else 8)
