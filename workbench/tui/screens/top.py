"""The monitor alone: GPUs, cores, memory, threads, PCIe and disks, laid out by the width of the terminal.

Invariant: the screen takes the monitor's newest sample and waits for nothing; while it is frozen or not the one that is
seen, it draws nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen

from workbench.monitor.samples import MonitorSample
from workbench.tui.context import AppContext
from workbench.tui.messages import HidePanels
from workbench.tui.panels.cores import CoresPanel
from workbench.tui.panels.disk import DiskPanel
from workbench.tui.panels.gpu import GpuPanel
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.panels.memory import MemoryPanel
from workbench.tui.panels.pcie import PciePanel
from workbench.tui.panels.status_line import StatusLine
from workbench.tui.panels.threads import ThreadsPanel

LEAST_HEIGHT = 3
MonitorPanel = GpuPanel | CoresPanel | MemoryPanel | ThreadsPanel | PciePanel | DiskPanel


@dataclass(frozen=True)
class Arrangement:
    """Where panels go: so many beside each other, and how high each row of them is."""

    columns: int
    heights: tuple[int, ...]


def arrange(width: int, height: int, wants: Sequence[int]) -> Arrangement:
    """One column below 80 cells, two below 120, else three; rows share the height by what their panels want.

    `wants` are heights with the box. No row is lower than LEAST_HEIGHT: rows that do not fit are scrolled to.
    """
    columns = max(1, min(len(wants), 1 if width < 80 else 2 if width < 120 else 3))
    rows = [max(wants[start : start + columns]) for start in range(0, len(wants), columns)]
    heights = [LEAST_HEIGHT] * len(rows)
    spare = height - sum(heights)
    while spare > 0 and rows:
        # A line goes to the row that lacks most of what it wants; when all have that, to the lowest in turn.
        lacking = [want - has for want, has in zip(rows, heights, strict=True)]
        most = max(lacking)
        row = lacking.index(most) if most > 0 else heights.index(min(heights))
        heights[row] += 1
        spare -= 1
    return Arrangement(columns, tuple(heights))


class TopScreen(Screen[None]):
    """All monitor panels. The application starts and stops the monitor."""

    TITLE = "top"
    HELP = """\
### Monitor

The machine as it is now: GPUs, cores, memory, the trainer's threads, PCIe and disks. `1` to `6` hide and show a panel,
`z` freezes the picture and lets it go on, tab moves between panels, and arrow keys scroll the focused one.
"""
    CSS = """
    TopScreen > VerticalScroll { layout: grid; height: 1fr; scrollbar-size-vertical: 1; }
    TopScreen > VerticalScroll > Panel { height: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("z", "freeze", "Freeze", id="top.freeze"),
        Binding("1", "show_or_hide(0)", "GPU", id="top.panel_1", show=False),
        Binding("2", "show_or_hide(1)", "CPU", id="top.panel_2", show=False),
        Binding("3", "show_or_hide(2)", "Memory", id="top.panel_3", show=False),
        Binding("4", "show_or_hide(3)", "Threads", id="top.panel_4", show=False),
        Binding("5", "show_or_hide(4)", "PCIe", id="top.panel_5", show=False),
        Binding("6", "show_or_hide(5)", "Disk", id="top.panel_6", show=False),
        Binding("q", "app.quit", "Quit", id="top.quit"),
    ]

    def __init__(self, context: AppContext, hidden: Collection[str] = ()) -> None:
        """`hidden`: the ids of the panels that are not shown at first."""
        super().__init__()
        self.context = context
        glyphs = context.glyphs
        self.line = StatusLine(glyphs, id="top-line")
        self.panels: tuple[MonitorPanel, ...] = (
            GpuPanel(glyphs, id="gpu"),
            CoresPanel(glyphs, id="cores"),
            MemoryPanel(glyphs, id="memory"),
            ThreadsPanel(glyphs, id="threads"),
            PciePanel(glyphs, id="pcie"),
            DiskPanel(glyphs, id="disk"),
        )
        if any(panel.id not in hidden for panel in self.panels):
            for panel in self.panels:
                panel.display = panel.id not in hidden
        self.frozen = False
        self._sample: MonitorSample | None = None
        self._arranged: tuple[Arrangement, int] | None = None

    def compose(self) -> ComposeResult:
        yield self.line
        # Panels take the focus, not the container around them.
        yield VerticalScroll(*self.panels, can_focus=False)
        yield KeyLine(self.context.glyphs)

    def on_mount(self) -> None:
        self.lay_out()
        self._tell()
        self.look()
        self.set_interval(self.context.interval_s, self.look)

    def on_resize(self, event: events.Resize) -> None:
        self.lay_out()

    def on_screen_resume(self) -> None:
        self.look()

    def look(self) -> None:
        """Show the newest sample, unless the picture is frozen or another screen is seen."""
        # Beneath a dialog the picture goes on; beneath another screen nobody sees it.
        seen = self.is_active or (self.is_current and isinstance(self.app.screen, ModalScreen))
        if self.frozen or not seen:
            return
        sample = self.context.monitor.latest
        if sample is None or (self._sample is not None and sample.time == self._sample.time):
            return
        gpus_before = len(self._sample.gpus) if self._sample else 0
        self._sample = sample
        if len(sample.gpus) != gpus_before:
            self.lay_out()
        for panel in self.panels:
            panel.show(sample)
        self._tell()

    def lay_out(self) -> None:
        """Lay the panels that are shown out for the size of the terminal."""
        shown = [panel for panel in self.panels if panel.display]
        gpus = len(self._sample.gpus) if self._sample else 0
        wants = [self._wanted(panel, gpus) for panel in shown]
        container = self.query_one(VerticalScroll)
        found = arrange(self.size.width, self.size.height - 2, wants)
        if self._arranged == (found, len(shown)):
            return
        self._arranged = (found, len(shown))
        container.styles.grid_size_columns = found.columns
        container.styles.grid_rows = " ".join(map(str, found.heights))
        for index, panel in enumerate(shown):
            # The last panel takes what is left of its row.
            last = index == len(shown) - 1
            panel.styles.column_span = found.columns - index % found.columns if last else 1

    def _wanted(self, panel: MonitorPanel, gpus: int) -> int:
        if isinstance(panel, GpuPanel):
            return 2 + (9 if gpus == 1 else min(16, max(3, gpus)))
        if isinstance(panel, PciePanel):
            return 2 + (6 if gpus == 1 else min(8, max(3, gpus)))
        return 2 + (6 if isinstance(panel, MemoryPanel | DiskPanel) else 8)

    def _tell(self) -> None:
        sample = self._sample
        if sample is None:
            self.line.show_text("Waiting for the first sample.")
            return
        at = time.strftime("%H:%M:%S", time.localtime(sample.time))
        if self.frozen:
            self.line.set_notice(f"frozen at {at}, z goes on")
        else:
            self.line.set_notice("")
        trainer = f"training process {sample.trainer.pid}" if sample.trainer else "no training process"
        separator = f" {self.context.glyphs.separator} "
        self.line.show_text(separator.join(("workbench top", at, trainer)))

    def action_freeze(self) -> None:
        """Stop redrawing, or go on; nothing but the picture stops."""
        self.frozen = not self.frozen
        self._tell()
        self.look()

    def action_show_or_hide(self, index: int) -> None:
        """Show or hide a panel; the last one that is seen stays."""
        panel = self.panels[index]
        if panel.display and sum(each.display for each in self.panels) == 1:
            return
        panel.display = not panel.display
        self.lay_out()
        self.post_message(HidePanels(tuple(str(each.id) for each in self.panels if not each.display)))
