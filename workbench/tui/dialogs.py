"""Questions that must be answered first: yes or no, one of several, and a text.

Invariant: Escape and a click beside the box change nothing, and neither does Enter where the answer is dangerous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.tui.glyphs import BLOCKS, Glyphs

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
    """A question with several answers; returns the name of one, or None. The first nine have their digit as key."""

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
        """`options`: (name, label) of each answer; `text`: sentences above them."""
        super().__init__(title, text, glyphs=glyphs)
        self._options = tuple(options)

    def compose_inputs(self) -> ComposeResult:
        yield OptionList(
            *(
                Option(Content(f"{number if number < 10 else ' '} {label}"), id=name)
                for number, (name, label) in enumerate(self._options, start=1)
            )
        )

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)

    def on_key(self, event: events.Key) -> None:
        if event.key.isdecimal() and 1 <= int(event.key) <= len(self._options):
            event.stop()
            self.dismiss(self._options[int(event.key) - 1][0])


class AskText(Dialog["str | None"]):
    """A question for a text, such as a name; returns it without blanks around it, or None.

    `find_problem` returns a sentence where a text will not do, else "". `example` stands dimmed in the empty input.
    """

    DEFAULT_CSS = """
    AskText .problem { color: $error; height: auto; }
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
        super().__init__(title, about, glyphs=glyphs)
        self._value, self._find_problem, self._yes, self._example = value, find_problem, yes, example

    def compose_inputs(self) -> ComposeResult:
        entry = Input(self._value, self._example, compact=True, select_on_focus=False)
        entry.cursor_blink = False
        yield entry
        yield Static("", classes="problem", id="wrong")
        with Horizontal(classes="buttons"):
            yield Button(Content(self._yes), variant="primary", compact=True, id="yes")
            yield Button("Cancel", compact=True, id="no")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._submit()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "yes":
            self._submit()
        else:
            self.action_cancel()

    def _submit(self) -> None:
        text = self.query_one(Input).value.strip()
        problem = self._find_problem(text)
        self.query_one("#wrong", Static).update(Content(problem))
        if not problem:
            self.dismiss(text)
