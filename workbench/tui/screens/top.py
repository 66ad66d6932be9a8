"""The monitor alone: GPUs, cores, memory, threads, PCIe and disks, laid out by the width of the terminal."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from workbench.tui.context import AppContext
from workbench.tui.messages import HidePanels
from workbench.tui.panels.status_line import KeyLine, StatusLine
from workbench.tui.run.machine import MachinePanels
from workbench.tui.screens.live_screen import LiveScreen

_PANELS = ("GPU", "CPU", "Memory", "Threads", "PCIe", "Disk")


def columns_of(width: int, height: int) -> int:
    """Return how many panels stand beside each other."""
    return 1 if width < 80 else 2 if width < 120 else 3


class TopScreen(LiveScreen):
    """All monitor panels. The application starts and stops the monitor; here nothing waits for it."""

    TITLE = "top"
    HELP = """\
### Monitor

The machine as it is now: GPUs, cores, memory, the trainer's threads, PCIe and disks. `1` to `6` hide and show a panel,
`z` freezes the picture and lets it go on, tab moves between panels, and arrow keys scroll the focused one.
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
            for panel in self.panels:
                panel.display = panel.id not in hidden
        self.frozen = False

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.machine
        yield KeyLine(self.context.glyphs)

    def on_mount(self) -> None:
        self.look()

    def look(self) -> None:
        """Show the newest sample, unless the picture is frozen."""
        if not self.frozen:
            self.machine.show(self.context.monitor.latest)
        sample = self.machine.sample
        if sample is None:
            self.line.show_text("Waiting for the first sample.")
            return
        at = time.strftime("%H:%M:%S", time.localtime(sample.time))
        self.line.set_notice(f"frozen at {at}, z goes on" if self.frozen else "")
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
        if panel.display and sum(each.display for each in self.panels) == 1:
            return
        panel.display = not panel.display
        self.machine.lay_out()
        self.post_message(HidePanels(tuple(str(each.id) for each in self.panels if not each.display)))
