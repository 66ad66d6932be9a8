"""The form of one preset, the fit meter beside it, and what can be made of it: a run, a preset, one that fits.

State is the draft and the last outlook; rows, meter and help show them. Nothing that takes longer than a keystroke runs
here: plans, censuses, searches and the probe are worked out in threads, which post what they found.

Invariant: a run is only started from a draft without problems.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Static
from textual.worker import get_current_worker

from workbench.config import RunConfig
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.plan.fit import Fit
from workbench.plan.planner import Plan
from workbench.presets import free_name, is_shipped, overwrite_preset, remember_preset, save_preset
from workbench.tui.dialogs import Confirm
from workbench.tui.form.asking import AskFit, AskName
from workbench.tui.form.draft import FIELDS, Draft
from workbench.tui.form.errand import CalledOffError, Errand
from workbench.tui.form.field_help import FieldHelp
from workbench.tui.form.field_row import FieldRow
from workbench.tui.form.meter import FitMeter
from workbench.tui.form.planning import Outlook, Planning, verdict_words
from workbench.tui.form.sources import Here, Sources
from workbench.tui.form.table_list import TableList
from workbench.tui.form.tables import TABLE_NAMES, FormTables, table_of
from workbench.tui.messages import StartRun
from workbench.tui.panels.drawing import clean
from workbench.tui.surroundings import Surroundings

STATE_FORMAT = frozenset({"offload.state_format"})


class ConfigureScreen(Screen[None]):
    """The form of the preset at `path`. `sources`: where plans get their facts; this machine where none are given."""

    TITLE = "Configure"
    AUTO_FOCUS = ""
    # Textual declares these two as an instance's.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (130, "-widest")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (22, "-high")]  # noqa: RUF012
    CSS = """
    ConfigureScreen #title { height: 1; color: $text; background: $panel; padding: 0 1; }
    ConfigureScreen #wrong { height: auto; max-height: 3; color: $error; padding: 0 1; display: none; }
    ConfigureScreen #wrong.-some { display: block; }
    ConfigureScreen #body { height: 1fr; layout: horizontal; }
    ConfigureScreen #tables { dock: top; height: 1; min-height: 1; border: none; }
    ConfigureScreen #form { width: 1fr; height: 1fr; border: round $foreground 30%; }
    ConfigureScreen #form:focus-within { border: round $accent; }
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
        Binding("pageup", "step_table(-1)", "Previous table", id="form.previous_table", show=False),
        Binding("pagedown", "step_table(1)", "Next table", id="form.next_table", show=False),
        Binding("up", "step_field(-1)", "Previous field", id="form.previous_field", show=False),
        Binding("down,enter", "step_field(1)", "Next field", id="form.next_field", show=False),
    ]
    census_after_s = 0.4
    """A census is taken when the model has stood still for so long."""
    stale_after_s = 5.0
    """What is free is asked anew when the screen comes back after so long."""

    class Looked(Message):
        """A plan was worked out, or what it lacks is known."""

        def __init__(self, outlook: Outlook) -> None:
            super().__init__()
            self.outlook = outlook

    class Told(Message):
        """What is going on in an errand."""

        def __init__(self, errand: Errand, sentence: str) -> None:
            super().__init__()
            self.errand = errand
            self.sentence = sentence

    class Ended(Message):
        """An errand has ended; `problem` is empty where it went well."""

        def __init__(self, errand: Errand, problem: str = "") -> None:
            super().__init__()
            self.errand = errand
            self.problem = problem

    class Found(Message):
        """A search has ended."""

        def __init__(self, config: RunConfig, found: Fit | None, problem: str = "") -> None:
            super().__init__()
            self.config = config
            self.found = found
            self.problem = problem

    def __init__(self, surroundings: Surroundings, path: Path, sources: Sources | None = None) -> None:
        super().__init__(classes="-ascii" if surroundings.glyphs.ascii else None)
        self.surroundings = surroundings
        self.path = path
        self.planning = Planning(sources or Here(surroundings.runs_root))
        text, unread = _read(path)
        self.draft = Draft(text, str(path))
        if unread:
            self.draft.unreadable = unread
        self.outlook: Outlook | None = None
        self.plan: Plan | None = None
        """The last one that was worked out, of this configuration or one before it."""
        self._turn = threading.Lock()
        self._errand: Errand | None = None
        self._errand_for: tuple[object, ...] = ()
        self._waiting: Timer | None = None
        self._said = ""
        self._looked_at = surroundings.clock()
        self._title_text = ""

    def compose(self) -> ComposeResult:
        glyphs = self.surroundings.glyphs
        yield Static("", id="title")
        yield Static("", id="wrong")
        with Container(id="body"):
            yield TableList(TABLE_NAMES, glyphs, id="tables")
            yield FormTables(self.draft, glyphs, id="form")
            with Vertical(id="side"):
                yield FieldHelp(glyphs, id="help")
                yield FitMeter(glyphs, id="meter")
        yield Footer()

    async def on_mount(self) -> None:
        self.query_one("#form").border_title = "model"
        await self._show_table(TABLE_NAMES[0])
        self._update()

    def on_unmount(self) -> None:
        self._call_off()

    def on_screen_resume(self) -> None:
        if self.surroundings.clock() - self._looked_at > self.stale_after_s:
            self._look_anew()

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
        in_list = self.query_one(TableList).has_focus
        await form.show(table)
        form.border_title = f"[{table}]".replace("[", r"\[")
        self._say_at_fields()
        if not in_list:
            form.step(0) if self.focused is None else form.query_one(f"#table-{table}").children[0].children[
                0
            ].focus()

    def action_step_table(self, by: int) -> None:
        self.query_one(TableList).action_step(by)

    def action_step_field(self, by: int) -> None:
        if not self.query_one(FormTables).step(by):
            self.query_one(TableList).focus() if by < 0 else None

    async def _go_to(self, field: str) -> None:
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
        self._help()

    # From a key to a plan

    @on(FieldRow.Typed)
    def _typed(self, event: FieldRow.Typed) -> None:
        event.stop()
        self.draft.type(event.field, event.text)
        self._update()

    def _update(self) -> None:
        """Show what the draft has become, and plan it."""
        config = self.draft.config
        if self._errand is not None and config is not None and self._errand_for != _key(config):
            self._call_off()
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None
        self._say_at_fields()
        if config is None:
            self.outlook = None
            self._show_plan()
        else:
            self._look(config)

    @work(thread=True, exclusive=True, group="plan", exit_on_error=False)
    def _look(self, config: RunConfig) -> None:
        worker = get_current_worker()
        with self._turn:
            if worker.is_cancelled:
                return
            outlook = self.planning.look(config)
        if not worker.is_cancelled:
            self.post_message(self.Looked(outlook))

    @on(Looked)
    def _looked(self, event: Looked) -> None:
        event.stop()
        outlook = event.outlook
        if outlook.config != self.draft.config:
            return
        self.outlook = outlook
        if outlook.plan is not None:
            self.plan = outlook.plan
        if outlook.lacks and self._errand is None:
            self._run_errand(outlook.config, take=False)
        self._say_at_fields()
        self._show_plan()

    # What a plan lacks

    def _run_errand(self, config: RunConfig, *, take: bool) -> None:
        self._errand = errand = Errand()
        self._errand_for = _key(config)
        self._said = "taking the census of the model" if take else "looking at the machine"
        self._obtain(config, errand, take)

    @work(thread=True, group="errand", exit_on_error=False)
    def _obtain(self, config: RunConfig, errand: Errand, take: bool) -> None:
        def tell(sentence: str) -> None:
            self.post_message(self.Told(errand, sentence))

        problem = ""
        try:
            self.planning.obtain(config, tell, errand, take=take)
        except CalledOffError:
            return
        self.post_message(self.Ended(errand, problem))

    @on(Told)
    def _told(self, event: Told) -> None:
        event.stop()
        if event.errand is self._errand:
            self._said = event.sentence
            self._show_plan()

    @on(Ended)
    def _ended(self, event: Ended) -> None:
        event.stop()
        if event.errand is not self._errand:
            return
        self._errand = None
        self._said = ""
        config = self.draft.config
        if event.problem:
            self.notify(event.problem, severity="error")
        if config is None:
            self._show_plan()
            return
        outlook = self.planning.look(config)
        if outlook.lacks:
            self._said = "the census of the model is not known yet"
            self._waiting = self.set_timer(self.census_after_s, lambda: self._run_errand_still(config))
            self.outlook = outlook
            self._show_plan()
        else:
            self._update()

    def _run_errand_still(self, config: RunConfig) -> None:
        """The model has stood still: take its census."""
        if self._errand is None and self.draft.config is not None and _key(self.draft.config) == _key(config):
            self._run_errand(config, take=True)
            self._show_plan()

    def _call_off(self) -> None:
        if self._errand is not None:
            self._errand.call_off()
            self._errand = None
            self._said = ""

    def _look_anew(self) -> None:
        """Ask anew what is free."""
        self._looked_at = self.surroundings.clock()
        self._call_off()
        self.planning.forget_machine()
        self._update()

    # What is shown

    def _say_at_fields(self) -> None:
        """Problems and notes at their fields, and how many there are in each table."""
        problems: dict[str, str] = {}
        found = self.draft.check().problems
        for problem in found:
            problems.setdefault(problem.field, problem.words)
        outlook = self.outlook if self.draft.config is not None else None
        refused = {}
        if outlook is not None and outlook.refused and outlook.at:
            refused[outlook.at] = outlook.refused.removeprefix(outlook.at).lstrip(" :")
        notes = outlook.notes if outlook is not None else {}
        for row in self.query_one(FormTables).rows:
            name = row.field.name
            row.say(
                problems.get(name) or refused.get(name, ""), notes.get(name, ""), self.draft.is_changed(name)
            )
        changed = self.draft.changed
        marks: dict[str, tuple[int, int]] = {}
        for table in TABLE_NAMES:
            wrong = sum(
                problem.table == table or (not problem.table and table == TABLE_NAMES[0]) for problem in found
            )
            wrong += sum(table_of(field) == table for field in refused)
            marks[table] = sum(table_of(field) == table for field in changed), wrong
        self.query_one(TableList).mark(marks)
        self._show_title(len(changed), len(found))
        general = [problem.words for problem in found if not problem.field]
        if outlook is not None and outlook.refused and not outlook.at:
            general.append(outlook.refused)
        if self.draft.unreadable:
            general.append("F4 opens it in an editor")
        elif any(problem.is_unknown for problem in found if not problem.field):
            general.append("F8 drops keys that there are not")
        wrong_line = self.query_one("#wrong", Static)
        wrong_line.set_class(bool(general), "-some")
        if general:
            wrong_line.update(Content("\n".join(clean(words, self.surroundings.glyphs) for words in general)))
        self._help()

    def _show_title(self, changed: int, wrong: int) -> None:
        glyphs = self.surroundings.glyphs
        gap = f" {glyphs.separator} "
        parts = [self.path.stem, "comes with workbench" if is_shipped(self.path) else str(self.path.parent)]
        parts += [f"{changed} changed"] if changed else []
        parts += [f"{glyphs.bad} {wrong} problem{'s' if wrong > 1 else ''}"] if wrong else []
        title = gap.join([parts[0], *parts[2:], parts[1]])
        if title != self._title_text:
            self._title_text = title
            self.query_one("#title", Static).update(Content(clean(title, glyphs)))

    def _show_plan(self) -> None:
        outlook = self.outlook
        remark = self._said
        if self.draft.config is None:
            remark = "no plan while there are problems"
        elif outlook is not None and outlook.refused:
            remark = "cannot be planned here"
        elif not remark and outlook is not None and outlook.plan is not None and outlook.plan.time is None:
            remark = "F3 measures this machine" if self.planning.is_measured(outlook.config) is False else ""
        current = outlook is not None and outlook.plan is not None
        stale = not current and (self.draft.config is None or bool(outlook and outlook.refused))
        self.query_one(FitMeter).show(None if stale else self.plan, remark)

    def _help(self) -> None:
        name = self.focused_field
        problem = next((p.words for p in self.draft.check().problems if p.field == name), "") if name else ""
        self.query_one(FieldHelp).show(FIELDS.get(name), self.draft, problem)

    # Actions on the draft

    def action_reset(self) -> None:
        """Give the focused field what the preset says."""
        name = self.focused_field
        if name:
            self.draft.reset(name)
            self._take_draft()

    def action_drop_unknown(self) -> None:
        dropped = self.draft.drop_unknown()
        if dropped:
            self.notify(f"{dropped} dropped: saving or starting leaves them out")
            self._take_draft()

    def _take_draft(self) -> None:
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
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
            path = Path(folder) / f"{self.path.stem}.toml"
            before = self.draft.toml()
            path.write_text(before, encoding="utf-8", newline="")
            try:
                with self.app.suspend():
                    code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
            except SuspendNotSupported:
                self.notify("this terminal cannot be lent to an editor", severity="warning")
                return
            except (OSError, ValueError) as error:
                self.notify(f"{editor}: cannot be started: {error}", severity="error")
                return
            after, unread = _read(path)
        if code or unread:
            self.notify(unread or f"{editor} ended with code {code}; nothing was taken", severity="warning")
        elif after != before:
            text, _ = _read(self.path)
            await self._replace_draft(Draft(after, str(self.path), preset=text))

    # Save

    def action_save(self) -> None:
        if self._is_wrong("saved"):
            return
        own = self.path.stem if not is_shipped(self.path) else free_name(self.path.stem)
        question = AskName("Save as a preset", own, self.surroundings.glyphs, self._wrong_name)
        self.app.push_screen(question, self._named)

    def _wrong_name(self, name: str) -> str:
        return "" if name.strip() else "a preset needs a name"

    def _named(self, name: str | None) -> None:
        if name is None:
            return
        if name.removesuffix(".toml") == self.path.stem and not is_shipped(self.path):
            self._save(name, replace=True, here=True)
            return
        self._save(name, replace=False)

    def _save(self, name: str, *, replace: bool, here: bool = False) -> None:
        text = self.draft.toml()
        try:
            if here:
                overwrite_preset(self.path, text)
                path = self.path
            else:
                path = save_preset(name, text, replace=replace)
        except ConfigurationError as error:
            if "is there already" in str(error):
                question = f"There is a preset {name} already. Put this one in its place?"
                self.app.push_screen(
                    Confirm(
                        "Replace it?",
                        question,
                        "Replace",
                        "Cancel",
                        danger=True,
                        glyphs=self.surroundings.glyphs,
                    ),
                    lambda sure: self._save(name, replace=True) if sure else None,
                )
                return
            self.notify(str(error), severity="error")
            return
        self.path = path
        self.draft = Draft(text, str(path))
        remember_preset(path)
        self.notify(f"saved: {path}")
        self._take_draft()

    # Start

    def action_start(self) -> None:
        """Start a run of what the form says."""
        if self.surroundings.read_only:
            self.notify("this is a read-only look: nothing is started", severity="warning")
            return
        if self._is_wrong("started"):
            return
        outlook = self.outlook
        if outlook is not None and outlook.refused:
            self.notify(outlook.refused, severity="error")
        elif outlook is not None and outlook.plan is not None and not outlook.plan.fits:
            text = f"{verdict_words(outlook.plan.memory)}. F6 looks for what does. Such a run ends at once."
            self.app.push_screen(
                Confirm(
                    "It does not fit",
                    text,
                    "Start anyway",
                    "Cancel",
                    danger=True,
                    glyphs=self.surroundings.glyphs,
                ),
                lambda sure: self._start() if sure else None,
            )
        else:
            self._start()

    def _start(self) -> None:
        remember_preset(self.path)
        self.post_message(StartRun(self.draft.toml(), self.path.stem))

    def _is_wrong(self, what: str) -> bool:
        """Whether there are problems; then the first is told and shown."""
        problems = self.draft.check().problems
        if problems:
            first = problems[0]
            at = f"{first.field}: " if first.field else ""
            self.notify(f"not {what}: {at}{first.words}", severity="error", markup=False)
            if first.field:
                self.call_later(self._go_to, first.field)
        return bool(problems)

    # Make it fit

    def action_make_it_fit(self) -> None:
        config = self.draft.config
        if config is None:
            self._is_wrong("searched")
        elif self.outlook is None or self.outlook.plan is None:
            self.notify("there is no plan yet to start from", severity="warning")
        else:
            self._search_for(config)

    def _search_for(self, config: RunConfig, keep: frozenset[str] = frozenset()) -> None:
        self._said = "looking for what fits"
        self._show_plan()
        self._search(config, keep)

    @work(thread=True, exclusive=True, group="fit", exit_on_error=False)
    def _search(self, config: RunConfig, keep: frozenset[str]) -> None:
        try:
            found, problem = self.planning.fit(config, keep), ""
        except ConfigurationError as error:
            found, problem = None, str(error)
        if not get_current_worker().is_cancelled:
            self.post_message(self.Found(config, found, problem))

    @on(Found)
    def _found(self, event: Found) -> None:
        event.stop()
        self._said = ""
        self._show_plan()
        found = event.found
        if event.config != self.draft.config:
            return
        if found is None:
            self.notify(event.problem or "there is nothing to search from", severity="warning")
            return

        def answered(answer: str | None) -> None:
            if answer == "keep":
                self._search_for(event.config, STATE_FORMAT)
            elif answer == "apply":
                for change in found.changes:
                    self.draft.set(change.field, change.after)
                self._take_draft()

        self.app.push_screen(AskFit(found, self.surroundings.glyphs), answered)

    # Measure

    def action_measure(self) -> None:
        """Measure this machine, which takes up to a minute; a second time: leave off."""
        config = self.draft.config
        if self._said.startswith("measuring") and self._errand is not None:
            self._call_off()
            self.notify("measuring was called off")
            self._update()
        elif config is None:
            self._is_wrong("measured")
        else:
            self._call_off()
            self._errand = errand = Errand()
            self._errand_for = _key(config)
            self._said = "measuring this machine, up to a minute"
            self._show_plan()
            self._measure(config, errand)

    @work(thread=True, group="errand", exit_on_error=False)
    def _measure(self, config: RunConfig, errand: Errand) -> None:
        def tell(sentence: str) -> None:
            self.post_message(self.Told(errand, f"measuring: {sentence}"))

        problem = ""
        try:
            self.planning.sources.measure(config.train.device, config.offload.disk_path, tell, errand)
        except CalledOffError:
            return
        except (WorkbenchError, OSError) as error:
            problem = str(error)
        self.planning.forget_machine()
        self.post_message(self.Ended(errand, problem))

    # Leave

    def action_leave(self) -> None:
        changed = len(self.draft.changed)
        if not changed:
            self._close()
            return
        text = f"{changed} field{'s are' if changed > 1 else ' is'} changed and not saved."
        self.app.push_screen(
            Confirm("Leave the form?", text, "Leave", "Stay", danger=True, glyphs=self.surroundings.glyphs),
            lambda sure: self._close() if sure else None,
        )

    def _close(self) -> None:
        self._call_off()
        self.dismiss(None)


def _key(config: RunConfig) -> tuple[object, ...]:
    """What an errand is for: another of these calls it off."""
    return config.model.model_dump_json(), config.train.device, config.offload.disk_path


def _read(path: Path) -> tuple[str, str]:
    """The text of a file, or why it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig"), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path}: cannot be read: {error}"
