"""The form of one preset, the fit meter beside it, and what can be made of it: a run, a preset, one that fits.

State is the draft and the last outlook; rows, meter and help show them. Nothing that takes longer than a keystroke runs
here: plans, model profiles, searches, the probe and looks at the disk go on in threads, which post what they found.

Invariant: a run is only started from a draft without problems, and when all that it names is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.plan.fit import Fit
from workbench.tui.context import AppContext
from workbench.tui.dialogs import Confirm
from workbench.tui.form.asking import AskFit
from workbench.tui.form.draft import FIELDS, Draft
from workbench.tui.form.draft_screen import read_text
from workbench.tui.form.editor import edited
from workbench.tui.form.field_help import FieldHelp
from workbench.tui.form.field_row import FieldRow
from workbench.tui.form.looking_screen import LookingScreen
from workbench.tui.form.meter import FitMeter
from workbench.tui.form.planning import Outlook
from workbench.tui.form.remarks import remarks
from workbench.tui.form.sources import Here, Sources
from workbench.tui.form.table_list import TableList
from workbench.tui.form.tables import TABLE_NAMES, FormTables, table_of
from workbench.tui.form.verdict import verdict_words
from workbench.tui.messages import StartRun
from workbench.tui.panels.drawing import clean
from workbench.tui.panels.key_line import KeyLine

_CHANGING = ("start", "save", "measure")
"""The actions that read-only mode leaves out."""
TYPED = frozenset({"question_mark"})
"""Most fields take it as text: help has the other key here, whatever field has the focus."""
STATE_FORMAT = frozenset({"offload.state_format"})


class ConfigureScreen(LookingScreen):
    """The form of the preset at `path`. `sources`: where plans get their facts; this machine where none are given."""

    TITLE = "Configure"
    AUTO_FOCUS = ""
    # Textual declares these two as an instance's.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (130, "-widest")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (22, "-high")]  # noqa: RUF012
    CSS = """
    ConfigureScreen #title { height: 1; color: $text; background: $panel; padding: 0 1; }
    ConfigureScreen #above { height: auto; max-height: 3; color: $error; padding: 0 1; display: none; }
    ConfigureScreen #above.-some { display: block; }
    ConfigureScreen #body { height: 1fr; layout: horizontal; }
    ConfigureScreen #tables { dock: top; height: 1; min-height: 1; border: none; }
    ConfigureScreen #form {
        width: 1fr; height: 1fr; border: round $foreground 30%; border-title-color: $foreground;
    }
    ConfigureScreen #side { width: 40%; max-width: 70; height: 1fr; }
    ConfigureScreen #side Panel { border: round $foreground 30%; padding: 0 1; }
    ConfigureScreen #meter { height: 1fr; }
    ConfigureScreen #help { height: 9; }

    ConfigureScreen.-widest #tables { dock: left; width: 22; height: 1fr; border: round $foreground 30%; }
    ConfigureScreen.-widest #tables:focus { border: round $accent; }

    ConfigureScreen.-narrow #body { layout: vertical; }
    ConfigureScreen.-narrow #form { border: none; }
    ConfigureScreen.-narrow #side { width: 1fr; max-width: 100%; height: auto; }
    ConfigureScreen.-narrow #side Panel { border: none; min-height: 1; }
    ConfigureScreen.-narrow #help { height: 2; background: $panel; }
    ConfigureScreen.-narrow #meter { height: 2; }
    ConfigureScreen.-narrow.-high #help { height: 3; }
    ConfigureScreen.-narrow.-high #meter { height: 4; }

    ConfigureScreen.-ascii #form, ConfigureScreen.-ascii #side Panel { border: ascii $foreground 30%; }
    ConfigureScreen.-ascii.-widest #tables { border: ascii $foreground 30%; }
    ConfigureScreen.-ascii.-narrow #form, ConfigureScreen.-ascii.-narrow #side Panel { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="form.leave"),
        Binding("f5", "start", "Start", id="form.start"),
        Binding("ctrl+s", "save", "Save", id="form.save"),
        Binding("f6", "make_it_fit", "Make it fit", id="form.fit"),
        Binding("ctrl+r", "reset", "Reset", id="form.reset"),
        Binding("f4", "edit", "Editor", id="form.edit"),
        Binding("f3", "measure", "Measure", id="form.measure"),
        Binding("f8", "drop_unknown", "Drop unknown", id="form.drop_unknown"),
        Binding(
            "pageup", "step_table(-1)", "Previous table", id="form.previous_table", show=False, priority=True
        ),
        Binding("pagedown", "step_table(1)", "Next table", id="form.next_table", show=False, priority=True),
        Binding("up", "step_field(-1)", "Previous field", id="form.previous_field", show=False),
        Binding("down,enter", "step_field(1)", "Next field", id="form.next_field", show=False),
    ]
    stale_after_s = 5.0
    """What is free is asked anew when the screen comes back after so long."""

    def __init__(self, context: AppContext, path: Path, sources: Sources | None = None) -> None:
        super().__init__(context, path, sources or Here(context.runs_root))
        self._looked_at = context.clock()
        self._title_text = ""
        self._newest: Outlook | None = None
        self._has_unknown = False
        """Whether the draft has keys that no configuration has."""

    def compose(self) -> ComposeResult:
        glyphs = self.context.glyphs
        yield Static("", id="title")
        yield Static("", id="above")
        with Container(id="body"):
            yield TableList(TABLE_NAMES, glyphs, id="tables")
            yield FormTables(self.draft, glyphs, id="form")
            with Vertical(id="side"):
                yield FieldHelp(glyphs, id="help")
                yield FitMeter(glyphs, id="meter")
        yield KeyLine(glyphs, unless=TYPED)

    async def on_mount(self) -> None:
        await self._show_table(TABLE_NAMES[0])
        self._update()

    def on_screen_resume(self) -> None:
        if self.context.clock() - self._looked_at > self.stale_after_s:
            self._looked_at = self.context.clock()
            self.plan_anew()
            self.look_around()

    # Tables and fields

    @on(TableList.Picked)
    async def _picked(self, event: TableList.Picked) -> None:
        event.stop()
        await self._show_table(event.table)

    async def _show_table(self, table: str) -> None:
        form = self.query_one(FormTables)
        form.display = not self.draft.unreadable
        if self.draft.unreadable:
            return
        await form.show(table)
        form.border_title = Content(f"[{table}]")
        self._say_at_fields()
        if not self.query_one(TableList).has_focus:
            form.focus_first()

    def action_step_table(self, by: int) -> None:
        self.query_one(TableList).action_step(by)

    def action_step_field(self, by: int) -> None:
        if not self.query_one(FormTables).step(by) and by < 0:
            self.query_one(TableList).focus()

    async def go_to(self, field: str) -> None:
        """Show a field and give it the focus."""
        tables = self.query_one(TableList)
        tables.chosen = table_of(field)
        tables.changed()
        await self._show_table(table_of(field))
        row = self.query_one(FormTables).row(field)
        if row is not None:
            row.control.focus()

    @property
    def focused_field(self) -> str:
        """The dotted name of the field that has the focus; empty where none has."""
        if self.focused is None:
            return ""
        rows = (node for node in self.focused.ancestors_with_self if isinstance(node, FieldRow))
        return next((row.field.name for row in rows), "")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._help(remarks(self.draft, self._newest, self.around).problems)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "drop_unknown":
            return self._has_unknown
        return not (self.context.read_only and action in _CHANGING)

    # From a key to a plan

    @on(FieldRow.Typed)
    def _typed(self, event: FieldRow.Typed) -> None:
        event.stop()
        self.draft.type(event.field, event.text)
        self._update()

    def _update(self) -> None:
        """Show what the draft has become, plan it, and look for what it names."""
        self.plan_it()
        self.look_around()
        self._say_at_fields()

    # What is shown

    def _say_at_fields(self) -> None:
        """Problems and notes at their fields, the rest above the form, and counts in the list of tables."""
        if self.outlook is not None:
            self._newest = self.outlook  # until the next one it stays, so that rows do not jump at each key
        said = remarks(self.draft, self._newest, self.around)
        for row in self.query_one(FormTables).rows:
            name = row.field.name
            row.say(said.problems.get(name, ""), said.notes.get(name, ""), self.draft.is_changed(name))
        self.query_one(TableList).mark(dict(said.marks))
        self._show_title(said.changed, said.wrong)
        has_unknown = any(problem.path[0] and problem.is_unknown for problem in self.draft.check().problems)
        if has_unknown != self._has_unknown:
            self._has_unknown = has_unknown
            self.refresh_bindings()
        above = self.query_one("#above", Static)
        above.set_class(bool(said.above), "-some")
        if said.above:
            glyphs = self.context.glyphs
            above.update(Content("\n".join(clean(words, glyphs) for words in said.above)))
        self._help(said.problems)

    def _show_title(self, changed: int, wrong: int) -> None:
        glyphs = self.context.glyphs
        parts = [self.path.stem]
        parts += [f"{changed} changed"] if changed else []
        parts += [f"{glyphs.bad} {wrong} problem{'s' if wrong > 1 else ''}"] if wrong else []
        title = clean(f" {glyphs.separator} ".join([*parts, self.where]), glyphs)
        if title != self._title_text:
            self._title_text = title
            self.query_one("#title", Static).update(Content(title), layout=False)

    def show_around(self) -> None:
        self._say_at_fields()

    def show_outlook(self) -> None:
        self._say_at_fields()
        outlook = self.outlook
        plan, remark, stale = self.plan, self.said, False
        if self.config is None:
            remark, stale = "not the plan of what stands here: there are problems", True
        elif outlook is not None and outlook.refused:
            plan, remark = None, "cannot be planned here"
        elif outlook is not None and outlook.lacks:
            stale = True
        elif not remark and outlook is not None and self.planning.is_measured(outlook.config) is False:
            remark = "F3 measures this machine"
        self.query_one(FitMeter).show(plan, remark, stale=stale and plan is not None)

    def _help(self, problems: Mapping[str, str]) -> None:
        name = self.focused_field
        self.query_one(FieldHelp).show(FIELDS.get(name), self.draft, problems.get(name, ""))

    # Actions on the draft

    def action_reset(self) -> None:
        """Give the focused field what the preset says."""
        name = self.focused_field
        if name:
            self.draft.reset(name)
            self.draft_changed()

    def action_drop_unknown(self) -> None:
        dropped = self.draft.drop_unknown()
        if dropped:
            self.notify(f"{dropped} dropped: saving or starting leaves them out")
            self.draft_changed()

    def draft_changed(self) -> None:
        self.query_one(FormTables).take(self.draft)
        self._update()

    async def _replace_draft(self, draft: Draft) -> None:
        was_hidden = bool(self.draft.unreadable)
        self.draft = draft
        form = self.query_one(FormTables)
        form.take(draft)
        if was_hidden or draft.unreadable:
            await self._show_table(self.query_one(TableList).chosen)
        self._update()

    async def action_edit(self) -> None:
        """Open the text in $EDITOR, and take back what was saved."""
        before = self.draft.toml()
        try:
            after = edited(self.app, before, f"{self.path.stem}.toml")
        except WorkbenchError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        if after != before:
            preset, _ = read_text(self.path)
            await self._replace_draft(Draft(after, str(self.path), preset=preset))

    # Start

    def action_start(self) -> None:
        """Start a run of what the form says."""
        if not self.is_wrong("started"):
            self._look_and_start()

    @work(group="start", exclusive=True)
    async def _look_and_start(self) -> None:
        """What it names may have come or gone since the form was opened."""
        config = self.config
        if config is None or not await self.all_is_there("started"):
            return
        outlook = self.outlook
        if outlook is None:
            outlook = await asyncio.to_thread(self.planning.look, config)
        if config != self.config:
            return  # it was edited meanwhile
        if outlook.refused:
            self.notify(outlook.refused, severity="error", markup=False)
        elif outlook.plan is not None and not outlook.plan.fits:
            text = f"{verdict_words(outlook.plan.memory)}. F6 looks for what does. Such a run ends at once."
            self.app.push_screen(
                Confirm(
                    "It does not fit",
                    text,
                    "Start anyway",
                    "Cancel",
                    danger=True,
                    glyphs=self.context.glyphs,
                ),
                lambda sure: self._start() if sure else None,
            )
        else:
            self._start()

    def _start(self) -> None:
        self.note_started()
        self.planning.sources.let_go()  # its memory is the run's
        self.post_message(StartRun(self.draft.toml(), self.path.stem))

    def go_to_problem(self, field: str) -> None:
        self.call_later(self.go_to, field)

    # Make it fit

    def action_make_it_fit(self) -> None:
        """Look for the fastest that fits, and offer it."""
        config = self.config
        if config is None:
            self.is_wrong("searched")
        elif self.outlook is None or self.outlook.plan is None:
            self.notify("there is no plan yet to start from", severity="warning")
        else:
            self.search(config)

    def show_found(self, config: RunConfig, found: Fit) -> None:
        def answered(answer: str | None) -> None:
            if answer == "keep":
                self.search(config, STATE_FORMAT)
            elif answer == "apply":
                for change in found.changes:
                    self.draft.set(change.field, change.after)
                self.draft_changed()

        self.app.push_screen(AskFit(found, self.context.glyphs), answered)

    def action_measure(self) -> None:
        """Measure this machine; a second time: leave off."""
        config = self.config
        if config is None:
            self.is_wrong("measured")
        else:
            self.measure(config)
