"""The parts of a run's screen and where they stand: as many groups beside each other as there is room for.

It knows no run's files; `RunScreen` fills the parts. Invariant: a group that was chosen is seen, and every group can be
reached by its digit, however small the terminal.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.widget import Widget

from workbench.tui.canvas import CachedLines
from workbench.tui.context import AppContext
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.panels.lane_timeline.lanes import LanesPanel
from workbench.tui.panels.log_view import LogView
from workbench.tui.panels.status_line import StatusLine
from workbench.tui.run.events_panel import EventsPanel
from workbench.tui.run.group_line import GroupLine
from workbench.tui.run.linked_chart import ChartGroup
from workbench.tui.run.machine_group import MachineGroup
from workbench.tui.run.panel_layout import GROUPS, SIDE, Group, arrange_groups
from workbench.tui.run.samples_view import SamplesView
from workbench.tui.run.steering import SteeredScreen
from workbench.tui.run.summary_panel import SummaryPanel

_COMPACT_WIDTH = 80
_NOT_GROUPS = 3
"""Lines of the screen that are no groups: status, their names, keys."""


class _Group(CachedLines, Vertical):
    """Panels above one another."""


class _Groups(CachedLines, Container):
    """All groups."""


class GroupedScreen(CachedLines, SteeredScreen):
    """Charts, machine, lanes, log, samples and events of one run."""

    DEFAULT_CSS = """
    GroupedScreen {
        layout: vertical;
        & #groups { height: 1fr; layout: vertical; overflow: hidden; }
        & #groups > * { position: absolute; }
        & .group > Panel { height: 1fr; }
        & #summary { height: 72%; display: none; }
        & .-maximized { height: 1fr; width: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(digit), f"group('{group}')", group.capitalize(), id=f"run.group_{digit}", show=False)
            for digit, group in enumerate(GROUPS, start=1)
        ),
        Binding("v", "next_chart", "Next chart", id="run.next_chart"),
        Binding("m", "one_alone", "One alone", id="run.one_alone"),
    ]

    def __init__(self, context: AppContext) -> None:
        super().__init__()
        self.context = context
        self.chosen: Group = "charts"
        self.side: Group = "log"
        glyphs = context.glyphs
        self.line = StatusLine(glyphs, id="run-line")
        self.groups_line = GroupLine(glyphs, id="run-groups")
        self.charts = ChartGroup(glyphs, id="charts")
        self.machine = MachineGroup(glyphs, id="machine")
        self.lanes = LanesPanel(glyphs, id="lanes")
        self.log_view = LogView(glyphs, id="log")
        self.samples = SamplesView(glyphs, id="samples")
        self.summary = SummaryPanel(glyphs, id="summary")
        self.events = EventsPanel(glyphs, id="events")
        self._groups: dict[Group, Widget] = {
            "charts": self.charts,
            "machine": self.machine,
            "lanes": _Group(self.lanes, classes="group"),
            "log": _Group(self.log_view, classes="group"),
            "samples": _Group(self.samples, classes="group"),
            "events": _Group(self.summary, self.events, classes="group"),
        }
        self.seen: tuple[Group, ...] = ()
        """The groups that there is room for."""

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.groups_line
        yield _Groups(*self._groups.values(), id="groups")
        yield KeyLine(self.context.glyphs)

    def group_shown(self, group: Group) -> None:
        """A group has come into sight: what was not worth its while before is brought up to date."""
        raise NotImplementedError

    def on_resize(self, event: events.Resize) -> None:
        self.place_groups()

    def place_groups(self) -> None:
        """Show the groups that there is room for."""
        width, height = self.size.width, max(1, self.size.height - _NOT_GROUPS)
        regions = arrange_groups(width, height, self.chosen, self.side)
        self.machine.set_compact(width < _COMPACT_WIDTH)
        for group, widget in self._groups.items():
            region = regions.get(group)
            if region is not None:
                widget.styles.offset = (region.x, region.y)
                widget.styles.width, widget.styles.height = region.width, region.height
            widget.display = region is not None
        self.seen = tuple(regions)
        self.name_groups()

    def name_groups(self) -> None:
        """Say which groups are seen, and of which run."""
        self.groups_line.show(self.seen, self.run.name)

    def focus_group(self, group: Group) -> None:
        """Focus the group's first panel, unless one of its panels has the focus."""
        widget = self._groups[group]
        inside = [each for each in widget.walk_children(Widget) if each.focusable and each.display]
        if inside and not any(each.has_focus for each in inside):
            inside[0].focus()

    def on_group_line_chosen(self, event: GroupLine.Chosen) -> None:
        self.action_group(event.group)

    def action_group(self, group: Group) -> None:
        """Show the group, and focus it."""
        if self.maximized is not None:
            self.minimize()
        self.chosen = group
        if group in SIDE:
            self.side = group
        self.place_groups()
        self.focus_group(group)
        self.group_shown(group)

    def action_next_chart(self) -> None:
        if "charts" not in self.seen:
            self.action_group("charts")
        else:
            self.charts.next_chart()

    def action_one_alone(self) -> None:
        """Show the focused panel alone, or all again."""
        if self.maximized is not None:
            self.minimize()
        elif isinstance(self.focused, Widget):
            self.maximize(self.focused, container=False)
