"""The form's body: the rows of one table at a time, mounted when they are first shown.

Invariant: rows that are mounted show what the draft says, whether they are seen or not.
"""

from __future__ import annotations

from collections.abc import Iterator

from textual.containers import Vertical, VerticalScroll

from workbench.config import DocumentedField
from workbench.config.schema import TABLES
from workbench.tui.form.draft import FIELDS, Draft
from workbench.tui.form.field_row import FieldRow, row_id
from workbench.tui.glyphs import Glyphs

TABLE_NAMES = tuple(TABLES)


def table_of(field: str) -> str:
    """The table under which a field is shown: what stands above all tables is shown with the first."""
    return field.partition(".")[0] if "." in field else TABLE_NAMES[0]


def fields_of(table: str) -> Iterator[DocumentedField]:
    """The fields that are shown under `table`."""
    return (field for field in FIELDS.values() if table_of(field.name) == table)


class FormTables(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Rows of fields, one table seen at a time."""

    DEFAULT_CSS = """
    FormTables { height: 1fr; }
    FormTables > Vertical { height: auto; }
    """

    def __init__(self, draft: Draft, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.draft = draft
        self.glyphs = glyphs
        self._panes: dict[str, Vertical] = {}

    @property
    def rows(self) -> list[FieldRow]:
        """The rows that are mounted."""
        return [row for pane in self._panes.values() for row in pane.children if isinstance(row, FieldRow)]

    def row(self, field: str) -> FieldRow | None:
        """The row of a field, where it is mounted."""
        pane = self._panes.get(table_of(field))
        return None if pane is None else pane.query_one(f"#{row_id(field)}", FieldRow)

    async def show(self, table: str) -> None:
        """Show the rows of `table`, mounted where they are not yet."""
        pane = self._panes.get(table)
        if pane is None:
            rows = [FieldRow(field, self.draft, self.glyphs) for field in fields_of(table)]
            self._panes[table] = pane = Vertical(*rows, id=f"table-{table}")
            await self.mount(pane)
        for name, other in self._panes.items():
            other.display = name == table
        self.scroll_home(animate=False)

    def take(self, draft: Draft) -> None:
        """Show what another draft says, or this one after it was changed elsewhere."""
        self.draft = draft
        for row in self.rows:
            row.take(draft)

    def focus_first(self) -> None:
        """Give the first field of the table that is seen the focus."""
        rows = self._seen()
        if rows:
            rows[0].control.focus()

    def step(self, by: int) -> bool:
        """Move the focus to the field after or before this one; whether there was one."""
        rows = self._seen()
        there = next((number for number, row in enumerate(rows) if row.has_focus_within), None)
        to = 0 if there is None else there + by
        if not 0 <= to < len(rows):
            return False
        rows[to].control.focus()
        return True

    def _seen(self) -> list[FieldRow]:
        panes = [pane for pane in self._panes.values() if pane.display]
        return [row for pane in panes for row in pane.children if isinstance(row, FieldRow)]
