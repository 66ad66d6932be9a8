"""The lane timeline of the last step: what each lane did when, and what of it compute waited for.

What is seen is `LaneSight`'s, how it is drawn `LaneLines`'; here are the panel's keys and the mouse.
"""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from workbench.formatting import milliseconds
from workbench.runs import Lanes, LaneSpan
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.lane_timeline.lane_lines import LaneLines, short
from workbench.tui.panels.lane_timeline.lane_sight import LaneSight
from workbench.tui.panels.lane_timeline.lane_times import StepLanes
from workbench.tui.panels.panel import Panel


class LanesPanel(Panel):
    TITLE = "Lanes"
    HELP: ClassVar[str | None] = """\
### Lane timeline

One row for each lane of the last step, from its begin to its end. **compute** runs forward and backward; **download**
brings gradients to the host, **update** is the host optimizer, **upload** brings new weights to the GPU, **read** and
**write** are the disk's.

- **busy**: seconds in which the lane worked.
- **exposed**: of these, the seconds in which compute did *not* work: what the lane cost. **hidden**: the others,
  which cost nothing. Compute itself is never exposed. The title has the seconds in which any lane was exposed.
- A cell shows the kind of work that fills most of it; one that is less than half full is thin.

`+` and `-` zoom, left and right pan, `0` shows all. `c` puts a cursor into the timeline: then left and right move it,
up and down choose the lane, `n` and `b` go to the next and the previous piece of work, and `h` and `l` pan. The mouse
wheel zooms, and the pointer reads.
"""
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"panel--{name}" for name in ("forward", "backward", "moves", "update", "disk", "small")
    }
    DEFAULT_CSS = """
    LanesPanel {
        & > .panel--forward { color: $text-primary; }
        & > .panel--backward { color: $text-accent; }
        & > .panel--moves { color: $text-success; }
        & > .panel--update { color: $foreground; }
        & > .panel--disk { color: $text-secondary; }
        & > .panel--small { color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(0.5)", "Zoom in", id="lanes.zoom_in", show=False),
        Binding("minus", "zoom(2.0)", "Zoom out", id="lanes.zoom_out", show=False),
        Binding("left", "move(-1)", "Left", id="lanes.left", show=False),
        Binding("right", "move(1)", "Right", id="lanes.right", show=False),
        Binding("h", "pan(-1)", "Pan left", id="lanes.pan_left", show=False),
        Binding("l", "pan(1)", "Pan right", id="lanes.pan_right", show=False),
        Binding("0", "reset", "Whole step", id="lanes.reset", show=False),
        Binding("c", "cursor", "Cursor", id="lanes.cursor", show=False),
        Binding("n", "jump(1)", "Next work", id="lanes.next", show=False),
        Binding("b", "jump(-1)", "Previous work", id="lanes.previous", show=False),
    ]

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self._given: Lanes | None = None
        self._sight = LaneSight()
        self._drawing = LaneLines(self._sight, glyphs, self.pen)

    def show_lanes(self, lanes: Lanes) -> None:
        """Draw this step, as `workbench.runs.read_lanes` gives it."""
        if lanes == self._given:
            return
        self._given = lanes
        self._sight.show(StepLanes(lanes))
        self.changed()

    @property
    def window(self) -> tuple[float, float]:
        """The seconds of the step that are seen."""
        return self._sight.window

    @property
    def under_cursor(self) -> LaneSpan | None:
        """The span that the cursor reads."""
        return self._sight.under_cursor

    def heading(self) -> tuple[str, ...]:
        lanes = self._sight.lanes
        if lanes is None or not lanes.duration_s:
            return ()
        total, exposed = short(lanes.duration_s), short(lanes.exposed_s)
        return (
            f"of step {lanes.step}{self.separator}{total}{self.separator}exposed {exposed}",
            f"{total}{self.separator}exposed {exposed}",
            total,
        )

    def footing(self) -> str:
        if self._sight.lanes and self._sight.zoomed:
            start, end = self._sight.zoomed
            return f"{milliseconds(start)} to {milliseconds(end)}"
        return ""

    def lines(self, width: int, height: int) -> list[Line]:
        lanes = self._sight.lanes
        if lanes is not None and lanes.duration_s:
            return self._drawing.draw(lanes, width, height)
        self._drawing.forget()
        if lanes is None:
            return self.note("No step was recorded yet.", width)
        return self.note(clean(lanes.problem or "The step has no spans.", self.glyphs), width)

    # Zoom, pan and cursor.

    def action_zoom(self, factor: float) -> None:
        self._sight.zoom(factor)
        self.changed()

    def action_pan(self, direction: int) -> None:
        self._sight.pan(direction)
        self.changed()

    def action_move(self, direction: int) -> None:
        self._sight.move(direction)
        self.changed()

    def action_reset(self) -> None:
        self._sight.zoomed = None
        self.changed()

    def action_cursor(self) -> None:
        self._sight.toggle_cursor()
        self.changed()

    def action_jump(self, direction: int) -> None:
        self._sight.jump(direction)
        self.changed()

    def action_scroll_rows(self, rows: int) -> None:
        if self._sight.cursor_s is None or self._sight.lanes is None:
            super().action_scroll_rows(rows)
            return
        self._sight.choose_lane(self._sight.lane + rows)
        self.changed()
        lane_of_line = self._drawing.lane_of_line
        if self._sight.lane in lane_of_line:
            line = lane_of_line.index(self._sight.lane)
            height = self.drawn_size.height
            self.scroll_to_row(min(line, max(self.first_row, line - height + 1)))

    # The mouse.

    def _time_at(self, event: events.MouseEvent) -> float | None:
        """The second of the step under the pointer; None beside the timeline."""
        offset = event.get_content_offset(self)
        first, cells = self._drawing.first_cell, self._sight.cells
        if offset is None or self._sight.lanes is None or not first <= offset.x < first + cells:
            return None
        start, end = self._sight.window
        return start + (offset.x - first + 0.5) / cells * (end - start)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        time, offset = self._time_at(event), event.get_content_offset(self)
        if time is None or offset is None:
            return
        line = self.first_row + offset.y
        lane_of_line = self._drawing.lane_of_line
        lane = lane_of_line[line] if line < len(lane_of_line) else None
        if lane is not None:
            self._sight.choose_lane(lane)
            self._sight.place_cursor(time)
            self.changed()

    def on_leave(self) -> None:
        if not self._sight.pinned and self._sight.cursor_s is not None:
            self._sight.cursor_s = None
            self.changed()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, 0.5)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 2.0)

    def _wheel(self, event: events.MouseEvent, factor: float) -> None:
        time = self._time_at(event)
        if time is not None and (factor < 1 or self._sight.zoomed is not None):
            event.stop()
            self._sight.zoom_about(time, factor)
            self.changed()
