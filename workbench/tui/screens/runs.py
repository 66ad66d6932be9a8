"""The history of runs: see, filter, open, steer, resume, compare and delete them.

It reads run directories in a thread, and only what has changed; it writes to them through `control.jsonl`, and
deletes them, each after a key of the user. Invariants: in read-only mode nothing of the kind is offered or done, and
the state of a run is a word beside its sign, so that colour is never needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import amount, duration
from workbench.runs import RunDirectory
from workbench.runs.control import Answer
from workbench.runs.deleting import delete_run, plan_deletion
from workbench.runs.launch import exit_reason
from workbench.runs.summary import RunSummaries, RunSummary
from workbench.system.folders import expanded
from workbench.tui.charts.scale import short
from workbench.tui.context import AppContext
from workbench.tui.dialogs import AskText, Confirm
from workbench.tui.glyphs import Glyphs
from workbench.tui.messages import CompareRuns, OpenRun
from workbench.tui.panels.panel import Line, Panel, clean, keep
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.run.steering import GOES_ON, SteeringScreen
from workbench.tui.screens.live_screen import Reader
from workbench.tui.screens.row_table import FilteredScreen, FilterField, RowTable

_LAST_LINES = 12
_LONG_TOAST_S = 20.0
"""A toast with a path in it that somebody may want to read."""


_STYLES = {
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
    _Column(
        "PRESET", 0, False, lambda row: "+".join([row.preset, *row.run.labels]) if row.preset else row.name
    ),
    _Column("STEP", 13, True, _steps),
    _Column("LOSS", 7, True, lambda row: _number(row.loss)),
    _Column("TIME", 7, True, _taken),
    _Column("BEGUN", 11, True, _begun),
    _Column("TOKENS", 7, True, lambda row: "-" if row.tokens is None else short(row.tokens)),
    _Column("TOK/S", 9, True, lambda row: "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}"),
    _Column("VALID.", 7, True, lambda row: _number(row.validation_loss)),
    _Column("RUN", 44, False, lambda row: row.name),
)
"""The last ones are left out first."""
_STATE = "  STATE"
_STATE_WIDTH = 12
_LEAST_NAME = 12


class RunList(RowTable[RunSummary]):
    """One row a run, with marks."""

    TITLE = "Runs"
    RIGHT = tuple(column.title for column in _COLUMNS if column.right)
    HELP = """\
All folders in the runs' folder, the newest run first.

- **stale**: its process has not updated its status for two minutes, or runs on another machine
- **died**: its process ended without a message
- **unknown**: its status cannot be read; **foreign**: the folder is not a run
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.marks: set[RunDirectory] = set()

    def identity(self, row: RunSummary) -> RunDirectory:
        return row.run

    @property
    def marked(self) -> tuple[RunSummary, ...]:
        """The marked rows that are shown, in their order."""
        return tuple(row for row in self.shown if row.run in self.marks)

    def toggle_mark(self) -> None:
        """Mark the run under the cursor, or unmark it, and go on to the next."""
        if self.highlighted is not None:
            self.marks ^= {self.highlighted.run}
            self.update([self.cursor_row])
            self.action_cursor_down()

    # Drawing

    def heading(self) -> str:
        active = sum(row.active for row in self.shown)
        return f"{super().heading()} {self.glyphs.separator} {active} active" if active else super().heading()

    def footing(self) -> str:
        return f"{len(self.marks)} marked" if self.marks else ""

    def columns_for(self, width: int) -> dict[str, int]:
        left = width - (_STATE_WIDTH + 2) - (_LEAST_NAME + 2)
        columns = {_STATE: _STATE_WIDTH, "PRESET": _LEAST_NAME}
        for column in _COLUMNS[1:]:
            left -= column.width + 2
            if left < 0:
                break
            columns[column.title] = column.width
        columns["PRESET"] = max(1, width - sum(columns.values()) - 2 * len(columns) + _LEAST_NAME)
        return columns

    def cells(self, row: RunSummary) -> dict[str, Text]:
        sign = "*" if row.run in self.marks else " "
        style = "warning" if row.problem else _STYLES.get(row.state, "dim")
        state = self.text(f"{self._sign(row)} {row.state}", style)
        cells = {_STATE: self.text(f"{self.mark(row)}{sign}", "mark").append_text(state)}
        for column in _COLUMNS:
            width = self.widths.get(column.title, 0)
            cells[column.title] = self.text(column.text(row), width=width)
        return cells

    def _sign(self, row: RunSummary) -> str:
        """Return the character that says the same as the state's colour."""
        glyphs = self.glyphs
        if row.state != "foreign" and row.problem:
            return glyphs.warning
        signs = {
            "foreign": "?",
            "stale": glyphs.warning,
            "unknown": glyphs.warning,
            "running": glyphs.dot,
            "finished": glyphs.good,
            "failed": glyphs.bad,
            "died": glyphs.bad,
            "paused": "=",
        }
        return signs.get(row.state, glyphs.separator)


class RunDetail(Panel):
    """The run under the cursor: its folder, its progress, what is wrong with it, the end of its log."""

    TITLE = "Run"
    HELP: ClassVar[str | None] = """\
The run under the cursor: its folder, progress, message and problems. If it failed or died, the last lines of its log.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._row: RunSummary | None = None
        self._words: tuple[str, ...] = ()

    def show(self, row: RunSummary | None, exit_reason: tuple[str, ...] = ()) -> None:
        if (row, exit_reason) != (self._row, self._words):
            if self._row is None or row is None or row.run != self._row.run:
                self.first_row = 0
            self._row, self._words = row, exit_reason
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return (self._row.name,) if self._row else ()

    def lines(self, width: int, height: int) -> list[Line]:
        row = self._row
        if row is None:
            return []
        facts = [
            f"{row.state}: {row.phase}" if row.active else row.state,
            row.progress,
            "" if row.exit_code is None else f"exit code {row.exit_code}",
            "" if row.eta_s is None or not row.active else f"ETA {duration(row.eta_s)}",
        ]
        written = [self.write(fact, "" if rank else "strong") for rank, fact in enumerate(facts) if fact]
        lines = [keep(width, list(enumerate(written)))]
        if row.problem:
            lines += self._sentence(row.problem, width, "warning")
        if row.message:
            lines += self._sentence(row.message, width, "bad" if row.state == "failed" else "")
        if self._words:  # the very last ones first of all
            room = max(1, height - len(lines))
            lines += [self.write(clean(line, self.glyphs)) for line in self._words[-room:]]
        if len(lines) < height:
            lines.append(self.write(clean(str(row.run.path), self.glyphs), "dim"))
        return lines

    def _sentence(self, text: str, width: int, pen: str) -> list[Line]:
        noted = self.note(clean(text, self.glyphs), width)
        return [self.write("".join(segment.text for segment in line), pen) for line in noted]


class RunsScreen(SteeringScreen, FilteredScreen):
    """Every run in the folder of runs. Other screens are asked for by `OpenRun`, `ResumeRun` and `CompareRuns`."""

    TITLE = "Runs"
    CSS = """
    RunsScreen {
        layout: vertical;
        & RunList { height: 1fr; }
        & RunDetail { height: 7; }
        &.-low RunDetail { height: 4; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open", id="runs.open"),
        Binding("slash", "filter", "Filter", key_display="/", id="runs.filter"),
        Binding("R", "resume", "Resume", id="runs.resume"),
        Binding("space", "mark", "Mark", id="runs.mark"),
        Binding("C", "compare", "Compare", id="runs.compare"),
        Binding("A", "pause", "Pause/continue", id="runs.pause"),
        Binding("K", "save", "Save now", id="runs.save"),
        Binding("S", "stop", "Stop", id="runs.stop"),
        Binding("E", "export", "Export", id="runs.export"),
        Binding("X", "delete", "Delete", id="runs.delete"),
        Binding("Y", "copy_path", "Copy path", id="runs.copy_path"),
    ]

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.summaries = RunSummaries(context.runs_root)
        self.rows: tuple[RunSummary, ...] | None = None
        """None before the first look."""
        self._reader = Reader(self, self.summaries.read, self._show_runs)
        self._log_reader = Reader(self, _last_lines, self._show_last_lines)
        self._offers_resume = False

    def compose(self) -> ComposeResult:
        glyphs = self.context.glyphs
        yield FilterField("type to filter by name or state")
        yield RunList(glyphs, id="runs")
        yield RunDetail(glyphs, id="detail")
        yield KeyLine(self.context.glyphs)

    @property
    def run_list(self) -> RunList:
        return self.query_one("#runs", RunList)

    def on_mount(self) -> None:
        self.run_list.focus()
        self.run_list.show((), "Reading the runs ...")
        self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not super().check_action(action, parameters):
            return False
        return True if action != "resume" or self._may_resume else None

    @property
    def _may_resume(self) -> bool:
        """The run under the cursor can go on: it is shown before the key is pressed."""
        row = self.run_list.highlighted if self.is_mounted else None
        return row is not None and (row.state == "paused" or row.state in GOES_ON)

    # Reading.

    def look(self) -> None:
        self._reader.read_if_idle(self.context.clock())

    def look_after_change(self) -> None:
        """Look again: a look that goes on may have missed the change."""
        self._reader.read(self.context.clock())

    def _show_runs(self, rows: tuple[RunSummary, ...]) -> None:
        if rows != self.rows:
            self.rows = rows
            self.run_list.marks &= {row.run for row in rows}
            self._show()

    def _show(self) -> None:
        """Show the rows that the filter leaves."""
        words = self.filter_field.value.lower().split()
        rows = [row for row in self.rows or () if all(word in _text(row) for word in words)]
        if self.rows:
            found = " and ".join(repr(word) for word in words)
            note = f"No run has {found} in its name or state." if words else ""
        else:
            note = f"There are no runs in {self.summaries.root} yet: start one from a preset."
        self.run_list.show(rows, note)
        self._show_detail()

    @on(RunList.RowHighlighted)
    def _show_detail(self) -> None:
        row = self.run_list.highlighted
        self.query_one(RunDetail).show(row)
        if self._may_resume != self._offers_resume:
            self._offers_resume = self._may_resume
            self.refresh_bindings()
        if row is not None and row.state in ("failed", "died"):
            self._log_reader.read(row)

    def _show_last_lines(self, found: tuple[RunSummary, tuple[str, ...]]) -> None:
        row, lines = found
        if row == self.run_list.highlighted:
            self.query_one(RunDetail).show(row, lines)

    # Filtering.

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        if self.rows is not None:
            self._show()

    @on(Input.Submitted, "#filter")
    def _filter_done(self, event: Input.Submitted) -> None:
        event.input.set_class(bool(event.value), "-shown")
        self.run_list.focus()

    # Looking closer.

    @on(RunList.RowSelected)
    def action_open(self) -> None:
        row = self._run("open")
        if row is not None:
            self.post_message(OpenRun(row.run))

    def action_mark(self) -> None:
        self.run_list.toggle_mark()

    def action_compare(self) -> None:
        rows = [row for row in self.run_list.marked if row.state != "foreign"]
        here = self.run_list.highlighted
        if len(rows) == 1 and here is not None and here.run != rows[0].run and here.state != "foreign":
            rows.append(here)
        if len(rows) < 2:
            self.report("Mark two or more runs with the space bar first.", severity="warning")
        else:
            self.post_message(CompareRuns(tuple(row.run for row in rows)))

    def action_copy_path(self) -> None:
        row = self.run_list.highlighted
        if row is not None:
            self.app.copy_to_clipboard(str(row.run.path))
            self.report(f"Copied: {row.run.path}")

    # Steering.

    def steered(self) -> tuple[RunDirectory, str, bool] | None:
        row = self.run_list.highlighted
        return None if row is None else (row.run, row.state, row.active)

    def command_sent(self, run: RunDirectory, command: str) -> None:
        self.report(f"{run.name}: asked to {'continue' if command == 'resume' else command} ...")

    def command_answered(self, run: RunDirectory, command: str, answer: Answer) -> None:
        self.look_after_change()

    # Exporting.

    def action_export(self) -> None:
        row = self._run("export")
        if row is not None:
            self._export(row.run)

    @work(group="export", exit_on_error=False)
    async def _export(self, run: RunDirectory) -> None:
        """Ask for a folder, and copy the model into it, in a thread."""
        from workbench.export.export import export

        def wrong(text: str) -> str:
            if not text:
                return "Name a new folder for the model."
            try:
                path = expanded(text, "export")
            except ConfigurationError as error:
                return str(error)
            is_taken = path.is_file() or (path.is_dir() and any(path.iterdir()))
            return f"{path} exists: name a new or an empty folder." if is_taken else ""

        target, glyphs = str(Path("exported") / run.name), self.context.glyphs
        dialog = AskText("Export the model into", target, wrong, yes="Export", glyphs=glyphs)
        folder = await self.app.push_screen_wait(dialog)
        if folder is None:
            return
        try:
            exported = await asyncio.to_thread(export, run, Path(folder))
        except WorkbenchError as error:
            self.report(str(error), severity="error")
            return
        message = f"Exported step {exported.step:,} ({amount(exported.bytes)}): {exported.path}"
        self.report(message, timeout=_LONG_TOAST_S)

    # Deleting.

    def action_delete(self) -> None:
        row = self._run("delete")
        if row is not None:
            self._delete(row.run)

    @work(group="delete", exit_on_error=False)
    async def _delete(self, run: RunDirectory) -> None:
        """Weigh the folder, ask, and delete it. The disk is touched in threads."""
        try:
            planned = await asyncio.to_thread(plan_deletion, run)
            files = f"{planned.files} files" if planned.files != 1 else "1 file"
            count = planned.checkpoints
            saved = f", {count} checkpoint{'s' if count > 1 else ''} included," if count else ""
            text = f"Delete {run.name}? {amount(planned.bytes)} in {files}{saved} will be deleted for good."
            dialog = Confirm("Delete", text, "Delete", "Keep", danger=True, glyphs=self.context.glyphs)
            if not await self.app.push_screen_wait(dialog):
                return
            gone = await asyncio.to_thread(delete_run, run)
        except WorkbenchError as error:
            self.report(str(error), severity="error")
            return
        self.report(f"{run.name} is deleted: {amount(gone.bytes)} freed.")
        self.look_after_change()

    # What actions share.

    def _run(self, command: str) -> RunSummary | None:
        """Return the run under the cursor; None where there is none, and a report where it is none."""
        row = self.run_list.highlighted
        if row is not None and row.state == "foreign":
            self.report(f"{row.name}: cannot {command}: {row.problem}", severity="warning")
            return None
        return row


def _text(row: RunSummary) -> str:
    """Return the text that a filter looks at."""
    return f"{row.name} {row.state} {row.phase}".lower()


def _last_lines(row: RunSummary) -> tuple[RunSummary, tuple[str, ...]]:
    return row, exit_reason(row.run, _LAST_LINES).lines
