"""The list of runs: one row each, drawn by hand, with a cursor that stays on its run while the list changes.

It shows what it is given and reads nothing. Invariant: the state of a run is a word beside its mark, so that colour is
never needed; what there is no room for is left out by columns, the least important first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.runs import RunDirectory
from workbench.runs.summary import RunSummary
from workbench.tui.charts.scale import short
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, cut
from workbench.tui.panels.panel import Panel
from workbench.tui.panels.units import duration

_PENS = {
    "running": "good",
    "finished": "good",
    "paused": "warning",
    "stale": "warning",
    "failed": "bad",
    "died": "bad",
}


class _Column(NamedTuple):
    title: str
    width: int
    """Cells; 0: what is left."""
    importance: int
    """The higher, the sooner it is left out."""
    right: bool
    text: Callable[[RunSummary], str]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _steps(row: RunSummary) -> str:
    if row.state in ("unknown", "foreign"):
        return "-"
    return f"{row.step}/{row.total_steps}" if row.total_steps else f"{row.step}"


def _begun(row: RunSummary) -> str:
    return "-" if row.started is None else time.strftime("%m-%d %H:%M", time.localtime(row.started))


def _taken(row: RunSummary) -> str:
    return "-" if row.state in ("unknown", "foreign") else duration(row.duration_s)


_COLUMNS = (
    _Column("PRESET", 0, 0, False, lambda row: row.preset or row.name),
    _Column("STEP", 13, 0, True, _steps),
    _Column("LOSS", 7, 1, True, lambda row: _number(row.loss)),
    _Column("TIME", 7, 2, True, _taken),
    _Column("BEGUN", 11, 3, True, _begun),
    _Column("TOKENS", 7, 4, True, lambda row: "-" if row.tokens is None else short(row.tokens)),
    _Column("TOK/S", 9, 5, True, lambda row: "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}"),
    _Column("VALID.", 7, 6, True, lambda row: _number(row.validation_loss)),
    _Column("RUN", 44, 7, False, lambda row: row.name),
)
_MARK = 2
_STATE = 11
_LEAST_NAME = 12


class RunList(Panel, inherit_bindings=False):
    """Rows with a cursor and marks. Posts `Highlighted` for the run under the cursor, `Chosen` for a click on it."""

    TITLE = "Runs"
    HELP = """\
Every folder in the runs' folder, the newest run first.

- **stale**: its process lives, but gave no sign for two minutes, or lives on another machine
- **died**: its process is gone without a word
- **unknown**: its status cannot be read; **foreign**: the folder is no run
"""
    COMPONENT_CLASSES: ClassVar[set[str]] = {"panel--cursor", "panel--unfocused"}
    DEFAULT_CSS = """
    RunList {
        & > .panel--cursor { background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
        & > .panel--unfocused { text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="runs.up", show=False),
        Binding("down", "move(1)", "Down", id="runs.down", show=False),
        Binding("pageup", "page(-1)", "Page up", id="runs.page_up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="runs.page_down", show=False),
        Binding("home", "move_to(0)", "First", id="runs.first", show=False),
        Binding("end", "move_to(-1)", "Last", id="runs.last", show=False),
    ]

    class Highlighted(Message):
        """The cursor is on another run, or its row has changed; None: there is no row."""

        def __init__(self, row: RunSummary | None) -> None:
            super().__init__()
            self.row = row

    class Chosen(Message):
        """A click on the run that the cursor was on already."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self.rows: tuple[RunSummary, ...] = ()
        self.marks: set[RunDirectory] = set()
        self.note_when_empty = ""
        self.cursor = 0
        self.first = 0
        """The first row that is seen."""
        self._told: RunSummary | None = None

    @property
    def highlighted(self) -> RunSummary | None:
        return self.rows[self.cursor] if self.rows else None

    @property
    def marked(self) -> tuple[RunSummary, ...]:
        """The marked rows that are shown, in their order."""
        return tuple(row for row in self.rows if row.run in self.marks)

    def show(self, rows: Sequence[RunSummary], note_when_empty: str = "") -> None:
        """Show these rows. The cursor stays on its run; where that is gone, on its place."""
        rows = tuple(rows)
        if rows == self.rows and note_when_empty == self.note_when_empty:
            return
        before = self.highlighted
        self.rows, self.note_when_empty = rows, note_when_empty
        place = next((i for i, row in enumerate(rows) if before and row.run == before.run), self.cursor)
        self.cursor = max(0, min(place, len(rows) - 1))
        self._moved()

    def mark(self) -> None:
        """Mark the run under the cursor, or unmark it, and go on to the next."""
        if (row := self.highlighted) is None:
            return
        self.marks ^= {row.run}
        self.cursor = min(self.cursor + 1, len(self.rows) - 1)
        self._moved()

    def unmark(self, runs: set[RunDirectory] | None = None) -> None:
        """Take the marks off these runs, or off all."""
        self.marks -= self.marks if runs is None else runs
        self.changed()

    # Drawing.

    def heading(self) -> tuple[str, ...]:
        living = sum(row.living for row in self.rows)
        count = str(len(self.rows))
        return (f"{count}{self.separator}{living} living" if living else count,)

    def footing(self) -> str:
        parts = [f"{len(self.marks)} marked"] if self.marks else []
        seen = self._room(self.content_size.height)
        if len(self.rows) > seen > 0:
            parts.append(f"{self.first + 1}-{self.first + seen} of {len(self.rows)}")
        return self.separator.join(parts)

    def lines(self, width: int, height: int) -> list[Line]:
        if not self.rows:
            return self.note(self.note_when_empty, width) if self.note_when_empty else []
        room = self._room(height)
        self.first = max(0, min(self.first, len(self.rows) - room, self.cursor))
        self.first = max(self.first, self.cursor - room + 1)
        columns = _fitting(width)
        drawn = [
            self._row(place, width, columns)
            for place in range(self.first, self.first + room)
            if place < len(self.rows)
        ]
        if height < 2:
            return drawn
        titles = f"{'':{_MARK}}{'STATE':{_STATE}}" + "  ".join(
            column.title.rjust(cells) if column.right else column.title.ljust(cells)
            for column, cells in columns
        )
        return [self.write(cut(titles, width, self.glyphs), "dim"), *drawn]

    def _row(self, place: int, width: int, columns: Sequence[tuple[_Column, int]]) -> Line:
        row = self.rows[place]
        here = place == self.cursor
        mark = (self.glyphs.selected if here else " ") + ("*" if row.run in self.marks else " ")
        state = f"{self._sign(row)} {row.state}".ljust(_STATE)
        texts = []
        for column, cells in columns:
            text = cut(clean(column.text(row), self.glyphs), cells, self.glyphs)
            texts.append(text.rjust(cells) if column.right else text.ljust(cells))
        rest = "  ".join(texts)
        if here and self.has_focus:
            return self.write((mark + state + rest).ljust(width)[:width], "cursor")
        pen = "unfocused" if here else ""
        return [
            *self.write(mark, "mark"),
            *self.write(state, "warning" if row.problem else _PENS.get(row.state, "dim")),
            *self.write(rest, pen),
        ]

    def _sign(self, row: RunSummary) -> str:
        glyphs = self.glyphs
        if row.state == "foreign":
            return "?"
        if row.problem or row.state in ("stale", "unknown"):
            return glyphs.warning
        if row.state == "running":
            return glyphs.dot
        if row.state == "finished":
            return glyphs.good
        if row.state in ("failed", "died"):
            return glyphs.bad
        return "=" if row.state == "paused" else glyphs.separator

    def _room(self, height: int) -> int:
        """Rows that are seen at once: one line is for the titles."""
        return max(0, min(len(self.rows), height - 1 if height > 1 else height))

    # Moving.

    def _moved(self) -> None:
        self.changed()
        row = self.highlighted
        if row != self._told:
            self._told = row
            self.post_message(self.Highlighted(row))

    def action_move(self, rows: int) -> None:
        self.cursor = max(0, min(self.cursor + rows, len(self.rows) - 1))
        self._moved()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.content_size.height - 2))

    def action_move_to(self, place: int) -> None:
        self.cursor = max(0, place if place >= 0 else len(self.rows) + place)
        self._moved()

    def on_focus(self) -> None:
        self.changed()

    def on_blur(self) -> None:
        self.changed()

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset_capture(self)
        at = self.first + place.y - (1 if self.content_size.height > 1 else 0)
        if (
            not self.rows
            or place.y < 0
            or not self.first <= at < len(self.rows)
            or at - self.first >= self._room(self.content_size.height)
        ):
            return
        event.stop()
        again = at == self.cursor
        self.cursor = at
        self._moved()
        if again:
            self.post_message(self.Chosen())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-1)


def _fitting(width: int) -> list[tuple[_Column, int]]:
    """The columns that have room, with their cells; the name takes what is left."""
    columns = list(_COLUMNS)
    while len(columns) > 1 and _taken_cells(columns) + _LEAST_NAME > width:
        columns.remove(max(columns, key=lambda column: (column.importance, column.width)))
    left = max(0, width - _taken_cells(columns))
    return [(column, column.width or left) for column in columns]


def _taken_cells(columns: Sequence[_Column]) -> int:
    """Cells of all but the name: mark, state, columns and the two blanks between them."""
    return _MARK + _STATE + sum(column.width + 2 for column in columns if column.width)
