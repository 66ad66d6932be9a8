"""The dialog that describes another machine by its parts, as the options of `workbench plan` do, to plan for it."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label

from workbench.errors import ConfigurationError
from workbench.plan.machine import Machine, planned_machine
from workbench.profiles.described import described_machine
from workbench.profiles.description import describe
from workbench.tui.dialogs import InputDialog, one_line
from workbench.tui.glyphs import BLOCKS, Glyphs

PARTS = {
    "gpu": "RTX-4090 (workbench machine list has all)",
    "memory": "128G",
    "channels": "2",
    "ddr": "5600",
    "pcie": "4x16",
    "cores": "16",
    "disk": "2T",
    "processor": "avx512, where gpu is none",
    "rates": "link.up_bytes_per_s=11e9 host.read_bytes_per_s=85e9",
}
"""The parts, each with an example. Card and memory are needed."""
_NUMBERS = ("channels", "ddr", "cores")


def machine_of(texts: dict[str, str]) -> Machine:
    """Return the machine with these parts, of which empty ones are as usual.

    Raises:
        ConfigurationError: a part is missing or wrong.
    """
    parts: dict[str, Any] = {name: text.strip() for name, text in texts.items() if text.strip()}
    for name in _NUMBERS:
        if name in parts and not parts[name].isdecimal():
            raise ConfigurationError(f"--{name} {parts[name]}: expected a whole number")
        if name in parts:
            parts[name] = int(parts[name][:9])
    if "rates" in parts:
        parts["rates"] = parts["rates"].split()
    described = describe(parts)
    if described is None:
        raise ConfigurationError("a machine needs a card (or none) and memory")
    return planned_machine(described_machine(described))


class DescribeMachine(InputDialog["Machine | None"]):
    """Asks for a machine's parts."""

    DEFAULT_CSS = """
    DescribeMachine .part { height: 1; }
    DescribeMachine .part Label { width: 10; color: $text-muted; }
    DescribeMachine .part Input { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "Part above", id="dialog.part_above", show=False),
        Binding("down", "app.focus_next", "Part below", id="dialog.part_below", show=False),
    ]
    last: ClassVar[dict[str, str]] = {}
    """The parts that were described last, to begin from."""

    def __init__(self, glyphs: Glyphs = BLOCKS) -> None:
        super().__init__("Plan for another machine", yes="Plan", glyphs=glyphs)

    def inputs(self) -> ComposeResult:
        for name, example in PARTS.items():
            with Horizontal(classes="part"):
                yield Label(name)
                yield one_line(self.last.get(name, ""), example, name)

    def on_mount(self) -> None:
        self.query_one("#gpu").focus()

    def submit(self) -> None:
        texts = {name: self.query_one(f"#{name}", Input).value for name in PARTS}
        try:
            machine = machine_of(texts)
        except ConfigurationError as error:
            self.refuse(str(error))
            return
        type(self).last = texts
        self.dismiss(machine)
