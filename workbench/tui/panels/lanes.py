"""The lane timeline of the last step: what each lane did when, and what of it compute waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType

from workbench.formatting import milliseconds
from workbench.runs import Lanes, LaneSpan
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.lane_times import LaneSeconds, LaneSight, StepLanes
from workbench.tui.panels.panel import REVERSED, Line, Panel, clean, crop, cut, keep

_LABEL, _LONGEST = 9, 12
_NUMBER = 9

# Kind of work: character, plain character, pen. Kinds that share a lane differ by character.
_KINDS = {
    "forward": ("█", "F", "forward"),
    "backward": ("▓", "B", "backward"),
    "fetch": ("▒", "f", "moves"),
    "download": ("█", "D", "moves"),
    "upload": ("▇", "P", "moves"),
    "accumulate": ("▚", "a", "small"),
    "norm": ("▒", "n", "small"),
    "verdict": ("░", "v", "small"),
    "speculate": ("▅", "s", "update"),
    "update": ("▆", "U", "update"),
    "reduce": ("▓", "S", "moves"),
    "gather": ("▆", "A", "moves"),
    "read state": ("█", "R", "disk"),
    "write state": ("█", "W", "disk"),
    "read gradient": ("▓", "g", "disk"),
    "write gradient": ("▓", "G", "disk"),
}
_UNKNOWN = ("▞", "?", "small")
_THIN = ("▏", ":")


def _label(names: Iterable[str]) -> int:
    """Return the width of the lanes' names: `communicate` is the longest, which a run on one rank has not."""
    return min(_LONGEST, max([_LABEL, *(len(name) + 1 for name in names)]))


def short(seconds: float) -> str:
    """Return seconds in at most seven characters, up to a thousand of them."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def _exposed_pen(name: str, seconds: LaneSeconds, duration_s: float) -> str:
    if name == "compute" or not duration_s:
        return "dim"
    cost = seconds.exposed_s / duration_s
    return "good" if cost < 0.05 else "warning" if cost < 0.25 else "bad"


def _mark(seconds: float, window: float) -> str:
    """Return a moment on the ruler, as exact as a window of so many seconds asks for."""
    return f"{seconds:.2f} s" if window >= 1 else milliseconds(seconds)


def _wrapped(entries: list[Line], width: int, glyphs: Glyphs) -> list[Line]:
    """Return all entries, as many a line as fit."""
    out: list[Line] = []
    used = 0
    for entry in entries:
        size = sum(segment.cell_length for segment in entry)
        if out and used + 2 + size <= width:
            out[-1] = [*out[-1], Segment("  "), *entry]
            used += 2 + size
        else:
            out.append(crop(entry, width, glyphs))
            used = size
    return out


class LanesPanel(Panel):
    TITLE = "Lanes"
    HELP: ClassVar[str | None] = """\
### Lane timeline

One row for each lane of the last step, from its begin to its end. **compute** runs forward and backward; **download**
brings gradients to the host, **update** is the host optimizer (`speculate`: updates ahead of the gradients' norm),
**upload** brings new weights to the GPU, **read** and **write** are the disk's.

- **busy**: seconds in which the lane worked.
- **exposed**: the part of it in which compute was idle: the lane's cost. **hidden**: the rest, which costs
  nothing. Compute itself is never exposed. The title shows the seconds in which any lane was exposed.
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
        self._seconds: tuple[int, float, Mapping[str, LaneSeconds]] | None = None
        """A step, its seconds and those of its lanes, where they are drawn instead of spans."""
        self._sight = LaneSight()
        self._first_cell = 0
        """The cell of a line in which the timeline begins."""
        self._lane_of_line: list[int | None] = []

    def show_lanes(self, lanes: Lanes) -> None:
        """Draw this step, as `workbench.runs.read_lanes` gives it."""
        if lanes == self._given:
            return
        self._given, self._seconds = lanes, None
        self._sight.show(StepLanes(lanes))
        self.changed()

    def show_seconds(self, step: int, step_s: float, seconds: Mapping[str, LaneSeconds]) -> None:
        """Draw the seconds of a step's lanes, whose spans are not known; `show_lanes` ends it."""
        self._given, self._seconds = None, (step, step_s, seconds)
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
        if self._seconds is not None:
            return (f"of step {self._seconds[0]:,}{self.separator}{short(self._seconds[1])}",)
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
        if self._seconds is not None:
            return self._draw_seconds(*self._seconds, width)
        lanes = self._sight.lanes
        if lanes is not None and lanes.duration_s:
            return self._draw_lanes(lanes, width, height)
        self._lane_of_line = []
        if lanes is None:
            return self.note("No step was recorded yet.", width)
        return self.note(clean(lanes.problem or "The step has no spans.", self.glyphs), width)

    def _draw_lanes(self, lanes: StepLanes, width: int, height: int) -> list[Line]:
        """Return a ruler, the lanes, what the cursor reads, a legend and seconds; there may be more than `height`."""
        names = list(lanes.tracks)
        self._sight.choose_lane(self._sight.lane)
        numbers = 3 if width >= 76 else 2 if width >= 56 else 0
        label = self._first_cell = _label(names) if width >= 30 else 4
        self._sight.cells = max(1, width - label - numbers * _NUMBER)
        tall = height >= len(names) + 3
        each = max(1, min(3, (height - 4) // len(names))) if tall else 1
        out: list[tuple[int | None, Line]] = []
        if height > len(names):
            out.append((None, self._ruler(label, numbers)))
        for index, name in enumerate(names):
            line = self._lane_line(lanes, index, name, label)
            out.append((index, line + self._numbers(lanes, name, numbers)))
            for _ in range(each - 1):
                out.append((index, [*self.write(" " * label), *line[1:]]))
        if self._sight.cursor_s is not None:
            out.append((None, self._readout(names[self._sight.lane], self._sight.cursor_s, width)))
        if tall:
            for line in self._legend(lanes, width):
                out.append((None, line))
        if not numbers:
            for name in names:
                out.append((None, self._seconds_line(lanes, name, width)))
        self._lane_of_line = [lane for lane, _ in out]
        return [line for _, line in out]

    def _draw_seconds(
        self, step: int, step_s: float, seconds: Mapping[str, LaneSeconds], width: int
    ) -> list[Line]:
        """Return a bar of each lane's share of the step; when it worked is not known."""
        self._lane_of_line = []
        label = _label(name for name, each in seconds.items() if each.busy_s)
        cells = max(1, width - label - 2 * _NUMBER)
        out = [self.write(" " * (label + cells) + f"{'busy':>{_NUMBER}}{'exposed':>{_NUMBER}}", "dim")]
        full = _KINDS["forward"][self.glyphs.ascii]
        for name, each in seconds.items():
            filled = round(min(1.0, each.busy_s / step_s) * cells) if step_s else 0
            line = self.write(f"{name[: label - 1]:{label}}")
            line += self.write(f"{full * filled:{cells}}", "forward" if name == "compute" else "moves")
            line += self.write(f"{short(each.busy_s):>{_NUMBER}}")
            line += self.write(f"{short(each.exposed_s):>{_NUMBER}}", _exposed_pen(name, each, step_s))
            out.append(crop(line, width, self.glyphs))
        return [*out, self.write("Seconds of the step; spans are kept of the last step only.", "dim")]

    def _ruler(self, label: int, numbers: int) -> Line:
        """Return times at begin, middle and end, the cursor's place, and the headings of the numbers."""
        start, end = self._sight.window
        cells = [" "] * self._sight.cells
        first, middle, last = (_mark(at, end - start) for at in (start, (start + end) / 2, end))
        at = self._sight.cursor_cell
        places = [(0, first[: len(cells)])]
        if len(cells) >= 16:
            places.insert(0, (len(cells) - len(last), last))
        if len(cells) >= 40 and at is None:
            places.insert(0, ((len(cells) - len(middle)) // 2, middle))
        for place, text in places:
            cells[place : place + len(text)] = text
        if at is not None:
            cells[at] = self.glyphs.arrow_down
        names = {3: ("busy", "hidden", "exposed"), 2: ("busy", "exposed")}.get(numbers, ())
        heads = "".join(f"{name:>{_NUMBER}}" for name in names)
        return [*self.write(" " * label + "".join(cells), "dim"), *self.write(heads, "dim")]

    def _lane_line(self, lanes: StepLanes, index: int, name: str, label: int) -> Line:
        sight = self._sight
        chosen = sight.cursor_s is not None and index == sight.lane
        text = clean(name, self.glyphs)[: label - 1] + (self.glyphs.selected if chosen else "")
        start, end = sight.window
        cells = lanes.tracks[name].cells(start, end, sight.cells)
        cursor = sight.cursor_cell if chosen else None
        return [*self.write(f"{text:{label}}", "strong" if chosen else ""), *self._cells(cells, cursor)]

    def _cells(self, cells: list[tuple[str, float]], cursor: int | None) -> Line:
        """Return neighbours of one look in one segment."""
        out: Line = []
        text, style = "", self.pen("")
        for column, (kind, full) in enumerate(cells):
            look = _KINDS.get(kind, _UNKNOWN)
            character = (
                " " if not kind else look[self.glyphs.ascii] if full >= 0.5 else _THIN[self.glyphs.ascii]
            )
            its_style = self.pen(look[2] if kind else "")
            if column == cursor:
                its_style += REVERSED
            if its_style != style and text:
                out.append(Segment(text, style))
                text = ""
            text, style = text + character, its_style
        return [*out, Segment(text, style)]

    def _numbers(self, lanes: StepLanes, name: str, numbers: int) -> Line:
        """Return the lane's seconds at the right end; a lane that did nothing has none."""
        seconds = lanes.seconds[name]
        if not numbers or not lanes.tracks[name].spans:
            return self.write(f"{'-':>{_NUMBER}}" * numbers, "dim") if numbers else []
        values = [seconds.busy_s, seconds.hidden_s, seconds.exposed_s]
        if numbers == 2:
            del values[1]
        busy = self.write("".join(f"{short(value):>{_NUMBER}}" for value in values[:-1]))
        pen = _exposed_pen(name, seconds, lanes.duration_s)
        return [*busy, *self.write(f"{short(values[-1]):>{_NUMBER}}", pen)]

    def _legend(self, lanes: StepLanes, width: int) -> list[Line]:
        entries = []
        for kind in lanes.kinds:
            look = _KINDS.get(kind, _UNKNOWN)
            entries.append(
                [
                    *self.write(look[self.glyphs.ascii], look[2]),
                    *self.write(f" {clean(kind, self.glyphs)}", "dim"),
                ]
            )
        entries.append(self.write(f"{_THIN[self.glyphs.ascii]} shorter than half a cell", "dim"))
        return _wrapped(entries, width, self.glyphs)

    def _seconds_line(self, lanes: StepLanes, name: str, width: int) -> Line:
        seconds = lanes.seconds[name]
        pen = _exposed_pen(name, seconds, lanes.duration_s)
        parts = [
            (0, self.write(f"{cut(clean(name, self.glyphs), _LABEL - 1, self.glyphs):{_LABEL - 1}}")),
            (1, self.write(f"{short(seconds.busy_s):>7}")),
            (0, self.write(f"exposed {short(seconds.exposed_s)}", pen)),
            (2, self.write(f"hidden {short(seconds.hidden_s)}", "dim")),
        ]
        return keep(width, parts, " ")

    def _readout(self, lane: str, cursor_s: float, width: int) -> Line:
        """Return kind, unit, chunk and milliseconds of what the cursor is on."""
        name = clean(lane, self.glyphs)
        span = self._sight.under_cursor
        if span is None:
            return crop(self.write(f"{name}: idle at {milliseconds(cursor_s)}"), width, self.glyphs)
        place = "" if span.unit < 0 else f"unit {span.unit}"
        if span.chunk >= 0:
            place += f" chunk {span.chunk}"
        parts = [
            (0, self.write(f"{name}: {clean(span.name, self.glyphs)}", "strong")),
            (1, self.write(place)),
            (0, self.write(milliseconds(span.end_s - span.start_s))),
            (2, self.write(f"from {milliseconds(span.start_s)} to {milliseconds(span.end_s)}", "dim")),
        ]
        return keep(width, [part for part in parts if part[1][0].text])

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
        if self._sight.lane in self._lane_of_line:
            line = self._lane_of_line.index(self._sight.lane)
            height = self.drawn_size.height
            self.scroll_to_row(min(line, max(self.first_row, line - height + 1)))

    # The mouse.

    def _time_at(self, event: events.MouseEvent) -> float | None:
        """Return the second of the step under the pointer; None beside the timeline."""
        offset = event.get_content_offset(self)
        first, cells = self._first_cell, self._sight.cells
        if offset is None or self._sight.lanes is None or not first <= offset.x < first + cells:
            return None
        start, end = self._sight.window
        return start + (offset.x - first + 0.5) / cells * (end - start)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        time, offset = self._time_at(event), event.get_content_offset(self)
        if time is None or offset is None:
            return
        line = self.first_row + offset.y
        lane = self._lane_of_line[line] if line < len(self._lane_of_line) else None
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
