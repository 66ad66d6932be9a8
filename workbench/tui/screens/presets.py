"""The presets: find one, see whether it fits here, open it, run it, copy it, and delete one's own.

Presets are read and planned in a thread, row by row. Invariant: what comes with workbench is never changed or deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.widgets import Input
from textual.worker import get_current_worker

from workbench.errors import ConfigurationError
from workbench.presets import delete_preset, duplicate_preset, remember_preset
from workbench.system.child_process import CancelledError
from workbench.tui.context import AppContext
from workbench.tui.form.meter import FitMeter
from workbench.tui.form.preset_forecast import PresetRow, forecasts, matches, preset_rows
from workbench.tui.form.preset_list import PresetAbout, PresetList
from workbench.tui.messages import OpenPreset, StartRun
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.screens.filter_field import FilteredScreen, FilterField

if TYPE_CHECKING:
    from workbench.tui.form.planning import Planning
    from workbench.tui.form.sources import Sources

_CHANGING = ("run", "duplicate", "delete")
"""The actions that read-only mode leaves out."""


class PresetsRead(Message):
    """The presets were read."""

    def __init__(self, rows: list[PresetRow]) -> None:
        super().__init__()
        self.rows = rows


class PresetPlanned(Message):
    """One preset's forecast is known."""

    def __init__(self, row: PresetRow) -> None:
        super().__init__()
        self.row = row


class PresetsScreen(FilteredScreen):
    """Every preset that can be named. `OpenPreset` and `StartRun` ask for what comes next."""

    TITLE = "Presets"
    # Textual declares these two as an instance's.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (22, "-high")]  # noqa: RUF012
    # Not CSS: for a screen's own style, Textual parses all style anew before the first picture.
    DEFAULT_CSS = """
    PresetsScreen #body { height: 1fr; layout: horizontal; }
    PresetsScreen #presets { width: 1fr; height: 1fr; }
    PresetsScreen #side { width: 40%; max-width: 70; height: 1fr; }
    PresetsScreen #side Panel { padding: 0 1; }
    PresetsScreen #about { height: 9; }
    PresetsScreen #meter { height: 1fr; }

    PresetsScreen.-narrow #body { layout: vertical; }
    PresetsScreen.-narrow #side { width: 1fr; max-width: 100%; height: auto; }
    PresetsScreen.-narrow #side Panel { border: none; min-height: 1; }
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
        super().__init__()
        self.context = context
        self._sources = sources
        self._rows: dict[Path, PresetRow] = {}
        """In the order in which they are shown."""
        self._wanted: Path | None = None
        """The preset to put the cursor on as soon as it is read."""
        self._cancel: Event | None = None
        self._read_once = False

    @cached_property
    def planning(self) -> Planning:
        """For the threads: importing it takes longer than the first picture."""
        from workbench.tui.form.planning import Planning
        from workbench.tui.form.sources import Here

        return Planning(self._sources or Here(self.context.runs_root))

    def compose(self) -> ComposeResult:
        glyphs = self.context.glyphs
        yield FilterField("type to filter by name")
        with Container(id="body"):
            yield PresetList(glyphs, id="presets")
            with Vertical(id="side"):
                yield PresetAbout(glyphs, id="about")
                yield FitMeter(glyphs, id="meter")
        yield KeyLine(glyphs)

    @property
    def preset_list(self) -> PresetList:
        return self.query_one("#presets", PresetList)

    def on_mount(self) -> None:
        self.preset_list.focus()
        self.preset_list.show((), "Reading the presets ...")

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.look)  # what it imports would hold the picture up

    def on_screen_suspend(self) -> None:
        self._call_off()

    def on_unmount(self) -> None:
        self._call_off()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (self.context.read_only and action in _CHANGING)

    # Reading

    def look(self) -> None:
        """Read the presets again, and plan them on the machine as it is now."""
        self._call_off()
        self._cancel = cancelled = Event()
        self._read(cancelled)

    def _call_off(self) -> None:
        if self._cancel is not None:
            self._cancel.set()
            self._cancel = None

    @work(thread=True, exclusive=True, group="presets", exit_on_error=False)
    def _read(self, cancelled: Event) -> None:
        worker = get_current_worker()
        rows = preset_rows()
        self.post_message(PresetsRead(rows))
        self.planning.forget_machine()
        try:
            for row in forecasts(rows, self.planning, cancelled, lambda: worker.is_cancelled):
                if worker.is_cancelled:
                    return
                self.post_message(PresetPlanned(row))
        except CancelledError:
            return
        finally:
            if self._cancel in (None, cancelled):  # else the next reading may be asking for a model profile
                self.planning.sources.let_go()

    def on_presets_read(self, event: PresetsRead) -> None:
        known = self._rows
        self._read_once = True
        self._rows = {}
        for row in event.rows:
            before = known.get(row.preset.path)
            # The forecast of before stays until the new one is there.
            same = before is not None and before.preset == row.preset and not before.pending
            self._rows[row.preset.path] = (
                replace(before, recent=row.recent) if before is not None and same else row
            )
        self._show()
        if self._wanted is not None:
            self.preset_list.go_to(self._wanted)
            self._wanted = None

    def on_preset_planned(self, event: PresetPlanned) -> None:
        if event.row.preset.path in self._rows:
            self._rows[event.row.preset.path] = event.row
            self._show()

    def _show(self, *, from_top: bool = False) -> None:
        """Show the rows that the filter leaves, the best answers first."""
        query = self.filter_field.value
        found = [(score, row) for row in self._rows.values() if (score := matches(query, row)) is not None]
        found.sort(key=lambda each: each[0])  # stable: recent ones stay first among equals
        note = f'No preset answers to "{query}".' if self._rows else "There are no presets."
        self.preset_list.show([row for _, row in found], note, from_top=from_top)

    @on(PresetList.Highlighted)
    def _highlighted(self, event: PresetList.Highlighted) -> None:
        event.stop()
        row = event.row
        self.query_one(PresetAbout).show(row)
        remark = ""
        if row is not None and row.plan is None:
            remark = "has errors: open it to see them" if row.preset.error else row.said or "being planned"
        self.query_one(FitMeter).show(None if row is None else row.plan, remark)

    # Filtering

    def on_key(self, event: events.Key) -> None:
        """A letter that means nothing else begins a filter."""
        bound = event.key in self.active_bindings  # bindings come after this
        if self.focused is self.preset_list and event.is_printable and not bound and event.key != "space":
            event.stop()
            self.filter_field.open(event.character or "")

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._read_once:
            self._show(from_top=True)

    @on(Input.Submitted, "#filter")
    def _filter_done(self, event: Input.Submitted) -> None:
        event.stop()
        self.preset_list.focus()
        self.action_open()

    # Opening and running

    @on(PresetList.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        row = self.preset_list.highlighted
        if row is not None:
            remember_preset(row.preset.path)
            self.post_message(OpenPreset(row.preset.path))

    def action_run(self) -> None:
        """Start the preset as it stands."""
        row = self.preset_list.highlighted
        if row is None:
            return
        if row.preset.error is not None:
            self._tell(f"{row.preset.name}: has errors; open it to see them", "warning")
        elif row.verdict == "no":
            text = (
                f"{row.preset.name}: {row.said}. Such a run ends at once; the form looks for what fits (F6)."
            )
            self._ask("It does not fit", text, "Start anyway", lambda: self._start(row))
        else:
            self._start(row)

    def _start(self, row: PresetRow) -> None:
        try:
            text = row.preset.path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self._tell(f"{row.preset.path}: cannot be read: {error}", "error")
            return
        remember_preset(row.preset.path)
        self.post_message(StartRun(text, row.preset.name))

    # Copies

    def action_duplicate(self) -> None:
        """Copy the preset into the user's folder."""
        row = self.preset_list.highlighted
        if row is None:
            return
        try:
            path = duplicate_preset(row.preset.path)
        except ConfigurationError as error:
            self._tell(str(error), "error")
            return
        self._tell(f"copied to {path}")
        self._wanted = path
        self.look()

    def action_delete(self) -> None:
        row = self.preset_list.highlighted
        if row is None:
            return
        if row.preset.origin == "shipped":
            self._tell(f"{row.preset.name}: comes with workbench and is not deleted", "warning")
            return
        text = f"Delete {row.preset.path}? It will be gone for good; its runs stay."
        self._ask("Delete", text, "Delete", lambda: self._delete(row))

    def _delete(self, row: PresetRow) -> None:
        try:
            delete_preset(row.preset.path)
        except ConfigurationError as error:
            self._tell(str(error), "error")
            return
        self._tell(f"{row.preset.name} is deleted")
        self.look()

    # What actions share

    def _ask(self, title: str, text: str, yes: str, do: Callable[[], None]) -> None:
        from workbench.tui.dialogs import Confirm

        dialog = Confirm(title, text, yes, "Cancel", danger=True, glyphs=self.context.glyphs)
        self.app.push_screen(dialog, lambda sure: do() if sure else None)

    def _tell(self, message: str, severity: SeverityLevel = "information") -> None:
        self.notify(message, severity=severity, markup=False)
