"""The question whether to apply the changes that a search for a fitting configuration found."""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button

from workbench.config.toml_text import as_written
from workbench.plan.fit import Fit
from workbench.tui.dialogs import Dialog
from workbench.tui.form.meter import verdict_words
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean


class FitDialog(Dialog["str | None"]):
    """Lists what a search found, field by field. Returns "apply", "keep" (search again with the state format kept as
    it is), or None.
    """

    DEFAULT_CSS = """
    FitDialog > Vertical { max-width: 90; max-height: 95%; }
    FitDialog .buttons { width: 100%; align-horizontal: right; }
    FitDialog Button { margin: 0 0 0 1; }
    FitDialog Button:focus { text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "cancel", "Cancel", id="fit.cancel", show=False),
        Binding("y", "answer('apply')", "Apply", id="fit.apply"),
        Binding("k", "answer('keep')", "Keep the state's format", id="fit.keep"),
        Binding("left", "app.focus_previous", "Previous", id="dialog.previous", show=False),
        Binding("right", "app.focus_next", "Next", id="dialog.next", show=False),
    ]

    def __init__(self, found: Fit, glyphs: Glyphs) -> None:
        text = "\n".join(clean(line, glyphs) for line in fit_lines(found))
        super().__init__("Make it fit", text, glyphs=glyphs)
        self.found = found
        self._answers: dict[str, str] = {}
        if found.changes:
            self._answers["apply"] = "Apply" if found.fits else "Apply anyway"
        if any(change.field == "offload.state_format" for change in found.changes):
            self._answers["keep"] = "Keep the state's format"

    def compose_inputs(self) -> ComposeResult:
        with Horizontal(classes="buttons"):
            for name, label in self._answers.items():
                yield Button(label, "primary" if name == "apply" else "default", id=name, compact=True)
            yield Button("Cancel" if self._answers else "Close", id="none", compact=True)

    def action_answer(self, answer: str) -> None:
        if answer in self._answers:
            self.dismiss(answer)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(None if event.button.id == "none" else event.button.id)


def fit_lines(found: Fit) -> list[str]:
    """Return the result of a search as lines of text."""
    if found.fits:
        head = (
            "The fastest that fits changes:"
            if found.changes
            else "As it stands this is the fastest that fits."
        )
    else:
        head = (
            "Nothing fits. The nearest changes:"
            if found.changes
            else "Nothing fits, and this is the nearest."
        )
    lines = [head]
    for change in found.changes:
        lines.append(f"  {change.field}: {as_written(change.before)} -> {as_written(change.after)}")
        lines += wrap(change.note, 76, initial_indent="      ", subsequent_indent="      ")
    lines += ["", f"After it: {verdict_words(found.plan.memory)}"]
    if found.plan.time is not None:
        time = found.plan.time
        lines.append(f"A step: {time.step_s:,.3g} s, {time.tokens_per_s:,.0f} tokens a second")
    return [*lines, "", *found.advice] if found.advice else lines
