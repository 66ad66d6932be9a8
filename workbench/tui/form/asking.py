"""The question that only a form asks: whether to take what a search found.

A modal screen that answers with its result, None where it was left by escape.
"""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from workbench.config.toml_text import as_written
from workbench.plan.fit import Fit
from workbench.tui.dialogs import HELP_KEY
from workbench.tui.form.verdict import verdict_words
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import clean

Answer = TypeVar("Answer")


class AskFit(ModalScreen["str | None"]):
    """What a search found, field by field: "apply" it, or "keep" the state's format and search again."""

    DEFAULT_CSS = """
    AskFit { align: center middle; }
    AskFit > Vertical {
        width: 90%; max-width: 90; height: auto; max-height: 95%;
        border: round $accent; background: $surface; padding: 0 1;
    }
    AskFit.-ascii > Vertical { border: ascii $accent; }
    AskFit VerticalScroll { height: auto; max-height: 70vh; }
    AskFit Horizontal { height: 1; align-horizontal: right; margin-top: 1; }
    AskFit Button { margin: 0 0 0 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        HELP_KEY,
        Binding("escape,n", "dismiss(None)", "Cancel", id="ask.cancel"),
        Binding("y", "answer('apply')", "Apply", id="ask.apply"),
        Binding("k", "answer('keep')", "Keep the state's format", id="ask.keep"),
        Binding("left", "app.focus_previous", "Previous", id="dialog.previous", show=False),
        Binding("right", "app.focus_next", "Next", id="dialog.next", show=False),
    ]

    def __init__(self, found: Fit, glyphs: Glyphs) -> None:
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self.found = found
        self.glyphs = glyphs
        self._format_changes = any(change.field == "offload.state_format" for change in found.changes)

    def compose(self) -> ComposeResult:
        changes = self.found.changes
        with Vertical() as box:
            box.border_title = "Make it fit"
            with VerticalScroll(can_focus=False):
                yield Static(Content(clean_lines("\n".join(fit_lines(self.found)), self.glyphs)))
            with Horizontal():
                if changes:
                    word = "Apply" if self.found.fits else "Apply anyway"
                    yield Button(word, variant="primary", compact=True, id="apply")
                if self._format_changes:
                    yield Button("Keep the state's format", compact=True, id="keep")
                yield Button("Cancel" if changes else "Close", compact=True, id="none")

    def action_answer(self, answer: str) -> None:
        if (answer == "apply" and self.found.changes) or (answer == "keep" and self._format_changes):
            self.dismiss(answer)

    @on(Button.Pressed)
    def _answer(self, event: Button.Pressed) -> None:
        self.dismiss(None if event.button.id == "none" else event.button.id)


def fit_lines(found: Fit) -> list[str]:
    """A search's result as sentences."""
    if found.fits and not found.changes:
        lines = ["As it stands this is the fastest that fits."]
    elif found.fits:
        lines = ["The fastest that fits changes:"]
    else:
        lines = [
            "Nothing fits. The nearest changes:"
            if found.changes
            else "Nothing fits, and this is the nearest."
        ]
    for change in found.changes:
        lines.append(f"  {change.field}: {as_written(change.before)} -> {as_written(change.after)}")
        if change.note:
            lines += wrap(change.note, 76, initial_indent="      ", subsequent_indent="      ")
    lines += ["", f"After it: {verdict_words(found.plan.memory)}"]
    if found.plan.time is not None:
        time = found.plan.time
        lines.append(f"A step: {time.step_s:,.3g} s, {time.tokens_per_s:,.0f} tokens a second")
    return [*lines, *("", *found.advice)] if found.advice else lines


def clean_lines(text: str, glyphs: Glyphs) -> str:
    """`clean` line by line."""
    return "\n".join(clean(line, glyphs) for line in text.split("\n"))
