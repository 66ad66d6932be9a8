"""The line above a list in which one types what to look for, and the keys that lists share for it.

Invariant: a filter that is not seen hides no row.
"""

from __future__ import annotations

from typing import ClassVar

from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from workbench.tui.panels.row_list import RowList


class FilterField(Input):
    """Hidden until it is asked for."""

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
        """Show it, focused, with `typed` behind what stands in it."""
        self.add_class("-shown")
        self.focus()
        if typed:
            self.value += typed
            self.cursor_position = len(self.value)

    def close(self) -> None:
        """Hide it and forget what was typed."""
        self.value = ""
        self.remove_class("-shown")


class FilteredScreen(Screen[None]):
    """A screen with a `FilterField` above one `RowList`. Which key opens it the screen says itself, by `filter`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear_filter", "Clear filter", id="list.clear_filter", show=False),
        Binding("down", "to_list", "To the list", id="list.to_list", show=False),
    ]

    @property
    def filter_field(self) -> FilterField:
        return self.query_one(FilterField)

    @property
    def filtered_list(self) -> Widget:
        return self.query_one(RowList)

    def action_filter(self) -> None:
        self.filter_field.open()

    def action_clear_filter(self) -> None:
        if not self.filter_field.is_shown:
            raise SkipAction  # whoever is above may leave this screen
        self.filter_field.close()
        self.filtered_list.focus()

    def action_to_list(self) -> None:
        self.filtered_list.focus()
