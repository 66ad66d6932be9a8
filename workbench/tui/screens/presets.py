"""The presets: find one, see whether it fits here, open it, run it, copy it, and delete one's own.

Presets are read and planned in threads, row by row; the plan is imported there, after the first picture. Invariants:
what comes with workbench is never changed or deleted, and a verdict is a word beside its sign.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.fuzzy import Matcher
from textual.widgets import Input, Static

from workbench.errors import ConfigurationError
from workbench.presets import (
    Preset,
    delete_preset,
    duplicate_preset,
    list_presets,
    recent_presets,
    remember_preset,
)
from workbench.tui.charts.scale import short
from workbench.tui.context import AppContext
from workbench.tui.form.meter import MUTED, FitMeter, Verdict, mark_of, verdict, verdict_words
from workbench.tui.glyphs import Glyphs
from workbench.tui.messages import OpenPreset, StartRun
from workbench.tui.panels.panel import clean
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.screens.live_screen import WorkbenchScreen
from workbench.tui.screens.row_table import FilteredScreen, FilterField, RowTable

if TYPE_CHECKING:
    from workbench.plan.planner import Plan
    from workbench.tui.form.planner import ConfigPlanner, ThisMachine


LONGEST_NAME = 28
LONG_VERDICT_WIDTH, ORIGIN_WIDTH = 100, 70
"""Cells of a list that has room for verdicts of more than a word, and for the column FROM."""
_VERDICT_STYLES: dict[Verdict, str] = {"fits": "good", "tight": "warning", "no": "bad"}


@dataclass(frozen=True)
class PresetRow:
    """One preset. `pending`: its forecast is being made. `words`: the verdict in words, or why there is none."""

    preset: Preset
    parameters: int | None = None
    plan: Plan | None = None
    verdict: Verdict | None = None
    words: str = ""
    pending: bool = False

    @property
    def path(self) -> Path:
        return self.preset.path


def preset_rows() -> list[PresetRow]:
    """Return every preset without a forecast: those used last first, the others as `list_presets` orders them."""
    recent = {path: place for place, path in enumerate(recent_presets())}
    rows = [PresetRow(preset, pending=preset.error is None) for preset in list_presets()]
    return sorted(rows, key=lambda row: recent.get(row.path.absolute(), len(recent)))


def forecast(
    row: PresetRow, planner: ConfigPlanner, take_profile: threading.Event | None = None
) -> PresetRow:
    """Return the row with its parameters, plan and verdict.

    With `take_profile`, the model profile is taken where there is none, until that event is set; without it the row
    stays pending there.

    Raises:
        CancelledError: `take_profile` was set.
    """
    from workbench.config import load_config

    try:
        config = load_config(row.path)
    except ConfigurationError as error:  # it was changed meanwhile
        return PresetRow(row.preset._replace(error=str(error), description=""))
    result = planner.plan(config)
    if result.needs_profile and take_profile is not None:
        planner.take_profile(config, lambda sentence: None, take_profile)
        result = planner.plan(config)
    if result.plan is None:
        words = result.refused or "the model is profiled first"
        return PresetRow(row.preset, planner.parameters(config), words=words, pending=result.needs_profile)
    memory = result.plan.memory
    return PresetRow(row.preset, memory.parameters, result.plan, verdict(memory), verdict_words(memory))


def match_score(query: str, row: PresetRow) -> float:
    """Return how well a row matches the filter: by letters of the name in their order, or by whole words; 0: not."""
    preset = row.preset
    query = query.strip().lower()
    if not query:
        return 1.0
    by_name = Matcher(query.replace(" ", "")).match(preset.name)
    if by_name:
        return 2.0 + by_name
    text = f"{preset.name} {preset.description} {preset.origin}".lower()
    return float(all(word in text for word in query.split()))


class PresetTable(RowTable[PresetRow]):
    """The presets, one a row, the best match first."""

    TITLE = "Presets"
    RIGHT = ("PARAMS",)
    HELP = """\
Presets shipped with workbench, your own and the project's; the last used come first.

- **fits**: every tier has room; **tight**: less than 5 % of a tier is left; **no**: what is missing
- **broken**: the file has errors; open it to see them at their fields
"""

    def identity(self, row: PresetRow) -> Path:
        return row.path

    def columns_for(self, width: int) -> dict[str, int]:
        names = (len(row.preset.name) for row in self.shown)
        verdicts = (len(self._verdict(row)) for row in self.shown)
        columns = {
            "  NAME": 2 + min(LONGEST_NAME, max(names, default=0)),
            "PARAMS": 6,
            "FIT": max(3, *verdicts) if self.shown else 3,
        }
        if self.size.width >= ORIGIN_WIDTH:
            columns["FROM"] = 7
        columns["DESCRIPTION"] = max(11, width - sum(columns.values()) - 2 * len(columns) - 1)
        return columns

    def cells(self, row: PresetRow) -> dict[str, Text]:
        preset = row.preset
        parameters = short(row.parameters) if row.parameters is not None else "..." if row.pending else "-"
        return {
            "  NAME": self.text(f"{self.mark(row)} {self.glyphs.cut(preset.name, LONGEST_NAME)}"),
            "PARAMS": self.text(parameters),
            "FIT": self._verdict(row),
            "FROM": self.text(preset.origin, "dim"),
            "DESCRIPTION": self.text(
                (preset.error or preset.description).replace("\n", " "), "dim", self.widths["DESCRIPTION"]
            ),
        }

    def _verdict(self, row: PresetRow) -> Text:
        long = self.size.width >= LONG_VERDICT_WIDTH
        if row.preset.error is not None:
            return self.text(f"{self.glyphs.bad} broken", "bad")
        if row.verdict is not None:
            mark = mark_of(row.verdict, self.glyphs)
            return self.text(f"{mark} {row.words if long else row.verdict}", _VERDICT_STYLES[row.verdict])
        if row.pending:
            return self.text("...", "dim")
        return self.text(f"? {row.words}" if long else "?", "dim")


class PresetAbout(Static):
    """The description of a preset, its placement here, its file, and its errors."""

    DEFAULT_CSS = """
    PresetAbout { border-title-color: $foreground; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "About"
        self._glyphs = glyphs

    def show(self, row: PresetRow | None) -> None:
        """Describe `row`."""
        self.border_title = Content("About" if row is None else f"About {row.preset.name}")
        self.update(Content("\n").join(self._lines(row)) if row is not None else "", layout=False)

    def _lines(self, row: PresetRow) -> list[Content]:
        preset = row.preset
        lines = [(line, "$error bold") for line in (preset.error or "").splitlines()]
        lines = lines or [(preset.description or preset.name, "$foreground")]
        if row.verdict is None and row.words:
            lines.append((row.words, MUTED))
        if row.plan is not None:
            offload = row.plan.config.offload
            placed = f"weights on {offload.weights}, state on {offload.state} ({offload.state_format})"
            lines.append((f"{row.parameters:,} parameters, {placed}", MUTED))
        lines.append(("shipped with workbench" if preset.origin == "shipped" else str(preset.path), MUTED))
        return [Content.styled(clean(text, self._glyphs), style) for text, style in lines]


class PresetsScreen(WorkbenchScreen, FilteredScreen):
    """Every preset that can be named. It posts `OpenPreset` and `StartRun`."""

    TITLE = "Presets"
    CHANGING = ("run", "duplicate", "delete")
    # Textual declares it as an instance's.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="presets.open"),
        Binding("R", "run", "Run", id="presets.run"),
        Binding("slash", "filter", "Filter", key_display="/", id="presets.filter"),
        Binding("D", "duplicate", "Duplicate", id="presets.duplicate"),
        Binding("X", "delete", "Delete", id="presets.delete"),
    ]

    def __init__(self, context: AppContext, machine: ThisMachine | None = None) -> None:
        super().__init__(context)
        self._machine = machine
        self._rows: dict[Path, PresetRow] | None = None
        """In the order in which they are shown; None before they have been read."""

    @cached_property
    def planner(self) -> ConfigPlanner:
        """For threads: importing it takes longer than the first picture."""
        from workbench.tui.form.planner import ConfigPlanner, ThisMachine

        return ConfigPlanner(self._machine or ThisMachine(self.context.runs_root))

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

    def on_mount(self) -> None:
        self.preset_table.show((), "Reading the presets ...")
        self.preset_table.focus()

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.look)  # what it imports would hold the picture up

    def on_screen_suspend(self) -> None:
        self.workers.cancel_group(self, "presets")

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
                self.planner.source.stop_profiler()

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
        note = f'No preset matches "{query}".' if self._rows else "There are no presets."
        table.show(rows, note, cursor)
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
            self.report(f"{name}: has errors; open it to see them", severity="warning")
        elif row.verdict == "no":
            text = f"{name}: {row.words}. The run would end at once. F6 in the form searches for what fits."
            self.confirm("It does not fit", text, "Start anyway", "Cancel", lambda: self._start(row))
        else:
            self._start(row)

    def _start(self, row: PresetRow) -> None:
        try:
            text = row.path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            self.report(f"{row.path}: cannot be read: {error}", severity="error")
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
            self.report(str(error), severity="error")
            return
        self.report(f"copied to {path}")
        self.look(path)

    def action_delete(self) -> None:
        row = self.preset_table.highlighted
        if row is None:
            return
        if row.preset.origin == "shipped":
            self.report(
                f"{row.preset.name}: is shipped with workbench and is never deleted", severity="warning"
            )
            return
        text = f"Delete {row.path}? This cannot be undone; its runs stay."
        self.confirm("Delete", text, "Delete", "Cancel", lambda: self._delete(row))

    def _delete(self, row: PresetRow) -> None:
        try:
            delete_preset(row.path)
        except ConfigurationError as error:
            self.report(str(error), severity="error")
            return
        self.report(f"{row.preset.name} is deleted")
        self.look()
