"""Questions that stand in the way until they are answered: yes or no, one of several, and a text.

Invariant: Escape always leaves everything as it is, and so does Enter where the answer cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.tui.glyphs import BLOCKS, Glyphs

HELP_KEY = Binding("f1", "app.help", "Help", id="dialog.help", show=False)
"""A question stands before the application's own keys, and what is typed into a field is no key."""
_BOX = """
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
"""


class Confirm(ModalScreen[bool]):
    """A yes or no question. True is yes; Escape, and a click beside it, are no.

    With `danger` the focus is on no, so that Enter alone changes nothing.
    """

    DEFAULT_CSS = f"""
    Confirm {{
        {_BOX}
        & .buttons {{ width: auto; height: 1; margin-top: 1; }}
        & Button {{ margin-right: 2; min-width: 8; }}
        & Button:focus {{ text-style: bold reverse; }}
    }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        HELP_KEY,
        Binding("y", "answer(True)", "Yes", id="dialog.yes"),
        Binding("n,escape", "answer(False)", "No", id="dialog.no"),
        Binding("left,up", "app.focus_previous", "Other answer", id="dialog.previous", show=False),
        Binding("right,down", "app.focus_next", "Other answer", id="dialog.next", show=False),
    ]

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
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._title, self._text, self._yes, self._no, self._danger = title, text, yes, no, danger

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            # Long sentences scroll with the mouse wheel; the focus goes between the answers only.
            with VerticalScroll(can_focus=False):
                yield Static(self._text, markup=False, classes="text")
            with Horizontal(classes="buttons"):
                yes = Button(
                    Content(f"{self._yes} (y)"),
                    variant="error" if self._danger else "primary",
                    id="yes",
                    compact=True,
                )
                yield yes
                yield Button(Content(f"{self._no} (n)"), id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no" if self._danger else "#yes").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.dismiss(False)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Choice(ModalScreen[str | None]):
    """One of several answers, each with a name that is given back; None: left by Escape, or by a click beside it.

    The first nine are chosen by their digit, too.
    """

    DEFAULT_CSS = f"""
    Choice {{
        {_BOX}
        & OptionList {{ height: auto; max-height: 70vh; padding: 0; background: $surface; }}
        & OptionList, & OptionList:focus {{ border: none; }}
        & .text {{ margin-bottom: 1; }}
    }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        HELP_KEY,
        Binding("escape", "leave", "Leave", id="dialog.leave"),
    ]

    def __init__(
        self, title: str, options: Sequence[tuple[str, str]], text: str = "", *, glyphs: Glyphs = BLOCKS
    ) -> None:
        """`options`: (name, what is read) for each; `text`: sentences above them."""
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._title, self._options, self._text = title, tuple(options), text

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            if self._text:
                yield Static(self._text, markup=False, classes="text")
            yield OptionList(
                *(
                    Option(Content(f"{place} {label}" if place < 10 else f"  {label}"), id=name)
                    for place, (name, label) in enumerate(self._options, start=1)
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

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)


class AskText(ModalScreen["str | None"]):
    """A text, such as a name; None: left by Escape. `wrong` gives a sentence where one will not do, else nothing.

    `about`: what stands above it. `example`: what stands in it, dimmed, while it is empty.
    """

    DEFAULT_CSS = f"""
    AskText {{
        {_BOX}
        & .problem {{ color: $error; height: auto; }}
        & .buttons {{ width: auto; height: 1; margin-top: 1; }}
        & Button {{ margin-right: 2; min-width: 8; }}
    }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        HELP_KEY,
        Binding("escape", "dismiss(None)", "Cancel", id="dialog.cancel"),
    ]

    def __init__(
        self,
        title: str,
        value: str,
        wrong: Callable[[str], str],
        *,
        yes: str = "Save",
        about: str = "",
        example: str = "",
        glyphs: Glyphs = BLOCKS,
    ) -> None:
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._title, self._value, self._wrong, self._yes = title, value, wrong, yes
        self._about, self._example = about, example

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            if self._about:
                yield Static(self._about, markup=False, classes="text")
            entry = Input(self._value, placeholder=self._example, compact=True, select_on_focus=False)
            entry.cursor_blink = False
            yield entry
            yield Static("", classes="problem", id="wrong")
            with Horizontal(classes="buttons"):
                yield Button(Content(self._yes), variant="primary", compact=True, id="yes")
                yield Button("Cancel", compact=True, id="no")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._take()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "yes":
            self._take()
        else:
            self.dismiss(None)

    def _take(self) -> None:
        text = self.query_one(Input).value.strip()
        wrong = self._wrong(text)
        self.query_one("#wrong", Static).update(Content(wrong))
        if not wrong:
            self.dismiss(text)
