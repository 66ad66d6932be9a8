"""Help for what is seen: the words of the focused panel, and all keys that hold now.

Invariant: no key is written down here; they are taken from the bindings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Markdown, Static

from workbench.tui.glyphs import BLOCKS, Glyphs
from workbench.tui.panels.panel import clean

HEADINGS = {
    "app": "Everywhere",
    "chart": "Chart",
    "dialog": "Question",
    "form": "Form",
    "lanes": "Lane timeline",
    "list": "List",
    "log": "Log",
    "panel": "Panel",
    "presets": "Presets",
    "run": "Run",
    "runs": "Runs",
    "top": "Monitor",
}
"""The headings by the first word of a binding's id; others stand under their own word."""


class HelpScreen(ModalScreen[None]):
    """Help on `shown` and its focused widget."""

    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        & > VerticalScroll {
            width: 90%;
            max-width: 90;
            height: 90%;
            border: round $accent;
            border-title-style: bold;
            background: $surface;
            padding: 0 1;
        }
        &.-ascii > VerticalScroll { border: ascii $accent; }
        & .heading { text-style: bold; color: $text-accent; margin-top: 1; }
        & Markdown { margin: 0; padding: 0; height: auto; }
        & .-below-words { margin-top: 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q", "close", "Close", id="help.close"),
    ]

    def __init__(self, shown: Screen[object], glyphs: Glyphs) -> None:
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._words = list(_words_about(shown))
        self._keys = keys_of(shown, glyphs)
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "Help"
            box.border_subtitle = "Esc closes"
            for text in self._words:
                yield _Words(text, self._glyphs)
            width = max((len(key) for rows in self._keys.values() for key, _ in rows), default=0)
            for place, (heading, rows) in enumerate(self._keys.items()):
                below_words = place == 0 and bool(self._words)  # which end with a blank line
                classes = "heading -below-words" if below_words else "heading"
                yield Static(heading, classes=classes, markup=False)
                lines = [
                    Content.assemble((f"{key:>{width}}", "bold"), "  ", description)
                    for key, description in rows
                ]
                yield Static(Content("\n").join(lines))

    def action_close(self) -> None:
        self.dismiss()


class _Words(Markdown):
    """A help text, its lists with bullets that the terminal has."""

    def __init__(self, text: str, glyphs: Glyphs) -> None:
        super().__init__("\n".join(clean(line, glyphs) for line in text.splitlines()))
        if glyphs.ascii:
            self.BULLETS = ["* ", "- "]


def keys_of(screen: Screen[object], glyphs: Glyphs = BLOCKS) -> dict[str, list[tuple[str, str]]]:
    """Return the keys that hold on `screen` now as (keys, description), by where they belong; the innermost first."""
    found: dict[str, dict[str, tuple[list[str], str]]] = {}
    for _, binding, enabled, tooltip in screen.active_bindings.values():
        if not enabled or not binding.description or binding.system:
            continue
        part = (binding.id or "app").split(".")[0]
        rows = found.setdefault(HEADINGS.get(part, part.replace("_", " ").capitalize()), {})
        keys, _ = rows.setdefault(binding.action, ([], tooltip or binding.description))
        shown = screen.app.get_key_display(binding)
        if glyphs.ascii and not shown.isascii():
            shown = binding.key
        if shown not in keys:
            keys.append(shown)
    return {
        heading: [(" ".join(keys), description) for keys, description in found[heading].values()]
        for heading in sorted(found, key=HEADINGS["app"].__eq__)
    }


def _words_about(screen: Screen[object]) -> Iterator[str]:
    """Yield the help texts of the focused widget and of what it lies in."""
    seen = set()
    for each in screen.focused.ancestors_with_self if screen.focused is not None else [screen]:
        text = getattr(each, "HELP", None)
        if text and text not in seen and each is not screen.app:
            seen.add(text)
            yield text
