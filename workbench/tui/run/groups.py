"""The groups of panels on the run's screen: as many beside each other as the terminal has room for.

Invariant: a group that was chosen is seen, and every group can be reached by its digit, however small the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from textual import events
from textual.containers import Container, Vertical
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.style import Style
from textual.widget import Widget

from workbench.tui.canvas import CachedLines
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean
from workbench.tui.screens.live_screen import HIGH

Group = Literal["charts", "machine", "lanes", "log", "samples", "events"]
GROUPS: tuple[Group, ...] = ("charts", "machine", "lanes", "log", "samples", "events")
"""The groups of the run's screen, in the order of their digits."""
SIDE: tuple[Group, ...] = ("log", "samples", "events")
"""Of these one is seen at a time, however large the terminal."""
TWO_COLUMNS, THREE_COLUMNS = 120, 160
_LEAST_HEIGHT = 26
_LANES = (10, 14)
"""The lanes' least and greatest height beside others."""


def arrange_groups(width: int, height: int, chosen: Group, side: Group) -> Mapping[Group, Region]:
    """Return the regions of the groups that are seen; `side` is the last chosen of SIDE."""
    if width < TWO_COLUMNS or height < _LEAST_HEIGHT:
        return {chosen: Region(0, 0, width, height)}
    lanes = min(_LANES[1], max(_LANES[0], height // 3))
    if width < THREE_COLUMNS:
        left, machine = width // 2, height * 3 // 5
        return {
            "charts": Region(0, 0, left, height - lanes),
            "lanes": Region(0, height - lanes, left, lanes),
            "machine": Region(left, 0, width - left, machine),
            side: Region(left, machine, width - left, height - machine),
        }
    third = width // 3
    last = width - 2 * third
    return {
        "charts": Region(0, 0, third, height),
        "machine": Region(third, 0, third, height),
        "lanes": Region(2 * third, 0, last, lanes),
        side: Region(2 * third, lanes, last, height - lanes),
    }


class GroupLine(Widget):
    """The groups by their digits, and the run: a click on a name is its digit."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"groups--seen", "groups--hidden"}
    DEFAULT_CSS = """
    GroupLine {
        height: 1;
        & > .groups--seen { text-style: bold; color: $text-accent; }
        & > .groups--hidden { color: $text-muted; }
    }
    """
    ALLOW_SELECT = False

    class Chosen(Message):
        """A group was clicked on."""

        def __init__(self, group: Group) -> None:
            super().__init__()
            self.group = group

    def __init__(self, glyphs: Glyphs, run: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs, self.run = glyphs, run
        self.seen: tuple[Group, ...] = ()

    def show(self, seen: tuple[Group, ...]) -> None:
        """Mark the groups that are seen, by brackets and style."""
        if seen != self.seen:
            self.seen = seen
            self.refresh()

    def render(self) -> Content:
        width = self.content_size.width
        has_room = sum(len(group) + 4 for group in GROUPS) <= width
        seen, hidden = map(self.get_visual_style, ("groups--seen", "groups--hidden"))
        line = Content()
        for digit, group in enumerate(GROUPS, start=1):
            name = f"{digit} {group if has_room else group[:3]}"
            click = Style.from_meta({"group": group})
            if group in self.seen:
                line += Content.styled(f"[{name}]", seen + click)
            else:
                line += Content.styled(f" {name} ", hidden + click)
        room = width - len(line) - 2
        # The name's end tells runs of one preset apart.
        for run in (clean(self.run, self.glyphs), clean(self.run.rpartition("-")[2], self.glyphs)):
            if len(run) <= room:
                return line + Content.styled(f"{run:>{room + 2}}", hidden)
        return line

    def on_click(self, event: events.Click) -> None:
        if group := event.style.meta.get("group"):
            self.post_message(self.Chosen(group))


class PanelGroup(Vertical, CachedLines):
    """Panels above one another."""

    DEFAULT_CSS = "PanelGroup > Panel { height: 1fr; }"


class RunGroups(Container, CachedLines):
    """All groups, each where `arrange_groups` puts it."""

    DEFAULT_CSS = """
    RunGroups > * { position: absolute; }
    """

    def __init__(self, groups: Mapping[Group, Widget], line: GroupLine) -> None:
        super().__init__(*groups.values())
        self.groups, self.line = groups, line
        self.chosen: Group = "charts"
        self.side: Group = "log"
        """The last chosen of the groups that take turns."""
        self.lines_above = 2

    @property
    def seen(self) -> tuple[Group, ...]:
        """The groups that there is room for."""
        return self.line.seen

    def on_resize(self) -> None:
        self._place()

    def choose(self, group: Group) -> None:
        """Show a group, and focus its first panel unless one of its panels has the focus."""
        self.chosen = group
        if group in SIDE:
            self.side = group
        self._place()
        widgets = self.groups[group].walk_children(Widget)
        inside = [each for each in widgets if each.focusable and each.display]
        if inside and not any(each.has_focus for each in inside):
            inside[0].focus()

    def leave_lines(self, lines: int) -> None:
        """Leave so many lines of the screen free above."""
        self.lines_above = lines
        self._place()

    def show_aside(self, group: Group) -> None:
        """Show a group of those that take turns, where there is room for it beside the chosen one."""
        self.side = group
        self._place()

    def _place(self) -> None:
        # The screen's size: this widget's own is known only when it was laid out.
        width, height = self.screen.size
        height = max(1, height - self.lines_above - (2 if height >= HIGH else 1))
        regions = arrange_groups(width, height, self.chosen, self.side)
        for group, widget in self.groups.items():
            region = regions.get(group)
            if region is not None:
                widget.styles.offset = (region.x, region.y)
                widget.styles.width, widget.styles.height = region.width, region.height
            widget.display = region is not None
        self.line.show(tuple(regions))
