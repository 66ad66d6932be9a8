"""Rows with a cursor, drawn by hand: what lists of presets and of runs share.

It shows what it is given and reads nothing. Invariant: the cursor is on a row whenever there is one, and always in
sight; while the list changes it stays on what it was on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import Line, Panel, cut

Row = TypeVar("Row")


class RowList(Panel, Generic[Row], inherit_bindings=False):
    """Posts `Highlighted` for the row under the cursor, `Chosen` for a click on it.

    A subclass says what a row is of (`identity`), which titles stand above (`titles`), and draws one (`row_line`).
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"panel--cursor", "panel--unfocused"}
    DEFAULT_CSS = """
    RowList {
        & > .panel--cursor { background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
        & > .panel--unfocused { text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="list.up", show=False),
        Binding("down", "move(1)", "Down", id="list.down", show=False),
        Binding("pageup", "page(-1)", "Page up", id="list.page_up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="list.page_down", show=False),
        Binding("home", "move_to(0)", "First", id="list.first", show=False),
        Binding("end", "move_to(-1)", "Last", id="list.last", show=False),
    ]

    class Highlighted(Message):
        """The cursor is on another row, or its row has changed; None: there is no row."""

        def __init__(self, row: Any) -> None:
            super().__init__()
            self.row = row

    class Chosen(Message):
        """A click on the row that the cursor was on already."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.rows: tuple[Row, ...] = ()
        self.note_when_empty = ""
        self.cursor = 0
        self.first = 0
        """The first row that is seen."""
        self._told: Row | None = None

    # What a subclass says.

    def identity(self, row: Row) -> object:
        """What stays the same while the row changes."""
        raise NotImplementedError

    def titles(self, width: int) -> str:
        """The line above the rows."""
        raise NotImplementedError

    def row_line(self, place: int, width: int) -> Line:
        """The row at `place`."""
        raise NotImplementedError

    # Rows.

    @property
    def highlighted(self) -> Row | None:
        return self.rows[self.cursor] if self.rows else None

    def show(self, rows: Sequence[Row], note_when_empty: str = "", *, from_top: bool = False) -> None:
        """Show these rows. The cursor stays on what it was on, else on its place; `from_top`: on the first."""
        rows = tuple(rows)
        if rows == self.rows and note_when_empty == self.note_when_empty and not from_top:
            return
        before = self.highlighted
        if from_top:
            before, self.cursor = None, 0
        self.rows, self.note_when_empty = rows, note_when_empty
        if before is None or not self.go_to(self.identity(before)):
            self.cursor = max(0, min(self.cursor, len(rows) - 1))
            self._moved()

    def go_to(self, identity: object) -> bool:
        """Put the cursor on the row of `identity`; False where it is not listed."""
        place = next((i for i, row in enumerate(self.rows) if self.identity(row) == identity), None)
        if place is None:
            return False
        self.cursor = place
        self._moved()
        return True

    # Drawing.

    def footing(self) -> str:
        seen = self._room(self.content_size.height)
        if not len(self.rows) > seen > 0:
            return ""
        return f"{self.first + 1}-{self.first + seen} of {len(self.rows)}"

    def lines(self, width: int, height: int) -> list[Line]:
        if not self.rows:
            return self.note(self.note_when_empty, width) if self.note_when_empty else []
        room = self._room(height)
        self.first = max(0, min(self.first, len(self.rows) - room, self.cursor))
        self.first = max(self.first, self.cursor - room + 1)
        shown = range(self.first, min(self.first + room, len(self.rows)))
        drawn = [self.row_line(place, width) for place in shown]
        if height < 2:
            return drawn
        return [self.write(cut(self.titles(width), width, self.glyphs), "dim"), *drawn]

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
        seen = range(self.first, min(self.first + self._room(self.content_size.height), len(self.rows)))
        if place.y < 0 or at not in seen:
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
