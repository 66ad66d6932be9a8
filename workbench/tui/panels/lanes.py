"""The lane timeline of the last step: what each lane did when, and what of it compute waited for."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType

from workbench.runs import Lanes, LaneSpan
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import REVERSED, Line, clean, crop, cut, keep
from workbench.tui.panels.lane_times import LaneSeconds, LaneTrack, StepLanes
from workbench.tui.panels.panel import Panel
from workbench.tui.panels.units import milliseconds

_LABEL = 9
_NUMBER = 9
_SHORTEST_S = 1e-6
"""No zoom goes below this."""

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
    "update": ("▆", "U", "update"),
    "read state": ("█", "R", "disk"),
    "write state": ("█", "W", "disk"),
    "read gradient": ("▓", "g", "disk"),
    "write gradient": ("▓", "G", "disk"),
}
_UNKNOWN = ("▞", "?", "small")
_THIN = ("▏", ":")


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
        self._lanes: StepLanes | None = None
        self._given: Lanes | None = None
        self._window: tuple[float, float] | None = None
        """What is zoomed to, in seconds; None: the whole step."""
        self._cursor_s: float | None = None
        self._pinned = False
        """Whether the cursor was asked for by its key and stays when the pointer leaves."""
        self._lane = 0
        self._lane_of_line: list[int | None] = []
        self._chart = (0, 0)
        """Where the timeline begins in a line and how many cells it has."""

    def show_lanes(self, lanes: Lanes) -> None:
        """Draw this step, as `workbench.runs.read_lanes` gives it."""
        if lanes == self._given:
            return
        self._given = lanes
        self._lanes = StepLanes(lanes)
        if self._window is not None:
            self._set_window(*self._window)
        self.changed()

    @property
    def window(self) -> tuple[float, float]:
        """The seconds of the step that are seen."""
        return self._window or (0.0, self._lanes.duration_s if self._lanes else 0.0)

    @property
    def under_cursor(self) -> LaneSpan | None:
        """The span that the cursor reads."""
        if self._lanes is None or self._cursor_s is None:
            return None
        start, end = self.window
        cell = (end - start) / max(1, self._chart[1])
        return self._track().at(self._cursor_s, cell / 2)

    def heading(self) -> tuple[str, ...]:
        if self._lanes is None or not self._lanes.duration_s:
            return ()
        total, exposed = _short(self._lanes.duration_s), _short(self._lanes.exposed_s)
        step = f"of step {self._lanes.step}"
        return (
            f"{step}{self.separator}{total}{self.separator}exposed {exposed}",
            f"{total}{self.separator}exposed {exposed}",
            total,
        )

    def footing(self) -> str:
        if self._lanes and self._window:
            start, end = self._window
            return f"{milliseconds(start)} to {milliseconds(end)}"
        return ""

    def lines(self, width: int, height: int) -> list[Line]:
        self._lane_of_line = []
        if self._lanes is None:
            return self.note("No step was recorded yet.", width)
        if not self._lanes.duration_s:
            return self.note(clean(self._lanes.problem or "The step has no spans.", self.glyphs), width)
        names = list(self._lanes.tracks)
        self._lane = min(self._lane, len(names) - 1)
        numbers = 3 if width >= 76 else 2 if width >= 56 else 0
        label = _LABEL if width >= 30 else 4
        self._chart = (label, max(1, width - label - numbers * _NUMBER))
        tall = height >= len(names) + 3
        each = max(1, min(3, (height - 4) // len(names))) if tall else 1
        out: list[Line] = []
        if height > len(names):
            self._add(out, None, self._ruler(label, numbers))
        for index, name in enumerate(names):
            line = self._lane_line(index, name, label)
            self._add(out, index, line + self._numbers(name, numbers))
            for _ in range(each - 1):
                self._add(out, index, [*self.write(" " * label), *line[1:]])
        if self._cursor_s is not None:
            self._add(out, None, self._readout(width))
        if tall:
            for line in self._legend(width):
                self._add(out, None, line)
        if not numbers:
            for name in names:
                self._add(out, None, self._seconds_line(name, self._lanes.seconds[name], width))
        return out

    def _add(self, out: list[Line], lane: int | None, line: Line) -> None:
        out.append(line)
        self._lane_of_line.append(lane)

    def _ruler(self, label: int, numbers: int) -> Line:
        """Times at the begin, the middle and the end, the cursor's place, and what the numbers at the right are."""
        start, end = self.window
        cells = [" "] * self._chart[1]
        first, middle, last = (_mark(at, end - start) for at in (start, (start + end) / 2, end))
        at = self._cursor_cell()
        if len(cells) >= 40 and at is None:
            _put(cells, (len(cells) - len(middle)) // 2, middle)
        if len(cells) >= 16:
            _put(cells, len(cells) - len(last), last)
        _put(cells, 0, first[: len(cells)])
        if at is not None:
            cells[at] = self.glyphs.arrow_down
        heads = "".join(f"{head:>{_NUMBER}}" for head in _heads(numbers))
        return [*self.write(" " * label + "".join(cells), "dim"), *self.write(heads, "dim")]

    def _lane_line(self, index: int, name: str, label: int) -> Line:
        assert self._lanes is not None
        chosen = self._cursor_s is not None and index == self._lane
        text = clean(name, self.glyphs)[: label - 1] + (self.glyphs.selected if chosen else "")
        start, end = self.window
        cells = self._lanes.tracks[name].cells(start, end, self._chart[1])
        cursor = self._cursor_cell() if chosen else None
        return [*self.write(f"{text:{label}}", "strong" if chosen else ""), *self._cells(cells, cursor)]

    def _numbers(self, name: str, numbers: int) -> Line:
        """The lane's seconds at the right end; a lane that did nothing has none."""
        assert self._lanes is not None
        seconds = self._lanes.seconds[name]
        if not numbers or not self._lanes.tracks[name].spans:
            return self.write(f"{'-':>{_NUMBER}}" * numbers, "dim") if numbers else []
        values = [seconds.busy_s, seconds.hidden_s, seconds.exposed_s]
        if numbers == 2:
            del values[1]
        busy = self.write("".join(f"{_short(value):>{_NUMBER}}" for value in values[:-1]))
        return [*busy, *self.write(f"{_short(values[-1]):>{_NUMBER}}", self._exposed_pen(name, seconds))]

    def _cells(self, cells: list[tuple[str, float]], cursor: int | None) -> Line:
        """Neighbours of one look in one segment."""
        which = 1 if self.glyphs.ascii else 0
        out: Line = []
        text, style = "", self.pen("")
        for column, (kind, full) in enumerate(cells):
            look = _KINDS.get(kind, _UNKNOWN)
            character = " " if not kind else look[which] if full >= 0.5 else _THIN[which]
            its_style = self.pen(look[2] if kind else "")
            if column == cursor:
                its_style += REVERSED
            if its_style != style and text:
                out.append(Segment(text, style))
                text = ""
            text, style = text + character, its_style
        return [*out, Segment(text, style)]

    def _legend(self, width: int) -> list[Line]:
        assert self._lanes is not None
        which = 1 if self.glyphs.ascii else 0
        entries = []
        for kind in self._lanes.kinds:
            look = _KINDS.get(kind, _UNKNOWN)
            entries.append(
                [*self.write(look[which], look[2]), *self.write(f" {clean(kind, self.glyphs)}", "dim")]
            )
        entries.append(self.write(f"{_THIN[which]} less than half", "dim"))
        return _wrapped(entries, width, self.glyphs)

    def _seconds_line(self, name: str, seconds: LaneSeconds, width: int) -> Line:
        exposed = self.write(f"exposed {_short(seconds.exposed_s)}", self._exposed_pen(name, seconds))
        parts = [
            (0, self.write(f"{cut(clean(name, self.glyphs), _LABEL - 1, self.glyphs):{_LABEL - 1}}")),
            (1, self.write(f"{_short(seconds.busy_s):>7}")),
            (0, exposed),
            (2, self.write(f"hidden {_short(seconds.hidden_s)}", "dim")),
        ]
        return keep(width, parts, " ")

    def _readout(self, width: int) -> Line:
        """Kind, shard, chunk and milliseconds of what the cursor is on."""
        assert self._lanes is not None and self._cursor_s is not None
        name = clean(list(self._lanes.tracks)[self._lane], self.glyphs)
        span = self.under_cursor
        if span is None:
            return crop(self.write(f"{name}: idle at {milliseconds(self._cursor_s)}"), width, self.glyphs)
        place = "" if span.shard < 0 else f"shard {span.shard}"
        if span.chunk >= 0:
            place += f" chunk {span.chunk}"
        parts = [
            (0, self.write(f"{name}: {clean(span.name, self.glyphs)}", "strong")),
            (1, self.write(place)),
            (0, self.write(milliseconds(span.end_s - span.start_s))),
            (2, self.write(f"from {milliseconds(span.start_s)} to {milliseconds(span.end_s)}", "dim")),
        ]
        return keep(width, [part for part in parts if part[1][0].text])

    def _exposed_pen(self, name: str, seconds: LaneSeconds) -> str:
        if name == "compute" or self._lanes is None or not self._lanes.duration_s:
            return "dim"
        cost = seconds.exposed_s / self._lanes.duration_s
        return "good" if cost < 0.05 else "warning" if cost < 0.25 else "bad"

    def _track(self) -> LaneTrack:
        assert self._lanes is not None
        tracks = list(self._lanes.tracks.values())
        return tracks[min(self._lane, len(tracks) - 1)]

    def _cursor_cell(self) -> int | None:
        start, end = self.window
        if self._cursor_s is None or end <= start:
            return None
        cell = int((self._cursor_s - start) / (end - start) * self._chart[1])
        return cell if 0 <= cell < self._chart[1] else None

    # Zoom, pan and cursor.

    def _set_window(self, start: float, end: float) -> None:
        whole = self._lanes.duration_s if self._lanes else 0.0
        length = max(_SHORTEST_S, end - start)
        if length >= whole:
            self._window = None
            return
        start = min(max(0.0, start), whole - length)
        self._window = (start, start + length)

    def zoom_about(self, time_s: float, factor: float) -> None:
        """See `factor` times as much of the step; what is at `time_s` stays where it is."""
        start, end = self.window
        length = max(_SHORTEST_S, factor * (end - start))
        share = (time_s - start) / (end - start) if end > start else 0.5
        self._set_window(time_s - share * length, time_s + (1 - share) * length)
        self.changed()

    def action_zoom(self, factor: float) -> None:
        start, end = self.window
        at = (start + end) / 2 if self._cursor_s is None else self._cursor_s
        self.zoom_about(min(end, max(start, at)), factor)

    def action_pan(self, direction: int) -> None:
        start, end = self.window
        by = direction * (end - start) / 8
        self._set_window(start + by, end + by)
        self.changed()

    def action_move(self, direction: int) -> None:
        if self._cursor_s is None:
            self.action_pan(direction)
            return
        start, end = self.window
        cell = (end - start) / max(1, self._chart[1])
        self._place_cursor(self._cursor_s + direction * cell)

    def action_reset(self) -> None:
        self._window = None
        self.changed()

    def action_cursor(self) -> None:
        self._pinned = not self._pinned
        start, end = self.window
        self._cursor_s = (start + end) / 2 if self._pinned else None
        self.changed()

    def action_jump(self, direction: int) -> None:
        """To the next or the previous span of the lane."""
        if self._lanes is None:
            return
        at = self.under_cursor
        time = self.window[0] if self._cursor_s is None else self._cursor_s
        if at is not None:
            time = at.start_s
        found = self._track().after(time) if direction > 0 else self._track().before(time)
        self._pinned = True
        target = found or at
        self._place_cursor((target.start_s + target.end_s) / 2 if target else time)

    def action_scroll_rows(self, rows: int) -> None:
        if self._cursor_s is None or self._lanes is None:
            super().action_scroll_rows(rows)
            return
        self._lane = min(max(0, self._lane + rows), len(self._lanes.tracks) - 1)
        self.changed()
        if self._lane in self._lane_of_line:
            line = self._lane_of_line.index(self._lane)
            height = self._drawn_size.height
            self.scroll_to_row(min(line, max(self.first_row, line - height + 1)))

    def _place_cursor(self, time_s: float) -> None:
        whole = self._lanes.duration_s if self._lanes else 0.0
        self._cursor_s = time_s = min(max(0.0, time_s), whole)
        start, end = self.window
        if time_s < start:
            self._set_window(time_s, time_s + end - start)
        elif time_s > end:
            self._set_window(time_s - (end - start), time_s)
        self.changed()

    # The mouse.

    def _time_at(self, event: events.MouseEvent) -> float | None:
        """The second of the step under the pointer; None beside the timeline."""
        offset = event.get_content_offset(self)
        first, cells = self._chart
        if offset is None or self._lanes is None or not first <= offset.x < first + cells:
            return None
        start, end = self.window
        return start + (offset.x - first + 0.5) / cells * (end - start)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        time, offset = self._time_at(event), event.get_content_offset(self)
        if time is None or offset is None:
            return
        line = self.first_row + offset.y
        lane = self._lane_of_line[line] if line < len(self._lane_of_line) else None
        if lane is not None:
            self._lane = lane
            self._place_cursor(time)

    def on_leave(self) -> None:
        if not self._pinned and self._cursor_s is not None:
            self._cursor_s = None
            self.changed()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, 0.5)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 2.0)

    def _wheel(self, event: events.MouseEvent, factor: float) -> None:
        time = self._time_at(event)
        if time is not None and (factor < 1 or self._window is not None):
            event.stop()
            self.zoom_about(time, factor)


def _heads(numbers: int) -> tuple[str, ...]:
    return {3: ("busy", "hidden", "exposed"), 2: ("busy", "exposed")}.get(numbers, ())


def _put(cells: list[str], at: int, text: str) -> None:
    cells[at : at + len(text)] = text


def _mark(seconds: float, window: float) -> str:
    """A moment on the ruler, as exact as a window of so many seconds asks for."""
    return f"{seconds:.2f} s" if window >= 1 else milliseconds(seconds)


def _short(seconds: float) -> str:
    """In at most seven characters up to a thousand seconds."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def _wrapped(entries: list[Line], width: int, glyphs: Glyphs) -> list[Line]:
    """All entries, as many a line as fit."""
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
