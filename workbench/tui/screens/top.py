"""The monitor alone: host optimizer, cores, GPUs, memory, threads, PCIe and disks, laid out by the terminal's width."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from workbench.runs import RunDirectory
from workbench.tui.context import AppContext
from workbench.tui.messages import HidePanels
from workbench.tui.panels.host_optimizer import OptimizerLoad
from workbench.tui.panels.status_line import KeyLine, StatusLine
from workbench.tui.run.machine import MachinePanels
from workbench.tui.run.reading import RunReader
from workbench.tui.screens.live_screen import LiveScreen, Reader

_PANELS = ("Host optimizer", "CPU", "GPU", "Memory", "Threads", "PCIe", "Disk")


def columns_of(width: int, height: int) -> int:
    """Return how many panels stand beside each other."""
    return 1 if width < 80 else 2 if width < 120 else 3


class TopScreen(LiveScreen):
    """All monitor panels. The application starts and stops the monitor; here nothing waits for it."""

    TITLE = "top"
    HELP = """\
### Monitor

The machine now, and the newest run that trains on it: its host optimizer, cores, GPUs, memory, its threads,
PCIe and disks. `1` to `7` hide and show a panel,
`z` freezes the picture and continues, tab moves between panels, and arrow keys scroll the focused one.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("z", "freeze", "Freeze", id="top.freeze"),
        *(
            Binding(str(digit), f"show_or_hide({digit - 1})", name, id=f"top.panel_{digit}", show=False)
            for digit, name in enumerate(_PANELS, start=1)
        ),
        Binding("q", "app.quit", "Quit", id="top.quit"),
    ]

    def __init__(self, context: AppContext, hidden: Collection[str] = ()) -> None:
        """`hidden`: the ids of the panels that are not shown at first."""
        super().__init__(context)
        self.line = StatusLine(context.glyphs, id="top-line")
        self.machine = MachinePanels(context.glyphs, columns_of)
        self.panels = self.machine.panels
        if any(panel.id not in hidden for panel in self.panels):
            self.machine.hidden = frozenset(hidden)
        self.frozen = False
        self._run: RunReader | None = None
        self._reader = Reader(self, self._read, self.machine.set_load)

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.machine
        yield KeyLine(self.context.glyphs)

    def on_mount(self) -> None:
        self.look()

    def follow(self, run: RunDirectory | None) -> None:
        """Show the host optimizer of this run, whose trainer the monitor samples."""
        self._run = None if run is None else RunReader(run)

    def _read(self) -> OptimizerLoad | None:
        look = None
        while self._run is not None and (look is None or look.more):
            look = self._run.look(self.context.clock())
        return None if look is None else look.optimizer

    def look(self) -> None:
        """Show the newest sample, unless the picture is frozen."""
        if not self.frozen:
            self._reader.read_if_idle()
            self.machine.show(self.context.monitor.latest)
        sample = self.machine.sample
        if sample is None:
            self.line.show_text("Waiting for the first sample.")
            return
        at = time.strftime("%H:%M:%S", time.localtime(sample.time))
        self.line.set_notice(f"frozen at {at}, z continues" if self.frozen else "")
        trainer = f"training process {sample.trainer.pid}" if sample.trainer else "no training process"
        separator = f" {self.context.glyphs.separator} "
        self.line.show_text(separator.join(("workbench top", at, trainer)))

    def action_freeze(self) -> None:
        """Stop redrawing, or go on; nothing but the picture stops."""
        self.frozen = not self.frozen
        self.look()

    def action_show_or_hide(self, index: int) -> None:
        """Show or hide a panel; the last one that is seen stays."""
        panel = self.panels[index]
        if self.machine.shown == [panel]:
            return
        self.machine.hidden ^= {str(panel.id)}
        self.machine.lay_out()
        self.post_message(HidePanels(tuple(sorted(self.machine.hidden))))
