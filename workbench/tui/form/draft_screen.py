"""A screen that holds a draft of a preset: it saves it, and asks before what was typed is lost.

It knows nothing of rows and meters; `ConfigureScreen` shows the draft. Invariant: neither leaving nor quitting loses a
change without a question; what a run was started with is kept by that run.
"""

from __future__ import annotations

from pathlib import Path

from workbench.config import RunConfig
from workbench.errors import ConfigurationError
from workbench.presets import free_name, is_shipped, overwrite_preset, remember_preset, save_preset
from workbench.tui.context import AppContext
from workbench.tui.dialogs import AskText, Confirm
from workbench.tui.form.checking import FieldProblem
from workbench.tui.form.draft import Draft
from workbench.tui.form.planned_screen import PlannedScreen
from workbench.tui.form.sources import Sources


class DraftScreen(PlannedScreen):
    """`path`: the preset's file. `context`: how to draw, and whether anything may be changed."""

    def __init__(self, context: AppContext, path: Path, sources: Sources) -> None:
        super().__init__(sources, "-ascii" if context.glyphs.ascii else None)
        self.context = context
        self._take_path(path)
        text, unread = read_text(path)
        self.draft = Draft(text, str(path))
        self._saved_text = text
        if unread:
            self.draft.unreadable = unread
        self._started_with = ""
        """The text that a run was started with last; it is kept there."""
        self._asking_to_leave = False

    # What a subclass says

    def draft_changed(self) -> None:
        """The draft is another, or says something else: show it."""
        raise NotImplementedError

    def go_to_problem(self, field: str) -> None:
        """Show the field that a problem is at."""
        raise NotImplementedError

    # What it says

    @property
    def config(self) -> RunConfig | None:
        return self.draft.config

    def _take_path(self, path: Path) -> None:
        self.path = path
        self.where = "comes with workbench" if is_shipped(path) else str(path.parent)
        """Where the preset lies, in words."""

    def is_wrong(self, what: str) -> bool:
        """Whether there are problems, so that it cannot be `what` ("started"); then the first is told and shown."""
        return self.refuses(self.draft.check().problems, what)

    def refuses(self, problems: tuple[FieldProblem, ...], what: str) -> bool:
        """Whether there are `problems`, with the first told and shown."""
        if problems:
            first = problems[0]
            at = f"{first.field}: " if first.field else ""
            self.notify(f"not {what}: {at}{first.words}", severity="error", markup=False)
            if first.field:
                self.go_to_problem(first.field)
        return bool(problems)

    def note_started(self) -> None:
        """A run was started with the draft as it is."""
        self._started_with = self.draft.toml()
        remember_preset(self.path)

    # Save

    def action_save(self) -> None:
        if self.is_wrong("saved"):
            return
        own = self.path.stem if not is_shipped(self.path) else free_name(self.path.stem)
        question = AskText("Save as a preset", own, _wrong_name, glyphs=self.context.glyphs)
        self.app.push_screen(question, self._named)

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
                    self._dangerous("Replace it?", question, "Replace", "Cancel"),
                    lambda sure: self._save(name, replace=True) if sure else None,
                )
                return
            self.notify(str(error), severity="error", markup=False)
            return
        self._take_path(path)
        self.draft = Draft(text, str(path))
        self._saved_text = text
        remember_preset(path)
        self.notify(f"saved: {path}", markup=False)
        self.draft_changed()

    # Leave

    @property
    def unsaved(self) -> str:
        """What would be lost, in words; empty where nothing would."""
        changed, text = len(self.draft.changed), self.draft.toml()
        if (not changed and text == self._saved_text) or text == self._started_with:
            return ""
        what = "the text is" if not changed else "1 field is" if changed == 1 else f"{changed} fields are"
        return f"{what} changed and not saved."

    def action_leave(self) -> None:
        if not self.unsaved:
            self._close()
            return
        self.app.push_screen(
            self._dangerous("Leave the form?", self.unsaved[:1].upper() + self.unsaved[1:], "Leave", "Stay"),
            lambda sure: self._close() if sure else None,
        )

    async def may_quit(self) -> bool:
        """Whether the application may end: asks where something would be lost. For a worker: a dialog is waited for."""
        if self._asking_to_leave or not self.unsaved:
            return not self._asking_to_leave
        self._asking_to_leave = True
        try:
            text = f"In the form of {self.path.stem} {self.unsaved}"
            dialog = self._dangerous("Quit?", text, "Quit", "Stay")
            answer: bool | None = await self.app.push_screen_wait(dialog)
            return bool(answer)
        finally:
            self._asking_to_leave = False

    def _close(self) -> None:
        self.call_off()
        self.dismiss(None)

    def _dangerous(self, title: str, text: str, yes: str, no: str) -> Confirm:
        return Confirm(title, text, yes, no, danger=True, glyphs=self.context.glyphs)


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file, or why it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig"), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path}: cannot be read: {error}"


def _wrong_name(name: str) -> str:
    return "" if name.strip() else "a preset needs a name"
