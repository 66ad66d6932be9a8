"""The lane timeline as lines: ruler, a row a lane, what the cursor reads, legend and seconds. No textual widget.

Invariant: what is drawn follows from the sight, the width and the height alone; of the sight, drawing sets `cells`, and
a lane there is.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style

from workbench.formatting import milliseconds
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import REVERSED, Line, clean, crop, cut, keep
from workbench.tui.panels.lane_timeline.lane_sight import LaneSight
from workbench.tui.panels.lane_timeline.lane_times import LaneSeconds, StepLanes

_LABEL = 9
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
    "update": ("▆", "U", "update"),
    "read state": ("█", "R", "disk"),
    "write state": ("█", "W", "disk"),
    "read gradient": ("▓", "g", "disk"),
    "write gradient": ("▓", "G", "disk"),
}
_UNKNOWN = ("▞", "?", "small")
_THIN = ("▏", ":")


class LaneLines:
    """Draws what `sight` sees. `pen`: the style of each of a panel's component classes."""

    def __init__(self, sight: LaneSight, glyphs: Glyphs, pen: Callable[[str], Style]) -> None:
        self._sight = sight
        self._glyphs = glyphs
        self._pen = pen
        self._look = 1 if glyphs.ascii else 0
        self.first_cell = 0
        """Where the timeline begins in a line."""
        self.lane_of_line: list[int | None] = []

    def draw(self, lanes: StepLanes, width: int, height: int) -> list[Line]:
        """All lines; there may be more than `height`."""
        self.lane_of_line = []
        names = list(lanes.tracks)
        self._sight.choose_lane(self._sight.lane)
        numbers = 3 if width >= 76 else 2 if width >= 56 else 0
        label = self.first_cell = _LABEL if width >= 30 else 4
        self._sight.cells = max(1, width - label - numbers * _NUMBER)
        tall = height >= len(names) + 3
        each = max(1, min(3, (height - 4) // len(names))) if tall else 1
        out: list[Line] = []
        if height > len(names):
            self._add(out, None, self._ruler(label, numbers))
        for index, name in enumerate(names):
            line = self._lane_line(lanes, index, name, label)
            self._add(out, index, line + self._numbers(lanes, name, numbers))
            for _ in range(each - 1):
                self._add(out, index, [*self._write(" " * label), *line[1:]])
        if self._sight.cursor_s is not None:
            self._add(out, None, self._readout(names[self._sight.lane], self._sight.cursor_s, width))
        if tall:
            for line in self._legend(lanes, width):
                self._add(out, None, line)
        if not numbers:
            for name in names:
                self._add(out, None, self._seconds_line(lanes, name, width))
        return out

    def forget(self) -> None:
        """Nothing is drawn by this any more."""
        self.lane_of_line = []

    def _add(self, out: list[Line], lane: int | None, line: Line) -> None:
        out.append(line)
        self.lane_of_line.append(lane)

    def _write(self, text: str, pen: str = "") -> Line:
        return [Segment(text, self._pen(pen))]

    def _ruler(self, label: int, numbers: int) -> Line:
        """Times at the begin, the middle and the end, the cursor's place, and what the numbers at the right are."""
        start, end = self._sight.window
        cells = [" "] * self._sight.cells
        first, middle, last = (_mark(at, end - start) for at in (start, (start + end) / 2, end))
        at = self._sight.cursor_cell
        if len(cells) >= 40 and at is None:
            _put(cells, (len(cells) - len(middle)) // 2, middle)
        if len(cells) >= 16:
            _put(cells, len(cells) - len(last), last)
        _put(cells, 0, first[: len(cells)])
        if at is not None:
            cells[at] = self._glyphs.arrow_down
        heads = "".join(f"{head:>{_NUMBER}}" for head in _heads(numbers))
        return [*self._write(" " * label + "".join(cells), "dim"), *self._write(heads, "dim")]

    def _lane_line(self, lanes: StepLanes, index: int, name: str, label: int) -> Line:
        sight = self._sight
        chosen = sight.cursor_s is not None and index == sight.lane
        text = clean(name, self._glyphs)[: label - 1] + (self._glyphs.selected if chosen else "")
        start, end = sight.window
        cells = lanes.tracks[name].cells(start, end, sight.cells)
        cursor = sight.cursor_cell if chosen else None
        return [*self._write(f"{text:{label}}", "strong" if chosen else ""), *self._cells(cells, cursor)]

    def _cells(self, cells: list[tuple[str, float]], cursor: int | None) -> Line:
        """Neighbours of one look in one segment."""
        out: Line = []
        text, style = "", self._pen("")
        for column, (kind, full) in enumerate(cells):
            look = _KINDS.get(kind, _UNKNOWN)
            character = " " if not kind else look[self._look] if full >= 0.5 else _THIN[self._look]
            its_style = self._pen(look[2] if kind else "")
            if column == cursor:
                its_style += REVERSED
            if its_style != style and text:
                out.append(Segment(text, style))
                text = ""
            text, style = text + character, its_style
        return [*out, Segment(text, style)]

    def _numbers(self, lanes: StepLanes, name: str, numbers: int) -> Line:
        """The lane's seconds at the right end; a lane that did nothing has none."""
        seconds = lanes.seconds[name]
        if not numbers or not lanes.tracks[name].spans:
            return self._write(f"{'-':>{_NUMBER}}" * numbers, "dim") if numbers else []
        values = [seconds.busy_s, seconds.hidden_s, seconds.exposed_s]
        if numbers == 2:
            del values[1]
        busy = self._write("".join(f"{short(value):>{_NUMBER}}" for value in values[:-1]))
        pen = _exposed_pen(name, seconds, lanes.duration_s)
        return [*busy, *self._write(f"{short(values[-1]):>{_NUMBER}}", pen)]

    def _legend(self, lanes: StepLanes, width: int) -> list[Line]:
        entries = []
        for kind in lanes.kinds:
            look = _KINDS.get(kind, _UNKNOWN)
            entries.append(
                [
                    *self._write(look[self._look], look[2]),
                    *self._write(f" {clean(kind, self._glyphs)}", "dim"),
                ]
            )
        entries.append(self._write(f"{_THIN[self._look]} less than half", "dim"))
        return _wrapped(entries, width, self._glyphs)

    def _seconds_line(self, lanes: StepLanes, name: str, width: int) -> Line:
        seconds = lanes.seconds[name]
        pen = _exposed_pen(name, seconds, lanes.duration_s)
        parts = [
            (0, self._write(f"{cut(clean(name, self._glyphs), _LABEL - 1, self._glyphs):{_LABEL - 1}}")),
            (1, self._write(f"{short(seconds.busy_s):>7}")),
            (0, self._write(f"exposed {short(seconds.exposed_s)}", pen)),
            (2, self._write(f"hidden {short(seconds.hidden_s)}", "dim")),
        ]
        return keep(width, parts, " ")

    def _readout(self, lane: str, cursor_s: float, width: int) -> Line:
        """Kind, unit, chunk and milliseconds of what the cursor is on."""
        name = clean(lane, self._glyphs)
        span = self._sight.under_cursor
        if span is None:
            return crop(self._write(f"{name}: idle at {milliseconds(cursor_s)}"), width, self._glyphs)
        place = "" if span.unit < 0 else f"unit {span.unit}"
        if span.chunk >= 0:
            place += f" chunk {span.chunk}"
        parts = [
            (0, self._write(f"{name}: {clean(span.name, self._glyphs)}", "strong")),
            (1, self._write(place)),
            (0, self._write(milliseconds(span.end_s - span.start_s))),
            (2, self._write(f"from {milliseconds(span.start_s)} to {milliseconds(span.end_s)}", "dim")),
        ]
        return keep(width, [part for part in parts if part[1][0].text])


def short(seconds: float) -> str:
    """In at most seven characters up to a thousand seconds."""
    return f"{1000 * seconds:.1f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def _exposed_pen(name: str, seconds: LaneSeconds, duration_s: float) -> str:
    if name == "compute" or not duration_s:
        return "dim"
    cost = seconds.exposed_s / duration_s
    return "good" if cost < 0.05 else "warning" if cost < 0.25 else "bad"


def _heads(numbers: int) -> tuple[str, ...]:
    return {3: ("busy", "hidden", "exposed"), 2: ("busy", "exposed")}.get(numbers, ())


def _put(cells: list[str], at: int, text: str) -> None:
    cells[at : at + len(text)] = text


def _mark(seconds: float, window: float) -> str:
    """A moment on the ruler, as exact as a window of so many seconds asks for."""
    return f"{seconds:.2f} s" if window >= 1 else milliseconds(seconds)


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
