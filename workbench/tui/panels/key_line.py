"""The keys of a screen on one line at its bottom, drawn by hand: a click on one is that key.

Textual's footer is built anew, one widget a key, each time that the focus moves, which a form feels. Invariant: what is
shown are the bindings that hold now, in their order, those without room left out.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.keys import key_to_character
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import clean

HELP = "help"
"""The action that is always shown."""


class KeyLine(Widget):
    """One line of keys. They are taken from the screen's active bindings that are to be shown.

    `unless`: keys that are not shown, another one for the same is: those that text fields take, where most are such.
    """

    DEFAULT_CSS = """
    KeyLine { dock: bottom; height: 1; color: $footer-description-foreground; background: $footer-background; }
    KeyLine > .keys--key { color: $footer-key-foreground; background: $footer-key-background; text-style: bold; }
    KeyLine > .keys--off { color: $footer-description-foreground 40%; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--off"}
    ALLOW_SELECT = False

    def __init__(
        self, glyphs: Glyphs, *, unless: frozenset[str] = frozenset(), id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._unless = unless
        self.glyphs = glyphs
        self._keys: tuple[tuple[str, str, str, bool], ...] = ()
        """(key, as it is shown, what it does, whether it does so now)."""

    def on_mount(self) -> None:
        self._read(self.screen)
        self.screen.bindings_updated_signal.subscribe(self, self._read)

    def _read(self, screen: Screen[object]) -> None:
        if not screen.is_active and self._keys:
            return
        found: dict[str, tuple[str, str, str, bool]] = {}
        focused = screen.focused
        for _, binding, enabled, _ in screen.active_bindings.values():
            # What is typed into a field is no key of the screen's.
            if focused is not None and focused.check_consume_key(binding.key, key_to_character(binding.key)):
                continue
            if binding.show and binding.action not in found and binding.key not in self._unless:
                shown = self.app.get_key_display(binding)
                if self.glyphs.ascii and not shown.isascii():
                    shown = binding.key
                found[binding.action] = binding.key, shown, binding.description, enabled
        palette = screen.active_bindings.get(self.app.COMMAND_PALETTE_BINDING)
        if self.app.ENABLE_COMMAND_PALETTE and palette is not None:
            binding = palette.binding
            shown = clean(self.app.get_key_display(binding), self.glyphs)
            found["palette"] = binding.key, shown, binding.description, palette.enabled
        # Help comes first, so that it is there however many keys there are.
        keys = tuple(found[action] for action in sorted(found, key=lambda action: action != HELP))
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def _spans(self) -> list[tuple[int, int, tuple[str, str, str, bool]]]:
        """(start, end, key) of those that fit."""
        spans, at = [], 0
        for key in self._keys:
            end = at + len(key[1]) + len(key[2]) + 3
            if end > self.size.width + 1:
                continue
            spans.append((at, end, key))
            at = end
        return spans

    def render_line(self, y: int) -> Strip:
        plain = self.rich_style
        bold, off = self.get_component_rich_style("keys--key"), self.get_component_rich_style("keys--off")
        line = []
        for _, _, (_, shown, description, enabled) in self._spans():
            line += [Segment(f" {shown}", bold if enabled else off)]
            line += [Segment(f" {description} ", plain if enabled else off)]
        return Strip(line).adjust_cell_length(self.size.width, plain)

    def on_click(self, event: events.Click) -> None:
        for start, end, (key, _, _, enabled) in self._spans():
            if start <= event.x < end and enabled:
                self.app.simulate_key(key)
