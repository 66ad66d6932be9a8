"""The history of runs: see, filter, open, steer, resume, compare and delete them.

It reads run directories in a thread, and only what has changed; it writes to them through `control.jsonl`, and
deletes them, each after a key of the user. Invariant: in read-only mode nothing of the kind is offered or done.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import amount
from workbench.runs import RunDirectory
from workbench.runs.control import Answer
from workbench.runs.deleting import delete_run, plan_deletion
from workbench.runs.launch import exit_reason
from workbench.runs.summary import RunSummaries, RunSummary
from workbench.system.folders import expanded
from workbench.tui.context import AppContext
from workbench.tui.dialogs import AskText, Confirm
from workbench.tui.messages import CompareRuns, OpenRun
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.run.steering import GOES_ON, SteeringScreen
from workbench.tui.screens.filter_field import FilteredScreen, FilterField
from workbench.tui.screens.run_list import RunDetail, RunList

_LAST_LINES = 12
_LONG_TOAST_S = 20.0
"""A toast with a path in it that somebody may want to read."""


@dataclass
class RunsRead(Message):
    """One look at the runs' folder."""

    rows: tuple[RunSummary, ...]


@dataclass
class LastLinesRead(Message):
    """The last lines of a run's log."""

    row: RunSummary
    lines: tuple[str, ...]


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
        Binding("c", "compare", "Compare", id="runs.compare"),
        Binding("p", "pause", "Pause/go on", id="runs.pause"),
        Binding("k", "save", "Save now", id="runs.save"),
        Binding("s", "stop", "Stop", id="runs.stop"),
        Binding("e", "export", "Export", id="runs.export"),
        Binding("x", "delete", "Delete", id="runs.delete"),
        Binding("y", "copy_path", "Copy path", id="runs.copy_path"),
    ]

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.summaries = RunSummaries(context.runs_root)
        self.rows: tuple[RunSummary, ...] | None = None
        """None before the first look."""
        self._reading = False
        self._look_again = False
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

    def on_resize(self) -> None:
        self.set_class(self.size.height < 20, "-low")

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
        if not self._reading:
            self._reading = True
            self._read()

    def look_after_change(self) -> None:
        """Look again: a look that goes on may have missed the change."""
        self._look_again = self._reading
        self.look()

    @work(thread=True, group="look", exit_on_error=False)
    def _read(self) -> None:
        rows = self.summaries.read(self.context.clock())
        self.post_message(RunsRead(rows))

    def on_runs_read(self, event: RunsRead) -> None:
        self._reading = False
        if self._look_again:
            self._look_again = False
            self.look()
        if event.rows != self.rows:
            self.rows = event.rows
            self.run_list.marks &= {row.run for row in event.rows}
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

    @on(RunList.Highlighted)
    def _show_detail(self, event: RunList.Highlighted) -> None:
        row = event.row
        self.query_one(RunDetail).show(row)
        if self._may_resume != self._offers_resume:
            self._offers_resume = self._may_resume
            self.refresh_bindings()
        if row is not None and row.state in ("failed", "died"):
            self._read_last_lines(row)

    @work(thread=True, group="last lines", exclusive=True, exit_on_error=False)
    def _read_last_lines(self, row: RunSummary) -> None:
        self.post_message(LastLinesRead(row, exit_reason(row.run, _LAST_LINES).lines))

    def on_last_lines_read(self, event: LastLinesRead) -> None:
        if event.row == self.run_list.highlighted:
            self.query_one(RunDetail).show(event.row, event.lines)

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

    @on(RunList.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        row = self._run("open")
        if row is not None:
            self.post_message(OpenRun(row.run))

    def action_mark(self) -> None:
        self.run_list.mark()

    def action_compare(self) -> None:
        rows = [row for row in self.run_list.marked if row.state != "foreign"]
        here = self.run_list.highlighted
        if len(rows) == 1 and here is not None and here.run != rows[0].run and here.state != "foreign":
            rows.append(here)
        if len(rows) < 2:
            self.report("Mark the runs to compare with the space bar first: two or more.", severity="warning")
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
        self.report(f"{run.name}: asked to {'go on' if command == 'resume' else command} ...")

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
            return f"{path} is there already: name a new or an empty folder." if is_taken else ""

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
            saved = f", {count} checkpoint{'s' if count > 1 else ''} among them," if count else ""
            text = f"Delete {run.name}? {amount(planned.bytes)} in {files}{saved} will be gone for good."
            dialog = Confirm("Delete", text, "Delete", "Keep", danger=True, glyphs=self.context.glyphs)
            if not await self.app.push_screen_wait(dialog):
                return
            gone = await asyncio.to_thread(delete_run, run)
        except WorkbenchError as error:
            self.report(str(error), severity="error")
            return
        self.run_list.unmark({run})
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
