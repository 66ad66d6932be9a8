"""The form's tables: a column beside it, or one line above it. What is changed or wrong in each is marked.

Invariant: the chosen table is always seen.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line
from workbench.tui.panels.panel import Panel


class TableList(Panel, can_focus=True, inherit_bindings=False):
    """Tables by name. `marks`: for each, (changed fields, problems)."""

    TITLE = "Tables"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,left", "step(-1)", "Previous table", id="tables.previous", show=False),
        Binding("down,right", "step(1)", "Next table", id="tables.next", show=False),
    ]

    class Picked(Message):
        """A table was chosen."""

        def __init__(self, table: str) -> None:
            super().__init__()
            self.table = table

    def __init__(self, tables: tuple[str, ...], glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self.tables = tables
        self.chosen = tables[0]
        self._marks: dict[str, tuple[int, int]] = {}

    def choose(self, table: str) -> None:
        """Show this one as chosen, and tell."""
        if table != self.chosen:
            self.chosen = table
            self.changed()
            self.post_message(self.Picked(table))

    def mark(self, marks: dict[str, tuple[int, int]]) -> None:
        """How many fields of each table are changed and how many are wrong."""
        if marks != self._marks:
            self._marks = marks
            self.changed()

    def action_step(self, by: int) -> None:
        """The next table, around the end."""
        self.choose(self.tables[(self.tables.index(self.chosen) + by) % len(self.tables)])

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None:
            return
        if self.content_size.height > 1:
            row = at.y + self.first_row
            if row < len(self.tables):
                self.choose(self.tables[row])
            return
        x = 0
        for table in self._tabs(self.content_size.width):
            x += len(self._word(table)) + 2
            if at.x < x:
                self.choose(table)
                return

    def lines(self, width: int, height: int) -> list[Line]:
        if height > 1:
            return [self._row(table, width) for table in self.tables]
        line: Line = []
        for table in self._tabs(width):
            line += self._entry(table)
        return [line]

    def _tabs(self, width: int) -> tuple[str, ...]:
        """The tables that are seen on one line: as many as fit around the chosen one."""
        sizes = {table: len(self._word(table)) + 2 for table in self.tables}
        first = 0
        chosen = self.tables.index(self.chosen)
        while first < chosen and sum(sizes[t] for t in self.tables[first : chosen + 1]) > width:
            first += 1
        while first and sum(sizes[t] for t in self.tables[first - 1 :]) <= width:
            first -= 1
        return self.tables[first:]

    def _word(self, table: str) -> str:
        changed, wrong = self._marks.get(table, (0, 0))
        return f"{table}{'*' if changed else ''}{self.glyphs.bad if wrong else ''}"

    def _entry(self, table: str) -> Line:
        _, wrong = self._marks.get(table, (0, 0))
        if table == self.chosen:
            return self.write(f"[{self._word(table)}]", "mark")
        return self.write(f" {self._word(table)} ", "bad" if wrong else "dim")

    def _row(self, table: str, width: int) -> Line:
        changed, wrong = self._marks.get(table, (0, 0))
        chosen = table == self.chosen
        line = self.write(f"{self.glyphs.selected if chosen else ' '} {table:<11}", "mark" if chosen else "")
        line.append(Segment(f"{f'*{changed}' if changed else '':<3}", self.pen("mark")))
        line.append(Segment(f"{self.glyphs.bad}{wrong}" if wrong else "", self.pen("bad")))
        return line
