"""A list with a filter above it: what the screens of presets and of runs share.

Invariants: while a list changes its cursor stays on its row, and a filter that is not seen hides no row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Input

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean, cut

Row = TypeVar("Row")
NOTE_LINES = 4
"""The lines of a note in the place of rows."""


class RowTable(DataTable[Text], Generic[Row], inherit_bindings=False):
    """Posts `RowHighlighted` for the row under the cursor, `RowSelected` for a second click on it.

    A subclass names a row (`identity`), gives the columns that have room (`columns`) and draws a row (`cells`).
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "rows--good",
        "rows--warning",
        "rows--bad",
        "rows--dim",
        "rows--mark",
    }
    DEFAULT_CSS = """
    RowTable {
        border: round $foreground 30%;
        border-title-color: $foreground;
        border-subtitle-color: $text-muted;
        background: $background;
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        & > .rows--good { color: $success; }
        & > .rows--warning { color: $warning; }
        & > .rows--bad { color: $error; text-style: bold; }
        & > .rows--dim { color: $text-muted; }
        & > .rows--mark { color: $text-accent; text-style: bold; }
        & > .datatable--header, & > .datatable--header-hover, & > .datatable--header-cursor {
            background: $background; color: $text-muted; text-style: none;
        }
        &:ansi > .datatable--header { background: ansi_default; color: ansi_default; }
        & > .datatable--even-row, & > .datatable--odd-row, & > .datatable--hover { background: $background; }
        & > .datatable--cursor { background: $background; color: $foreground; text-style: bold; }
        &:focus { border: round $accent; border-title-style: reverse; background-tint: $foreground 0%; }
        &:focus > .datatable--header { background-tint: $foreground 0%; }
        &:focus > .datatable--cursor {
            background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
        }
    }
    RowTable.-ascii { border: ascii $foreground 30%; }
    RowTable.-ascii:focus { border: ascii $accent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", "Up", id="list.up", show=False),
        Binding("down", "cursor_down", "Down", id="list.down", show=False),
        Binding("pageup", "page_up", "Page up", id="list.page_up", show=False),
        Binding("pagedown", "page_down", "Page down", id="list.page_down", show=False),
        Binding("home", "scroll_top", "First", id="list.first", show=False),
        Binding("end", "scroll_bottom", "Last", id="list.last", show=False),
    ]
    TITLE: ClassVar[str] = ""
    RIGHT: ClassVar[Collection[str]] = ()
    """The titles of columns that are justified to the right."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", cursor_background_priority="css")
        self.set_class(glyphs.ascii, "-ascii")
        self.border_title = self.TITLE
        self.glyphs = glyphs
        self.shown: tuple[Row, ...] = ()
        self.widths: Mapping[str, int] = {}
        """The cells of the columns that are shown, by their titles."""
        self._note = ""
        self._marked: object = None
        """The identity of the row that is drawn with the cursor's mark."""

    # A subclass gives these.

    def identity(self, row: Row) -> object:
        """Return what stays the same while the row changes."""
        raise NotImplementedError

    def columns_for(self, width: int) -> Mapping[str, int]:
        """Return the columns that fit `width` cells: their cells by their titles."""
        raise NotImplementedError

    def cells(self, row: Row) -> Mapping[str, Text]:
        """Return the cells of a row by the titles of their columns."""
        raise NotImplementedError

    def heading(self) -> str:
        """Return what stands behind the title."""
        return str(len(self.shown)) if self.shown else ""

    def footing(self) -> str:
        """Return what stands in the lower border."""
        return ""

    # Rows

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._show_all())

    def on_resize(self) -> None:
        self._show_all()

    @property
    def highlighted(self) -> Row | None:
        """The row under the cursor."""
        return self.shown[self.cursor_row] if self.cursor_row < len(self.shown) else None

    def show(self, rows: Sequence[Row], note: str = "", cursor: object = None) -> None:
        """Show these rows, or `note` where there are none. The cursor goes to the row of identity `cursor`; without
        one it stays on its row, else on its place.
        """
        if cursor is None and self.highlighted is not None:
            cursor = self.identity(self.highlighted)
        before, self.shown, self._note = self.shown, tuple(rows), note
        names = [self.identity(row) for row in self.shown]
        place = names.index(cursor) if cursor in names else self.cursor_row
        if names and names == [self.identity(row) for row in before] and self._fitting() == self.widths:
            self.update(place for place, row in enumerate(self.shown) if row != before[place])
            self.move_cursor(row=place, animate=False)
        else:
            self._show_all(place)

    def _show_all(self, place: int | None = None) -> None:
        """Show the rows in the present width and colours, with the cursor at `place`, else where it is."""
        place = min(self.cursor_row if place is None else place, len(self.shown) - 1)
        self.clear(columns=True)
        self.update(())
        self.widths = self._fitting()
        self.show_cursor = bool(self.shown)
        self.header_height = 1 if self.shown else NOTE_LINES
        self.show_header = not self.shown or self.content_size.height > 1
        if not self.shown:
            self.add_column(Text(self._note), width=max(1, self.content_size.width - 2))
            return
        self._marked = self.identity(self.shown[place])
        for title, width in self.widths.items():
            right = title in self.RIGHT
            self.add_column(Text(title, no_wrap=True, justify="right" if right else None), width=width)
        for row in self.shown:
            self.add_row(*self._cells(row))
        self.move_cursor(row=place, animate=False)

    def _fitting(self) -> Mapping[str, int]:
        has_scrollbar = len(self.shown) >= self.content_size.height
        return self.columns_for(self.content_size.width - int(has_scrollbar))

    def _cells(self, row: Row) -> list[Text]:
        cells = self.cells(row)
        for title in self.RIGHT:
            cells[title].justify = "right"
        return [cells[title] for title in self.widths]

    def update(self, places: Iterable[int]) -> None:
        """Draw the rows at these places, heading and footing anew."""
        self.border_title = f"{self.TITLE} {self.heading()}".rstrip()
        self.border_subtitle = self.footing()
        for place in places:
            for column, cell in enumerate(self._cells(self.shown[place])):
                self.update_cell_at(Coordinate(place, column), cell)

    def on_data_table_row_highlighted(self) -> None:
        row = self.highlighted
        before, self._marked = self._marked, None if row is None else self.identity(row)
        if before != self._marked:
            both = (before, self._marked)
            self.update(place for place, row in enumerate(self.shown) if self.identity(row) in both)

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Tell whether the key begins a filter: on a screen with one, every letter but capitals, and digits."""
        return isinstance(self.screen, FilteredScreen) and begins_filter(character)

    # Drawing

    def mark(self, row: Row) -> str:
        """Return the mark of the cursor, or a blank."""
        return self.glyphs.selected if self.identity(row) == self._marked else " "

    def text(self, text: str, style: str = "", width: int | None = None) -> Text:
        """Return the text of a cell, cut to `width` cells; `style`: "good", "warning", "bad", "dim" or "mark"."""
        text = clean(text, self.glyphs)
        if width is not None:
            text = cut(text, width, self.glyphs)
        return Text(text, self.get_component_rich_style(f"rows--{style}") if style else "", no_wrap=True)


class FilterField(Input):
    """The line above a list in which one types what to look for. Hidden until it is asked for."""

    DEFAULT_CSS = """
    FilterField { display: none; height: 1; margin: 0 1; }
    FilterField.-shown { display: block; }
    """

    def __init__(self, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, compact=True, select_on_focus=False, id="filter")

    @property
    def is_shown(self) -> bool:
        return self.has_class("-shown")

    def open(self, typed: str = "") -> None:
        """Show it, focused, with `typed` behind its text."""
        self.add_class("-shown")
        self.focus()
        if typed:
            self.value += typed
            self.cursor_position = len(self.value)

    def close(self) -> None:
        """Hide it and clear its text."""
        self.value = ""
        self.remove_class("-shown")


def begins_filter(character: str | None) -> bool:
    return character is not None and (character.isalnum() or character in "-_.") and not character.isupper()


class FilteredScreen(Screen[None]):
    """A screen with a `FilterField` above one `RowTable`. A subclass binds the key of `filter`.

    What is typed goes into the filter, so that no small letter may be the key of anything else.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear_filter", "Clear filter", id="list.clear_filter", show=False),
        Binding("down", "to_list", "To the list", id="list.to_list", show=False),
    ]

    @property
    def filter_field(self) -> FilterField:
        return self.query_one(FilterField)

    def on_key(self, event: events.Key) -> None:
        if self.query_one(RowTable).has_focus and begins_filter(event.character):
            event.stop()  # a binding would come after this
            event.prevent_default()
            self.filter_field.open(event.character or "")

    def action_filter(self) -> None:
        self.filter_field.open()

    def action_clear_filter(self) -> None:
        if not self.filter_field.is_shown:
            raise SkipAction  # the application's escape may leave this screen
        self.filter_field.close()
        self.query_one(RowTable).focus()

    def action_to_list(self) -> None:
        self.query_one(RowTable).focus()
