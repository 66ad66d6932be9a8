"""The form of one preset with the fit meter beside it, and what can be done with it: start, save, make it fit.

The state is the draft and the newest plan; rows, meter and help show them. Nothing that lasts longer than a key runs
here: `form/live.py` plans and looks at the disk in threads.

Invariants: a run is only started from a draft without problems whose files are all there; neither leaving nor quitting
loses a change without a question.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.plan.fit import Fit
from workbench.plan.machine import Machine
from workbench.presets import free_name, is_shipped, overwrite_preset, remember_preset, save_preset
from workbench.tui.context import AppContext
from workbench.tui.dialogs import AskText, Confirm, FitDialog, edit_text
from workbench.tui.form.choice import Choice, TableTabs
from workbench.tui.form.draft import Draft
from workbench.tui.form.field_row import FieldHelp, FieldRow, Form
from workbench.tui.form.fields import FIELDS, TABLE_NAMES, table_of
from workbench.tui.form.live import LivePlan
from workbench.tui.form.meter import FitMeter, verdict_words
from workbench.tui.form.other_machine import DescribeMachine
from workbench.tui.form.planner import ConfigPlanner, ThisMachine
from workbench.tui.form.problems import (
    FieldProblem,
    FormMessages,
    References,
    check_references,
    form_messages,
)
from workbench.tui.messages import StartRun
from workbench.tui.panels.panel import clean
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.screens.live_screen import Reader, WorkbenchScreen

TYPED_KEYS = frozenset({"question_mark"})
"""Keys that most fields take as text; the key line shows the other key of the same action."""


class ConfigureScreen(WorkbenchScreen):
    """The form of the preset at `path`. `machine`: the facts of plans; this machine where it is not given."""

    TITLE = "Configure"
    CHANGING = ("start", "save", "measure")
    AUTO_FOCUS = ""
    # Textual declares it as an instance's.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (130, "-widest")]  # noqa: RUF012
    CSS = """
    ConfigureScreen #title { height: 1; color: $text; background: $panel; padding: 0 1; }
    ConfigureScreen #above { height: auto; max-height: 3; color: $error; padding: 0 1; display: none; }
    ConfigureScreen #above.-some { display: block; }
    ConfigureScreen #tables { dock: top; height: 1; min-height: 1; border: none; }
    ConfigureScreen #form {
        width: 1fr; height: 1fr; border: round $foreground 30%; border-title-color: $foreground;
    }

    ConfigureScreen.-widest #tables { dock: left; width: 22; height: 1fr; border: round $foreground 30%; }
    ConfigureScreen.-widest #tables:focus { border: round $accent; border-title-style: reverse; }

    ConfigureScreen.-narrow #form { border: none; }

    ConfigureScreen.-ascii #form { border: ascii $foreground 30%; }
    ConfigureScreen.-ascii.-widest #tables { border: ascii $foreground 30%; }
    ConfigureScreen.-ascii.-widest #tables:focus { border: ascii $accent; }
    ConfigureScreen.-ascii.-narrow #form { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="form.leave"),
        Binding("f5", "start", "Start", id="form.start"),
        Binding("ctrl+s", "save", "Save", id="form.save"),
        Binding("f6", "make_it_fit", "Make it fit", id="form.fit"),
        Binding("ctrl+r", "reset", "Reset", id="form.reset"),
        Binding("f4", "edit", "Editor", id="form.edit"),
        Binding("f3", "measure", "Measure", id="form.measure"),
        Binding("f7", "other_machine", "Other machine", id="form.other_machine"),
        Binding("f8", "drop_unknown", "Drop unknown", id="form.drop_unknown"),
        Binding(
            "pageup", "step_table(-1)", "Previous table", id="form.previous_table", show=False, priority=True
        ),
        Binding("pagedown", "step_table(1)", "Next table", id="form.next_table", show=False, priority=True),
        Binding("up", "step_field(-1)", "Previous field", id="form.previous_field", show=False),
        Binding("down,enter", "step_field(1)", "Next field", id="form.next_field", show=False),
    ]
    stale_after_s = 5.0
    """Free memory is asked for again when the screen comes back after so long."""
    ready_after_s = 1.0
    """The process that takes model profiles is started so long after the first picture, which must not wait for it."""

    def __init__(self, context: AppContext, path: Path, machine: ThisMachine | None = None) -> None:
        super().__init__(context)
        self.machine = machine or ThisMachine(context.runs_root)
        self.path = path
        text, error = read_text(path)
        self.draft = Draft(text, str(path))
        self.draft.unreadable = error or self.draft.unreadable
        self.live = LivePlan(self, ConfigPlanner(self.machine), self._show_plan)
        self.references = References()
        """The files, packages and architectures that are missing, looked for last, perhaps before one key."""
        self._reference_reader = Reader(self, check_references, self._take_references)
        self._messages: FormMessages | None = None
        self._saved_text = text
        self._started_text = ""
        """The text of the run that was started last, which is kept there."""
        self._looked_at = context.clock()

    def compose(self) -> ComposeResult:
        glyphs = self.context.glyphs
        yield Static("", id="title")
        yield Static("", id="above")
        with Container(id="body"):
            yield TableTabs(TABLE_NAMES, glyphs, id="tables")
            yield Form(self.draft, glyphs, id="form")
            with Vertical(id="side"):
                yield FieldHelp(glyphs, id="help")
                yield FitMeter(glyphs, id="meter")
        yield KeyLine(glyphs, unless=TYPED_KEYS)

    async def on_mount(self) -> None:
        self.set_timer(self.ready_after_s, self.machine.start_profiler)
        await self._show_table(TABLE_NAMES[0])
        self._update()

    def on_screen_resume(self) -> None:
        if self.context.clock() - self._looked_at > self.stale_after_s:
            self._looked_at = self.context.clock()
            self.live.update_machine()
            self._reference_reader.read(self.draft.values())

    def on_unmount(self) -> None:
        self.release_memory()

    def release_memory(self) -> None:
        """End the process that takes model profiles; the next one starts it again."""
        self.machine.stop_profiler()

    # Tables and fields

    @property
    def tables(self) -> TableTabs:
        return self.query_one(TableTabs)

    @property
    def form(self) -> Form:
        return self.query_one(Form)

    @on(Choice.Changed, "#tables")
    async def _table_chosen(self, event: Choice.Changed) -> None:
        event.stop()
        await self._show_table(event.value)

    async def _show_table(self, table: str) -> None:
        self.form.display = not self.draft.unreadable
        if self.draft.unreadable:
            return
        await self.form.show_table(table)
        self._show_messages()
        if not self.tables.has_focus:
            self.form.focus_first()

    def action_step_table(self, by: int) -> None:
        self.tables.action_step(by)

    def action_step_field(self, by: int) -> None:
        if not self.form.step(by) and by < 0:
            self.tables.focus()

    async def go_to(self, field: str) -> None:
        """Show a field and give it the focus."""
        self.tables.set_reactive(TableTabs.value, table_of(field))
        self.tables.refresh()
        await self.form.go_to(field)
        self._show_messages()

    @property
    def focused_field(self) -> str:
        """The dotted name of the field that has the focus; empty where none has."""
        row = self.focused.parent if self.focused is not None else None
        return row.field.name if isinstance(row, FieldRow) else ""

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._show_help()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "drop_unknown":
            return self.draft.has_unknown
        return super().check_action(action, parameters)

    # From a key to the picture

    @on(FieldRow.Changed)
    def _field_changed(self, event: FieldRow.Changed) -> None:
        event.stop()
        self.draft.type(event.field, event.text)
        self._update()

    def _update(self) -> None:
        """Show the messages of the draft, plan it, and look for the files that it names."""
        self._show_messages()
        self.live.update(self.draft.config)
        self._reference_reader.read(self.draft.values())

    def _show_draft(self, draft: Draft) -> None:
        """Show another draft, or this one after it was changed elsewhere than in its inputs."""
        self.draft = draft
        self.form.show_draft(draft)
        self._update()

    def _show_messages(self) -> None:
        # The newest result stays until there is another, so that rows do not jump at each key.
        messages = form_messages(self.draft, self.live.newest, self.references)
        self.form.show_messages(messages)
        if messages == self._messages:
            return
        before, self._messages = self._messages, messages
        self.tables.show_counts(messages.counts)
        self._show_title(messages)
        if before is None or messages.above != before.above:  # it has a line that needs a layout
            above = self.query_one("#above", Static)
            above.set_class(bool(messages.above), "-some")
            above.update(Content("\n".join(clean(words, self.context.glyphs) for words in messages.above)))
            self.refresh_bindings()
        self._show_help()

    def _take_references(self, found: References) -> None:
        if found != self.references:
            self.references = found
            self._show_messages()

    def _show_title(self, messages: FormMessages) -> None:
        glyphs = self.context.glyphs
        parts = [self.path.stem]
        parts += [f"{messages.changed} changed"] if messages.changed else []
        if messages.wrong:
            parts.append(f"{glyphs.bad} {messages.wrong} problem{'s' if messages.wrong > 1 else ''}")
        parts.append("shipped with workbench" if is_shipped(self.path) else str(self.path.parent))
        title = clean(f" {glyphs.separator} ".join(parts), glyphs)
        self.query_one("#title", Static).update(Content(title), layout=False)

    def _show_help(self) -> None:
        name = self.focused_field
        problem = self._messages.problems.get(name, "") if self._messages is not None else ""
        self.query_one(FieldHelp).show(FIELDS.get(name), self.draft, problem)

    def _show_plan(self) -> None:
        self._show_messages()
        live, result = self.live, self.live.result
        plan, note, stale = live.plan, live.status, False
        if live.config is None:
            note, stale = "plan of the last valid values: fix the marked fields", True
        elif result is not None and result.refused:
            plan, note = None, "cannot be planned here"
        elif result is not None and result.needs_profile:
            stale = True
        elif not note and live.planner.other is not None:
            note = f"on {_name(live.planner.other)}; F7: this machine"
        elif not note and result is not None and not live.planner.is_measured(result.config):
            note = "F3 measures this machine"
        self.query_one(FitMeter).show(plan, note, stale=stale and plan is not None)

    # Actions on the draft

    def action_reset(self) -> None:
        """Set the focused field to the preset's value."""
        if self.focused_field:
            self.draft.reset(self.focused_field)
            self._show_draft(self.draft)

    def action_drop_unknown(self) -> None:
        dropped = self.draft.drop_unknown()
        self.report(f"{dropped} dropped: they will not be saved or run")
        self._show_draft(self.draft)

    async def action_edit(self) -> None:
        """Open the text in $EDITOR, and take over what was saved."""
        before = self.draft.toml()
        try:
            after = edit_text(self.app, before, f"{self.path.stem}.toml")
        except WorkbenchError as error:
            self.report(str(error), severity="warning")
            return
        if after != before:
            was_hidden = bool(self.draft.unreadable)
            self._show_draft(Draft(after, str(self.path), preset=read_text(self.path)[0]))
            if was_hidden or self.draft.unreadable:
                await self._show_table(self.tables.value)

    # Start

    def action_start(self) -> None:
        """Start a run of the draft."""
        if self.live.planner.other is not None:
            other = _name(self.live.planner.other)
            self.report(f"the plan is for {other}; F7 plans for this machine", severity="warning")
        elif not self._refuse(self.draft.check().problems, "started"):
            self._check_and_start()

    @work(group="start", exclusive=True)
    async def _check_and_start(self) -> None:
        """Files may have come or gone since the form was opened."""
        config, values = self.draft.config, self.draft.values()
        self._take_references(await asyncio.to_thread(check_references, values))
        if (
            config is None
            or self._refuse(self.references.missing, "started")
            or values != self.draft.values()
        ):
            return
        result = self.live.result
        if result is None:
            result = await asyncio.to_thread(self.live.planner.plan, config)
        if config != self.draft.config:
            return  # edited meanwhile
        if result.refused:
            self.report(result.refused, severity="error")
        elif result.plan is not None and not result.plan.fits:
            text = (
                f"{verdict_words(result.plan.memory)}. The run would end at once. F6 searches for what fits."
            )
            self.confirm("It does not fit", text, "Start anyway", "Cancel", self._start)
        else:
            self._start()

    def _start(self) -> None:
        self._started_text = self.draft.toml()
        remember_preset(self.path)
        self.release_memory()
        self.post_message(StartRun(self._started_text, self.path.stem))

    def _refuse(self, problems: tuple[FieldProblem, ...], action: str) -> bool:
        """Return whether there are `problems`; notifies of the first one, that nothing was `action`, and goes there."""
        if problems:
            first = problems[0]
            at = f"{first.field}: " if first.field else ""
            self.report(f"not {action}: {at}{first.words}", severity="error")
            if first.field:
                self.call_later(self.go_to, first.field)
        return bool(problems)

    # Make it fit, measure

    def action_make_it_fit(self) -> None:
        """Search for the fastest configuration that fits, and offer it."""
        if self._refuse(self.draft.check().problems, "searched"):
            return
        if self.live.result is None or self.live.result.plan is None:
            self.report("there is no plan yet to start from", severity="warning")
        else:
            self._search(self.live.result.config)

    @work(group="fit", exclusive=True, exit_on_error=False)
    async def _search(self, config: RunConfig, keep: frozenset[str] = frozenset()) -> None:
        try:
            found = await self.live.search(config, keep)
        except ConfigurationError as error:
            self.report(str(error), severity="warning")
            return
        if found is None:
            return

        def take(answer: str | None, found: Fit = found) -> None:
            if answer == "keep":
                self._search(config, frozenset({"offload.state_format"}))
            elif answer == "apply":
                for change in found.changes:
                    self.draft.set(change.field, change.after)
                self._show_draft(self.draft)

        self.app.push_screen(FitDialog(found, self.context.glyphs), take)

    def action_other_machine(self) -> None:
        """Plan for a machine that is described by its parts; a second time: for this one again."""

        def plan_for(machine: Machine | None) -> None:
            self.live.planner.plan_for(machine)
            self.live.update(self.draft.config)

        if self.live.planner.other is not None:
            plan_for(None)
        else:
            self.app.push_screen(
                DescribeMachine(self.context.glyphs),
                lambda machine: plan_for(machine) if machine is not None else None,
            )

    def action_measure(self) -> None:
        """Measure this machine; a second time: stop it."""
        if self.draft.config is None:
            self._refuse(self.draft.check().problems, "measured")
        elif not self.live.toggle_measuring(self.draft.config):
            self.report("measuring was cancelled")

    # Save

    def action_save(self) -> None:
        if self._refuse(self.draft.check().problems, "saved"):
            return
        name = free_name(self.path.stem) if is_shipped(self.path) else self.path.stem
        dialog = AskText(
            "Save as a preset",
            name,
            lambda name: "" if name else "a preset needs a name",
            glyphs=self.context.glyphs,
        )
        self.app.push_screen(dialog, lambda name: self._save(name) if name is not None else None)

    def _save(self, name: str, *, replace: bool = False) -> None:
        text = self.draft.toml()
        try:
            if name.removesuffix(".toml") == self.path.stem and not is_shipped(self.path):
                overwrite_preset(self.path, text)
                path = self.path
            else:
                path = save_preset(name, text, replace=replace)
        except ConfigurationError as error:
            if "already exists" in str(error):
                question = f"The preset {name} exists. Replace it?"
                self.confirm(
                    "Replace it?", question, "Replace", "Cancel", lambda: self._save(name, replace=True)
                )
            else:
                self.report(str(error), severity="error")
            return
        self.path = path
        self._saved_text = text
        self._messages = None
        remember_preset(path)
        self.report(f"saved: {path}")
        self._show_draft(Draft(text, str(path)))

    # Leave

    @property
    def unsaved(self) -> str:
        """A sentence about the changes that would be lost; empty where none would."""
        changed, text = len(self.draft.changed), self.draft.toml()
        if (not changed and text == self._saved_text) or text == self._started_text:
            return ""
        lost = "the text is" if not changed else "1 field is" if changed == 1 else f"{changed} fields are"
        return f"{lost} changed and not saved."

    def action_leave(self) -> None:
        if self.unsaved:
            text = self.unsaved[:1].upper() + self.unsaved[1:]
            self.confirm("Leave the form?", text, "Leave", "Stay", self._close)
        else:
            self._close()

    def _close(self) -> None:
        self.dismiss(None)

    async def may_quit(self) -> bool:
        """Return whether the application may end; asks where changes would be lost. For a worker: it waits."""
        if not self.unsaved:
            return True
        text = f"In the form of {self.path.stem} {self.unsaved}"
        dialog = Confirm("Quit?", text, "Quit", "Stay", danger=True, glyphs=self.context.glyphs)
        answer: bool | None = await self.app.push_screen_wait(dialog)
        return bool(answer)


def read_text(path: Path) -> tuple[str, str]:
    """Return the text of a file and "", or "" and the error of reading it."""
    try:
        return path.read_bytes().decode("utf-8-sig"), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path}: cannot be read: {error}"


def _name(machine: Machine) -> str:
    """Return a machine's name as it stands within a sentence: of one that is described, "a server with …"."""
    return machine.name[:1].lower() + machine.name[1:] if machine.name.startswith("A ") else machine.name
