"""Inputs that show every value they can have: a field's choices, true or false, and the tables of the form.

Not Textual's `Select` and `Switch`: they hide the other values behind a list, or show the state by colour alone.
Invariant: the chosen value is marked by characters and always in sight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from workbench.tui.glyphs import Glyphs


class Choice(Widget, can_focus=True):
    """One of a few words on one line, the chosen one in brackets; a line that is too long scrolls."""

    DEFAULT_CSS = """
    Choice {
        width: 1fr; height: 1; background: $surface; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Previous", id="choice.previous", show=False),
        Binding("right,space,enter", "step(1)", "Next", id="choice.next", show=False),
    ]
    value: reactive[str] = reactive("", init=False)

    class Changed(Message):
        """Another value was chosen."""

        def __init__(self, choice: Choice, value: str) -> None:
            super().__init__()
            self.choice = choice
            self.value = value

        @property
        def control(self) -> Choice:
            return self.choice

    def __init__(self, values: tuple[str, ...], value: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._choices = values
        self.set_reactive(Choice.value, value)

    @property
    def values(self) -> tuple[str, ...]:
        """The values to choose from; one that is none of them, from a preset with mistakes, comes first."""
        return self._choices if self.value in self._choices else (self.value, *self._choices)

    def watch_value(self, value: str) -> None:
        self.post_message(self.Changed(self, value))

    def action_step(self, by: int) -> None:
        """Choose the next value, from the last one the first."""
        values = self.values
        self.value = values[(values.index(self.value) + by) % len(values)]

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is not None:
            self.value = self.value_at(at.x, at.y) or self.value

    def value_at(self, x: int, y: int) -> str:
        """Return the value that is drawn at a cell of the content; empty where there is none."""
        x += self._first_cell
        return next((value for value, start, end in self._spans() if start <= x < end), "")

    # Drawing

    def label(self, value: str) -> str:
        """Return the word that stands for a value."""
        return value

    def style_of(self, value: str) -> str:
        """Return the style of a value's word."""
        if value != self.value:
            return ""
        return "$foreground bold reverse" if self.has_focus else "$foreground bold"

    def _spans(self) -> list[tuple[str, int, int]]:
        """Return (value, first cell, cell behind the last one) of each word."""
        spans, at = [], 0
        for value in self.values:
            spans.append((value, at, at + len(self.label(value)) + 2))
            at = spans[-1][2]
        return spans

    @property
    def _first_cell(self) -> int:
        """The cell of the line that is seen first, where a word starts."""
        spans = self._spans()
        end = next(end for value, _, end in spans if value == self.value)
        return next((start for _, start, _ in spans if start >= end - self.content_size.width), 0)

    def render(self) -> Content:
        words = (
            (
                f"[{self.label(value)}]" if value == self.value else f" {self.label(value)} ",
                self.style_of(value),
            )
            for value in self.values
        )
        return Content.assemble(*words)[self._first_cell :]


class TableTabs(Choice):
    """The tables of the form, each with its changed and wrong fields: a line above it, or a column beside it."""

    DEFAULT_CSS = """
    TableTabs { border-title-color: $foreground; background: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", "Previous table", id="tables.previous", show=False),
        Binding("down", "step(1)", "Next table", id="tables.next", show=False),
    ]

    def __init__(self, tables: tuple[str, ...], glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(tables, tables[0], id=id)
        self.border_title = "Tables"
        self._glyphs = glyphs
        self._counts: Mapping[str, tuple[int, int]] = dict.fromkeys(tables, (0, 0))

    def show_counts(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Show how many fields of each table are (changed, wrong)."""
        if counts != self._counts:
            self._counts = counts
            self.refresh()

    def label(self, value: str) -> str:
        changed, wrong = self._counts[value]
        return f"{value}{'*' if changed else ''}{self._glyphs.bad if wrong else ''}"

    def style_of(self, value: str) -> str:
        if value == self.value:
            return "$text-accent bold"
        return "$error bold" if self._counts[value][1] else ""

    def value_at(self, x: int, y: int) -> str:
        if self.content_size.height == 1:
            return super().value_at(x, y)
        return self.values[y] if y < len(self.values) else ""

    def render(self) -> Content:
        if self.content_size.height == 1:
            return super().render()
        return Content("\n").join(self._row(value) for value in self.values)

    def _row(self, value: str) -> Content:
        changed, wrong = self._counts[value]
        chosen = value == self.value
        return Content.assemble(
            (
                f"{self._glyphs.selected if chosen else ' '} {value:<11}",
                "$text-accent bold" if chosen else "$foreground",
            ),
            (f"{f'*{changed}' if changed else '':<3}", "$text-accent bold"),
            (f"{self._glyphs.bad}{wrong}" if wrong else "", "$error bold"),
        )
