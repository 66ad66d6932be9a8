"""The presets: find one, see whether it fits here, open it, run it, copy it, and delete one's own.

Presets are read and planned in threads, row by row. Invariant: what comes with workbench is never changed or deleted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.notifications import SeverityLevel
from textual.widget import Widget
from textual.widgets import Input

from workbench.errors import ConfigurationError
from workbench.presets import delete_preset, duplicate_preset, remember_preset
from workbench.tui.context import AppContext
from workbench.tui.form.meter import FitMeter
from workbench.tui.form.preset_list import (
    PresetAbout,
    PresetRow,
    PresetTable,
    forecast,
    match_score,
    preset_rows,
)
from workbench.tui.messages import OpenPreset, StartRun
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.screens.filter_field import FilteredScreen, FilterField

if TYPE_CHECKING:
    from workbench.tui.form.planner import ConfigPlanner
    from workbench.tui.form.sources import Sources

CHANGING_ACTIONS = ("run", "duplicate", "delete")
"""The actions that read-only mode leaves out."""


class PresetsScreen(FilteredScreen):
    """Every preset that can be named. It posts `OpenPreset` and `StartRun`."""

    TITLE = "Presets"
    # Textual declares these two as an instance's.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (22, "-high")]  # noqa: RUF012
    # Not CSS: for a screen's own style, Textual parses all style anew before the first picture.
    DEFAULT_CSS = """
    PresetsScreen #body { height: 1fr; layout: horizontal; }
    PresetsScreen #presets { width: 1fr; height: 1fr; }
    PresetsScreen #side { width: 40%; max-width: 70; height: 1fr; }
    PresetsScreen #side > * { border: round $foreground 30%; padding: 0 1; }
    PresetsScreen.-ascii #side > * { border: ascii $foreground 30%; }
    PresetsScreen #about { height: 9; }
    PresetsScreen #meter { height: 1fr; }

    PresetsScreen.-narrow #body { layout: vertical; }
    PresetsScreen.-narrow #side { width: 1fr; max-width: 100%; height: auto; }
    PresetsScreen.-narrow #side > * { border: none; }
    PresetsScreen.-narrow #about { height: 2; background: $panel; }
    PresetsScreen.-narrow #meter { height: 2; }
    PresetsScreen.-narrow.-high #about { height: 3; }
    PresetsScreen.-narrow.-high #meter { height: 4; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="presets.open"),
        Binding("r", "run", "Run", id="presets.run"),
        Binding("slash", "filter", "Filter", key_display="/", id="presets.filter"),
        Binding("d", "duplicate", "Duplicate", id="presets.duplicate"),
        Binding("x", "delete", "Delete", id="presets.delete"),
    ]

    def __init__(self, context: AppContext, sources: Sources | None = None) -> None:
        super().__init__(classes="-ascii" if context.glyphs.ascii else None)
        self.context = context
        self._sources = sources
        self._rows: dict[Path, PresetRow] | None = None
        """In the order in which they are shown; None before they have been read."""

    @cached_property
    def planner(self) -> ConfigPlanner:
        """For threads: importing it takes longer than the first picture."""
        from workbench.tui.form.planner import ConfigPlanner
        from workbench.tui.form.sources import Here

        return ConfigPlanner(self._sources or Here(self.context.runs_root))

    def compose(self) -> ComposeResult:
        glyphs = self.context.glyphs
        yield FilterField("type to filter by name")
        with Container(id="body"):
            yield PresetTable(glyphs, id="presets")
            with Vertical(id="side"):
                yield PresetAbout(glyphs, id="about")
                yield FitMeter(glyphs, id="meter")
        yield KeyLine(glyphs)

    @property
    def preset_table(self) -> PresetTable:
        return self.query_one(PresetTable)

    @property
    def filtered_list(self) -> Widget:
        return self.preset_table

    def on_mount(self) -> None:
        self.preset_table.show((), None, "Reading the presets ...")
        self.preset_table.focus()

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.look)  # what it imports would hold the picture up

    def on_screen_suspend(self) -> None:
        self.workers.cancel_group(self, "presets")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (self.context.read_only and action in CHANGING_ACTIONS)

    # Reading

    @work(exclusive=True, group="presets")
    async def look(self, cursor: Path | None = None) -> None:
        """Read the presets again, plan them on the machine as it is now, and go to the preset `cursor`."""
        known = self._rows or {}
        rows = await asyncio.to_thread(preset_rows)
        # The forecast of before stays until the new one is there.
        self._rows = {
            row.path: before if (before := known.get(row.path)) and before.preset == row.preset else row
            for row in rows
        }
        self._show(cursor)
        cancelled = threading.Event()
        try:
            planner = await asyncio.to_thread(lambda: self.planner)
            planner.forget_machine()
            await self._forecast([row for row in rows if row.pending], planner, cancelled)
        finally:
            cancelled.set()
            if "planner" in self.__dict__:
                self.planner.sources.let_go()

    async def _forecast(
        self, rows: list[PresetRow], planner: ConfigPlanner, cancelled: threading.Event
    ) -> None:
        """Show the forecast of each row; those whose model profile has to be taken first come last."""
        for take_profile in (None, cancelled):
            for row in rows:
                made = await asyncio.to_thread(forecast, row, planner, take_profile)
                if self._rows is not None and made.path in self._rows:
                    self._rows[made.path] = made
                    self._show()
            rows = [row for row in rows if self._rows is not None and self._rows[row.path].pending]

    def _show(self, cursor: Path | None = None, *, from_top: bool = False) -> None:
        """Show the rows that the filter leaves, the best matches first; the cursor stays on its preset."""
        if self._rows is None:
            return
        query, table = self.filter_field.value, self.preset_table
        scores = {path: match_score(query, row) for path, row in self._rows.items()}
        rows = [self._rows[path] for path in sorted(scores, key=lambda path: -scores[path]) if scores[path]]
        if from_top and rows:
            cursor = rows[0].path
        elif cursor is None and table.highlighted is not None:
            cursor = table.highlighted.path
        note = f'No preset answers to "{query}".' if self._rows else "There are no presets."
        table.show(rows, cursor, note)
        self._show_side()

    @on(PresetTable.RowHighlighted)
    def _show_side(self) -> None:
        row = self.preset_table.highlighted
        self.query_one(PresetAbout).show(row)
        note = ""
        if row is not None and row.plan is None:
            note = "has errors: open it to see them" if row.preset.error else row.words or "being planned"
        self.query_one(FitMeter).show(None if row is None else row.plan, note)

    # Filtering

    def on_key(self, event: events.Key) -> None:
        """A letter that is no key begins a filter."""
        is_bound = event.key in self.active_bindings  # bindings come after this
        if self.preset_table.has_focus and event.is_printable and not is_bound and event.key != "space":
            event.stop()
            self.filter_field.open(event.character or "")

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show(from_top=True)

    @on(Input.Submitted, "#filter")
    def _filter_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.preset_table.focus()
        self.action_open()

    # Opening and running

    @on(PresetTable.RowSelected)
    def action_open(self) -> None:
        """Open the form of the preset."""
        row = self.preset_table.highlighted
        if row is not None:
            remember_preset(row.path)
            self.post_message(OpenPreset(row.path))

    def action_run(self) -> None:
        """Start the preset as it is."""
        row = self.preset_table.highlighted
        if row is None:
            return
        name = row.preset.name
        if row.preset.error is not None:
            self._notify(f"{name}: has errors; open it to see them", "warning")
        elif row.verdict == "no":
            text = f"{name}: {row.words}. Such a run ends at once; the form looks for what fits (F6)."
            self._confirm("It does not fit", text, "Start anyway", lambda: self._start(row))
        else:
            self._start(row)

    def _start(self, row: PresetRow) -> None:
        try:
            text = row.path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self._notify(f"{row.path}: cannot be read: {error}", "error")
            return
        remember_preset(row.path)
        self.post_message(StartRun(text, row.preset.name))

    # Copies

    def action_duplicate(self) -> None:
        """Copy the preset into the user's folder."""
        row = self.preset_table.highlighted
        if row is None:
            return
        try:
            path = duplicate_preset(row.path)
        except ConfigurationError as error:
            self._notify(str(error), "error")
            return
        self._notify(f"copied to {path}")
        self.look(path)

    def action_delete(self) -> None:
        row = self.preset_table.highlighted
        if row is None:
            return
        if row.preset.origin == "shipped":
            self._notify(f"{row.preset.name}: comes with workbench and is not deleted", "warning")
            return
        text = f"Delete {row.path}? It will be gone for good; its runs stay."
        self._confirm("Delete", text, "Delete", lambda: self._delete(row))

    def _delete(self, row: PresetRow) -> None:
        try:
            delete_preset(row.path)
        except ConfigurationError as error:
            self._notify(str(error), "error")
            return
        self._notify(f"{row.preset.name} is deleted")
        self.look()

    def _confirm(self, title: str, text: str, yes: str, do: Callable[[], None]) -> None:
        from workbench.tui.dialogs import Confirm

        dialog = Confirm(title, text, yes, "Cancel", danger=True, glyphs=self.context.glyphs)
        self.app.push_screen(dialog, lambda sure: do() if sure else None)

    def _notify(self, message: str, severity: SeverityLevel = "information") -> None:
        self.notify(message, severity=severity, markup=False)
