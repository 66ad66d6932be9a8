"""Inputs of one line that say their value in words: a switch, and a choice that shows what there is to choose.

Invariant: state is told by characters, so that neither colour nor a font is needed.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Switch

from workbench.tui.glyphs import Glyphs


class YesNo(Switch, inherit_css=False):
    """A switch: "[x] true" or "[ ] false"."""

    DEFAULT_CSS = """
    YesNo { width: 14; height: 1; background: $surface; color: $foreground; }
    YesNo:focus { background: $surface-lighten-1; color: $text; text-style: bold reverse; }
    """

    def render_line(self, y: int) -> Strip:
        text = f"[{'x' if self.value else ' '}] {'true' if self.value else 'false'}"
        return Strip([Segment(text.ljust(self.size.width), self.rich_style)]).crop(0, self.size.width)


class OneOf(Widget, can_focus=True):
    """One of a few words, all of them seen, the chosen one in brackets; what does not fit scrolls."""

    DEFAULT_CSS = """
    OneOf { width: 1fr; height: 1; background: $surface; color: $text-muted; }
    OneOf > .one-of--chosen { color: $text; text-style: bold; }
    OneOf:focus > .one-of--chosen { color: $text; text-style: bold reverse; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"one-of--chosen"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Previous", id="one_of.previous", show=False),
        Binding("right,space,enter", "step(1)", "Next", id="one_of.next", show=False),
    ]
    value: reactive[str] = reactive("", init=False)

    class Changed(Message):
        """Another word was chosen."""

        def __init__(self, control: OneOf, value: str) -> None:
            super().__init__()
            self.one_of = control
            self.value = value

        @property
        def control(self) -> OneOf:
            return self.one_of

    def __init__(
        self, choices: tuple[str, ...], value: str, glyphs: Glyphs, *, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.choices = choices
        self.glyphs = glyphs
        self.set_reactive(OneOf.value, value)

    def watch_value(self, value: str) -> None:
        self.post_message(self.Changed(self, value))

    def action_step(self, by: int) -> None:
        """The next word, around the end; the first where the value is none of them."""
        there = self.choices.index(self.value) if self.value in self.choices else -by
        self.value = self.choices[(there + by) % len(self.choices)]

    def on_click(self, event: events.Click) -> None:
        at = event.x + self._first
        for start, end, word in self._spans():
            if start <= at < end:
                self.value = word

    def _words(self) -> tuple[str, ...]:
        """A value that is none of the choices is shown as what it is, in front of them."""
        return self.choices if self.value in self.choices else (self.value, *self.choices)

    def _spans(self) -> list[tuple[int, int, str]]:
        spans, at = [], 0
        for word in self._words():
            spans.append((at, at + len(word) + 2, word))
            at += len(word) + 2
        return spans

    @property
    def _first(self) -> int:
        """The first cell that is seen, so that the chosen word is."""
        end = next((end for _, end, word in self._spans() if word == self.value), 0)
        return max(0, end - self.size.width)

    def render_line(self, y: int) -> Strip:
        style = self.get_component_rich_style("one-of--chosen")
        line = [
            Segment(f"[{word}]", style) if word == self.value else Segment(f" {word} ", self.rich_style)
            for word in self._words()
        ]
        width, first = self.size.width, self._first
        return (
            Strip(line).adjust_cell_length(max(first + width, 1), self.rich_style).crop(first, first + width)
        )
