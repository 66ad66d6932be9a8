"""The history of runs: see, filter, open, steer, resume, compare and delete them.

It reads run directories in a thread, and only what has changed; it writes to them through `control.jsonl`, and
deletes them, each after a key of the user. Invariant: in read-only mode nothing of the kind is offered or done.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input
from textual.worker import get_current_worker

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import amount
from workbench.runs import RunDirectory
from workbench.runs.control import ask
from workbench.runs.deleting import delete_run, plan_deletion
from workbench.runs.launch import exit_reason
from workbench.runs.summary import RunSummaries, RunSummary
from workbench.system.folders import expanded
from workbench.tui.context import AppContext
from workbench.tui.dialogs import AskText, Confirm
from workbench.tui.messages import CompareRuns, OpenRun, ResumeRun
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.run.resuming import GOES_ON
from workbench.tui.screens.filter_field import FilteredScreen, FilterField
from workbench.tui.screens.run_detail import RunDetail
from workbench.tui.screens.run_list import RunList

_CHANGING = ("resume", "stop", "pause", "save", "export", "delete")
"""The actions that read-only mode leaves out."""
_LAST_LINES = 12
_LONG_TOLD_S = 20.0
"""What is told with a path in it that somebody may want to read stays so long."""


class RunsRead(Message):
    """One look at the runs' folder."""

    def __init__(self, rows: tuple[RunSummary, ...]) -> None:
        super().__init__()
        self.rows = rows


class LastWordsRead(Message):
    """The last lines of a run's log."""

    def __init__(self, row: RunSummary, lines: tuple[str, ...]) -> None:
        super().__init__()
        self.row = row
        self.lines = lines


class RunsScreen(FilteredScreen):
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
        super().__init__()
        self.context = context
        self._summaries = RunSummaries(context.runs_root)
        self._rows: tuple[RunSummary, ...] | None = None
        """None before the first look."""
        self._reading = False
        self._look_again = False
        """Something was changed while a look went on, which may have missed it."""
        self._offered_resume = False
        """Whether the keys that are shown say that the run under the cursor can go on."""

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
        self.set_interval(self.context.interval_s, self._tick)
        self.look()

    def on_screen_resume(self) -> None:
        self.look()

    def on_resize(self) -> None:
        self.set_class(self.size.height < 20, "-low")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.context.read_only and action in _CHANGING:
            return False
        if action == "resume" and not self._may_resume:
            return None
        return True

    @property
    def _may_resume(self) -> bool:
        """Whether the run under the cursor can go on: it is shown before the key is pressed."""
        row = self.run_list.highlighted if self.is_mounted else None
        return row is not None and (row.state == "paused" or row.state in GOES_ON)

    # Reading.

    def look(self) -> None:
        """Read what has changed."""
        if self._reading:
            self._look_again = True
        else:
            self._reading = True
            self._read()

    def _tick(self) -> None:
        """A look, unless nobody sees it or the last one still goes on."""
        # Beneath a dialog it goes on; beneath another screen nobody sees it, and what it drew would redraw that one.
        seen = self.is_active or (self.is_current and isinstance(self.app.screen, ModalScreen))
        if seen and not self._reading:
            self.look()

    @work(thread=True, group="look", exit_on_error=False)
    def _read(self) -> None:
        rows = self._summaries.read(self.context.clock())
        self.post_message(RunsRead(rows))

    def on_runs_read(self, event: RunsRead) -> None:
        self._reading = False
        if self._look_again:
            self._look_again = False
            self.look()
        if event.rows != self._rows:
            self._rows = event.rows
            self.run_list.marks &= {row.run for row in event.rows}
            self._show()

    def _show(self) -> None:
        """Show the rows that the filter leaves."""
        words = self.filter_field.value.lower().split()
        rows = [row for row in self._rows or () if all(word in _text(row) for word in words)]
        if self._rows:
            note = (
                f"No run has {' and '.join(repr(word) for word in words)} in its name or state."
                if words
                else ""
            )
        else:
            note = f"There are no runs in {self._summaries.root} yet: start one from a preset."
        self.run_list.show(rows, note)

    @on(RunList.Highlighted)
    def _show_detail(self, event: RunList.Highlighted) -> None:
        row = event.row
        self.query_one("#detail", RunDetail).show(row)
        if self._may_resume != self._offered_resume:
            self._offered_resume = self._may_resume
            self.refresh_bindings()
        if row is not None and row.state in ("failed", "died"):
            self._read_last_words(row)

    @work(thread=True, group="last words", exclusive=True, exit_on_error=False)
    def _read_last_words(self, row: RunSummary) -> None:
        self.post_message(LastWordsRead(row, exit_reason(row.run, _LAST_LINES).lines))

    def on_last_words_read(self, event: LastWordsRead) -> None:
        if event.row == self.run_list.highlighted:
            self.query_one("#detail", RunDetail).show(event.row, event.lines)

    # Filtering.

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        if self._rows is not None:
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
            self._tell("Mark the runs to compare with the space bar first: two or more.", severity="warning")
        else:
            self.post_message(CompareRuns(tuple(row.run for row in rows)))

    def action_copy_path(self) -> None:
        row = self.run_list.highlighted
        if row is not None:
            self.app.copy_to_clipboard(str(row.run.path))
            self._tell(f"Copied: {row.run.path}")

    # Steering.

    def action_resume(self) -> None:
        row = self._run("resume")
        if row is None:
            return
        if row.state == "paused":
            self._steer(row.run, "resume")
        elif row.state in GOES_ON:
            self.post_message(ResumeRun(row.run))

    def action_pause(self) -> None:
        row = self._living("pause")
        if row is not None:
            self._steer(row.run, "resume" if row.state == "paused" else "pause")

    def action_save(self) -> None:
        row = self._living("save")
        if row is not None:
            self._steer(row.run, "save")

    def action_stop(self) -> None:
        row = self._living("stop")
        if row is None:
            return
        run = row.run

        def answered(yes: bool | None) -> None:
            if yes:
                self._steer(run, "stop")

        question = (
            f"Stop {row.name}? It finishes its step, saves a checkpoint and ends; R resumes it from there."
        )
        self.app.push_screen(
            Confirm("Stop", question, "Stop and save", "Go on", glyphs=self.context.glyphs), answered
        )

    @work(group="steer", exit_on_error=False)
    async def _steer(self, run: RunDirectory, verb: str) -> None:
        """Send a command and tell the answer. The waiting is done in a thread, which touches nothing here."""
        self._tell(f"{run.name}: asked to {'go on' if verb == 'resume' else verb} ...")
        worker = get_current_worker()
        answer = await asyncio.to_thread(ask, run, verb, given_up=lambda: worker.is_cancelled)
        self._tell(f"{run.name}: {answer.message}", severity="information" if answer.done else "warning")
        self.look()

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
            there = path.is_dir() and any(path.iterdir())
            return (
                f"{path} is there already: name a new or an empty folder." if there or path.is_file() else ""
            )

        target = Path("exported") / run.name
        dialog = AskText(
            "Export the model into", str(target), wrong, yes="Export", glyphs=self.context.glyphs
        )
        folder = await self.app.push_screen_wait(dialog)
        if folder is None:
            return
        try:
            exported = await asyncio.to_thread(export, run, Path(folder))
        except WorkbenchError as error:
            self._tell(str(error), severity="error")
            return
        told = f"Exported step {exported.step:,} ({amount(exported.bytes)}): {exported.path}"
        self.notify(told, timeout=_LONG_TOLD_S, markup=False)

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
            saved = {0: "", 1: ", 1 checkpoint among them,"}.get(
                planned.checkpoints, f", {planned.checkpoints} checkpoints among them,"
            )
            text = f"Delete {run.name}? {amount(planned.bytes)} in {files}{saved} will be gone for good."
            dialog = Confirm("Delete", text, "Delete", "Keep", danger=True, glyphs=self.context.glyphs)
            if not await self.app.push_screen_wait(dialog):
                return
            gone = await asyncio.to_thread(delete_run, run)
        except WorkbenchError as error:
            self._tell(str(error), severity="error")
            return
        self.run_list.unmark({run})
        self._tell(f"{run.name} is deleted: {amount(gone.bytes)} freed.")
        self.look()

    # What actions share.

    def _run(self, verb: str) -> RunSummary | None:
        """The run under the cursor; None, and the reason told, where there is none."""
        row = self.run_list.highlighted
        if row is not None and row.state == "foreign":
            self._tell(f"{row.name}: cannot {verb}: {row.problem}", severity="warning")
            return None
        return row

    def _living(self, verb: str) -> RunSummary | None:
        """The run under the cursor where it has a trainer; else None, and the reason told."""
        row = self._run(verb)
        if row is not None and not row.active:
            self._tell(f"{row.name}: cannot {verb}: it is {row.state}.", severity="warning")
            return None
        return row

    def _tell(self, message: str, *, severity: str = "information") -> None:
        self.notify(message, severity=severity, markup=False)  # type: ignore[arg-type]


def _text(row: RunSummary) -> str:
    """What a filter looks at."""
    return f"{row.name} {row.state} {row.phase}".lower()
