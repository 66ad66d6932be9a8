"""Questions that must be answered first: yes or no, one of several, a text, and the text of a file in an editor.

Invariant: Escape and a click beside the box change nothing, and neither does Enter where the answer is dangerous.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual import events
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.config.toml_text import as_written
from workbench.errors import WorkbenchError
from workbench.tui.form.meter import verdict_words
from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.panels.panel import clean

if TYPE_CHECKING:
    from workbench.plan.fit import Fit

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A box with a title and a text in the middle of the screen; a subclass adds its inputs in `compose_inputs`."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        & > Vertical {
            width: 90%;
            max-width: 76;
            height: auto;
            max-height: 100%;
            padding: 0 1;
            border: round $accent;
            border-title-style: bold;
            background: $surface;
        }
        &.-ascii > Vertical { border: ascii $accent; }
        & VerticalScroll { height: auto; max-height: 70vh; }
        & .text { height: auto; }
        & .buttons { width: auto; height: 1; margin-top: 1; }
        & Button { margin-right: 2; min-width: 8; }
        & Button:focus { text-style: bold reverse; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # A dialog hides the application's own keys, and an input takes a question mark as text.
        Binding("f1", "app.help", "Help", id="dialog.help", show=False),
        Binding("escape", "cancel", "Cancel", id="dialog.cancel"),
    ]
    CANCELLED: ClassVar[object] = None
    """The answer of Escape and of a click beside the box."""

    def __init__(self, title: str, text: str = "", *, glyphs: Glyphs = BLOCKS) -> None:
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            if self._text:
                # Long texts scroll with the mouse wheel; the focus goes between the inputs only.
                with VerticalScroll(can_focus=False):
                    yield Static(self._text, markup=False, classes="text")
            yield from self.compose_inputs()

    def compose_inputs(self) -> ComposeResult:
        """Yield the widgets that take the answer."""
        yield from ()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.action_cancel()

    def action_cancel(self) -> None:
        self.dismiss(self.CANCELLED)  # type: ignore[arg-type]


class Confirm(Dialog[bool]):
    """A yes or no question. With `danger` the focus is on no, so that Enter alone changes nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="dialog.yes"),
        Binding("n", "answer(False)", "No", id="dialog.no"),
        Binding("left,up", "app.focus_previous", "Other answer", id="dialog.previous", show=False),
        Binding("right,down", "app.focus_next", "Other answer", id="dialog.next", show=False),
    ]
    CANCELLED = False

    def __init__(
        self,
        title: str,
        text: str,
        yes: str = "Yes",
        no: str = "No",
        *,
        danger: bool = False,
        glyphs: Glyphs = BLOCKS,
    ) -> None:
        super().__init__(title, text, glyphs=glyphs)
        self._yes, self._no, self._danger = yes, no, danger

    def compose_inputs(self) -> ComposeResult:
        with Horizontal(classes="buttons"):
            yes = Button(Content(f"{self._yes} (y)"), id="yes", compact=True)
            yes.variant = "error" if self._danger else "primary"
            yield yes
            yield Button(Content(f"{self._no} (n)"), id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no" if self._danger else "#yes").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Choice(Dialog["str | None"]):
    """A question with several answers; returns the name of one, or None. The key of an answer is its first letter."""

    DEFAULT_CSS = """
    Choice {
        & OptionList { height: auto; max-height: 70vh; padding: 0; background: $surface; }
        & OptionList, & OptionList:focus { border: none; }
        & .text { margin-bottom: 1; }
    }
    """

    def __init__(
        self, title: str, options: Sequence[tuple[str, str]], text: str = "", *, glyphs: Glyphs = BLOCKS
    ) -> None:
        """`options`: (name, label) of each answer, no two with one first letter; `text`: sentences above them."""
        super().__init__(title, text, glyphs=glyphs)
        self._options = tuple(options)

    def compose_inputs(self) -> ComposeResult:
        yield OptionList(*(Option(Content(f"{name[0]} {label}"), id=name) for name, label in self._options))

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)

    def on_key(self, event: events.Key) -> None:
        answer = next((name for name, _ in self._options if event.key == name[0]), None)
        if answer is not None:
            event.stop()
            self.dismiss(answer)


class InputDialog(Dialog[Answer]):
    """Inputs over a line for what is wrong with them; Enter in an input, or the first button, submits."""

    DEFAULT_CSS = """
    InputDialog .problem { color: $error; height: auto; }
    """

    def __init__(self, title: str, text: str = "", *, yes: str = "Save", glyphs: Glyphs = BLOCKS) -> None:
        """`yes`: the first button's words."""
        super().__init__(title, text, glyphs=glyphs)
        self._yes = yes

    def compose_inputs(self) -> ComposeResult:
        yield from self.inputs()
        yield Static("", classes="problem", id="wrong")
        with Horizontal(classes="buttons"):
            yield Button(Content(self._yes), variant="primary", compact=True, id="yes")
            yield Button("Cancel", compact=True, id="no")

    @abstractmethod
    def inputs(self) -> ComposeResult:
        """Yield what is filled in."""

    @abstractmethod
    def submit(self) -> None:
        """Dismiss the dialog with what was filled in, or `refuse` it."""

    def refuse(self, problem: str) -> None:
        """Show a sentence on what is wrong."""
        self.query_one("#wrong", Static).update(Content(problem))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.submit()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "yes":
            self.submit()
        else:
            self.action_cancel()


def one_line(value: str, example: str, name: str | None = None) -> Input:
    """Return an input for one line of text. `example` stands dimmed in an empty one."""
    entry = Input(value, example, compact=True, select_on_focus=False, id=name)
    entry.cursor_blink = False
    return entry


class AskText(InputDialog["str | None"]):
    """A question for a text, such as a name; returns it without blanks around it, or None.

    `find_problem` returns a sentence where a text will not do, else "". `example` stands dimmed in the empty input.
    """

    def __init__(
        self,
        title: str,
        value: str,
        find_problem: Callable[[str], str],
        *,
        yes: str = "Save",
        about: str = "",
        example: str = "",
        glyphs: Glyphs = BLOCKS,
    ) -> None:
        super().__init__(title, about, yes=yes, glyphs=glyphs)
        self._value, self._find_problem, self._example = value, find_problem, example

    def inputs(self) -> ComposeResult:
        yield one_line(self._value, self._example)

    def submit(self) -> None:
        text = self.query_one(Input).value.strip()
        problem = self._find_problem(text)
        self.refuse(problem)
        if not problem:
            self.dismiss(text)


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

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(None if event.button.id == "none" else event.button.id)


def fit_lines(found: Fit) -> list[str]:
    """Return the result of a search as lines of text."""
    if found.fits:
        head = "The fastest that fits changes:" if found.changes else "This is already the fastest that fits."
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


def edit_text(app: App[object], text: str, name: str) -> str:
    """Open `text` as a file `name` in $VISUAL, $EDITOR or vi, and return what was saved. Blocks until the editor ends.

    Raises:
        WorkbenchError: the terminal cannot be lent, there is no such editor, or it failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", newline="")
        try:
            with app.suspend():
                code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
            after = path.read_bytes().decode("utf-8-sig")
        except SuspendNotSupported:
            raise WorkbenchError("an editor cannot run in this terminal") from None
        except (OSError, ValueError) as error:
            raise WorkbenchError(f"{editor}: {error}") from error
    if code:
        raise WorkbenchError(f"{editor} ended with code {code}; its changes were discarded")
    return after
