"""One line that names the groups of the run's screen by their digits, and the run: a click on a name is its digit."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.app import RenderResult
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, ends, filled_up, width_of
from workbench.tui.run.panel_layout import GROUPS, Group


class GroupLine(Widget):
    """Groups that are seen stand out by their style and by brackets."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"groups--seen", "groups--hidden", "groups--run"}
    DEFAULT_CSS = """
    GroupLine {
        height: 1;
        & > .groups--seen { text-style: bold; color: $text-accent; }
        & > .groups--hidden { color: $text-muted; }
        & > .groups--run { color: $text-muted; }
    }
    """
    ALLOW_SELECT = False

    class Chosen(Message):
        """A group was clicked on."""

        def __init__(self, group: Group) -> None:
            super().__init__()
            self.group = group

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self._seen: frozenset[Group] = frozenset()
        self._run = ""
        self._places: list[tuple[int, int, Group]] = []

    def show(self, seen: Collection[Group], run: str) -> None:
        """`run`: its name, where there is room at the right end; else the last part of it."""
        if (self._seen, self._run) != (frozenset(seen), run):
            self._seen, self._run = frozenset(seen), run
            self.refresh()

    def render(self) -> RenderResult:
        return ""

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        return filled_up(self.line(width), width, self.glyphs, self.rich_style)

    def line(self, width: int) -> Line:
        """All groups; their names give way to their first letters where there is no room for all."""
        whole = sum(len(group) + 4 for group in GROUPS) <= width
        line: Line = []
        self._places = []
        at = 0
        for digit, group in enumerate(GROUPS, start=1):
            seen = group in self._seen
            name = group if whole else group[:3]
            text = f"[{digit} {name}]" if seen else f" {digit} {name} "
            style = self.get_component_rich_style("groups--seen" if seen else "groups--hidden")
            line.append(Segment(text, style))
            self._places.append((at, at + len(text), group))
            at += len(text)
        room = width - width_of(line) - 2
        # The name's end is what tells runs of one preset apart.
        for run in (clean(self._run, self.glyphs), clean(self._run.rpartition("-")[2], self.glyphs)):
            if len(run) <= room:
                return ends(line, [Segment(run, self.get_component_rich_style("groups--run"))], width)
        return line

    def on_click(self, event: events.Click) -> None:
        for start, end, group in self._places:
            if start <= event.x < end:
                self.post_message(self.Chosen(group))
