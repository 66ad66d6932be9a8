"""One step's lanes: spans in order of time, busy, hidden and exposed seconds, and the part of them that is seen.

A lane's time is *exposed* while it is busy and compute is not, and *hidden* while both are. Invariant: the window lies
within the step, and a cursor that is placed lies within the window.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from workbench.runs import Lanes, LaneSpan

LANES = ("compute", "download", "update", "upload", "read", "write")
Interval = tuple[float, float]
_SHORTEST_S = 1e-6
"""No zoom goes below this."""


@dataclass(frozen=True)
class LaneSeconds:
    """Of one lane in one step; for compute itself all is hidden."""

    busy_s: float = 0.0
    hidden_s: float = 0.0
    exposed_s: float = 0.0


class LaneTrack:
    """The spans of one lane, by their start."""

    def __init__(self, spans: Iterable[LaneSpan]) -> None:
        self.spans = sorted(spans, key=attrgetter("start_s"))
        self._starts = [span.start_s for span in self.spans]
        ends = [span.end_s for span in self.spans]
        self._ends = list(accumulate(ends, max))
        self.busy = _union(zip(self._starts, ends, strict=True))
        self._cells: tuple[tuple[float, float, int], list[tuple[str, float]]] = ((0.0, 0.0, 0), [])

    def between(self, start_s: float, end_s: float) -> list[LaneSpan]:
        """Return the spans that reach into this time."""
        first = bisect_right(self._ends, start_s)
        last = bisect_left(self._starts, end_s)
        return [span for span in self.spans[first:last] if span.end_s > start_s]

    def at(self, time_s: float, within_s: float = 0.0) -> LaneSpan | None:
        """Return the span at this time, else the nearest one not farther away than `within_s`."""
        near = self.between(time_s - within_s - 1e-12, time_s + within_s + 1e-12)
        return min(near, key=lambda span: _distance(span, time_s), default=None)

    def after(self, time_s: float) -> LaneSpan | None:
        """Return the first span that starts later."""
        index = bisect_right(self._starts, time_s)
        return self.spans[index] if index < len(self.spans) else None

    def before(self, time_s: float) -> LaneSpan | None:
        """Return the last span that starts earlier."""
        index = bisect_left(self._starts, time_s)
        return self.spans[index - 1] if index else None

    def cells(self, start_s: float, end_s: float, width: int) -> list[tuple[str, float]]:
        """For each of `width` cells the kind of work that fills most of it ("" for none) and how full it is."""
        if self._cells[0] != (start_s, end_s, width):
            self._cells = ((start_s, end_s, width), self._fill_cells(start_s, end_s, width))
        return self._cells[1]

    def _fill_cells(self, start_s: float, end_s: float, width: int) -> list[tuple[str, float]]:
        if width <= 0 or end_s <= start_s:
            return []
        scale = width / (end_s - start_s)
        covers: dict[str, list[float]] = {}
        for span in self.between(start_s, end_s):
            cover = covers.get(span.name)
            if cover is None:
                cover = covers[span.name] = [0.0] * width
            begin = max(0.0, (span.start_s - start_s) * scale)
            stop = min(float(width), (span.end_s - start_s) * scale)
            first, last = min(int(begin), width - 1), min(int(stop), width - 1)
            if first == last:
                # A span is seen however short it is.
                cover[first] += max(stop - begin, 1e-9)
                continue
            cover[first] += first + 1 - begin
            for cell in range(first + 1, last):
                cover[cell] += 1.0
            cover[last] += stop - last
        if not covers:
            return [("", 0.0)] * width
        names = list(covers)
        out = []
        for column in zip(*covers.values(), strict=True):
            most = max(column)
            out.append((names[column.index(most)], min(1.0, sum(column))) if most > 0 else ("", 0.0))
        return out


class StepLanes:
    """All lanes of one step, those that are not known by name too."""

    def __init__(self, lanes: Lanes) -> None:
        self.step = lanes.step
        self.problem = lanes.problem
        spans: dict[str, list[LaneSpan]] = {name: [] for name in LANES}
        for span in lanes.spans:
            if span.end_s >= span.start_s:
                spans.setdefault(span.lane, []).append(span)
        self.tracks = {name: LaneTrack(found) for name, found in spans.items()}
        self.duration_s = max((interval[-1][1] for interval in self._busy() if interval), default=0.0)
        computing = self.tracks["compute"].busy
        self.seconds = {name: _seconds(track.busy, computing) for name, track in self.tracks.items()}
        # Sorting what is sorted lane by lane takes little more than a comparison each.
        others = _union(
            sorted(i for name, track in self.tracks.items() if name != "compute" for i in track.busy)
        )
        self.exposed_s = _seconds(others, computing).exposed_s
        """Seconds in which any lane was busy and compute was not."""

    @property
    def kinds(self) -> list[str]:
        """The kinds of work in this step, lane by lane."""
        return list(dict.fromkeys(span.name for track in self.tracks.values() for span in track.spans))

    def _busy(self) -> list[list[Interval]]:
        return [track.busy for track in self.tracks.values()]


def _distance(span: LaneSpan, time_s: float) -> float:
    return max(span.start_s - time_s, time_s - span.end_s, 0.0)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same moments as intervals that neither overlap nor touch; both are in order."""
    out: list[Interval] = []
    first, last = 0.0, -math.inf
    for start, end in intervals:
        if start > last:
            if last >= first:
                out.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    if last >= first:
        out.append((first, last))
    return out


def _seconds(busy: Sequence[Interval], computing: Sequence[Interval]) -> LaneSeconds:
    """Return a lane's seconds; both lists are in order and without overlaps."""
    starts = [start for start, _ in busy]
    ends = [end for _, end in busy]
    # Up to each interval, so that what lies in a stretch of computing is looked up and not added up.
    before = [0.0, *accumulate(end - start for start, end in busy)]
    hidden = 0.0
    for start, end in computing:
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if first < last:
            hidden += before[last] - before[first]
            hidden -= max(0.0, start - starts[first]) + max(0.0, ends[last - 1] - end)
    total = before[-1]
    exposed = total - hidden
    # What is left of a difference of sums is no time.
    return LaneSeconds(total, hidden, exposed if exposed > 1e-12 * total else 0.0)


class LaneSight:
    """The place of the cursor in `lanes`, the step that is shown; all times are seconds of that step."""

    def __init__(self) -> None:
        self.lanes: StepLanes | None = None
        self.zoomed: tuple[float, float] | None = None
        """The range that is zoomed to; None: the whole step."""
        self.cursor_s: float | None = None
        self.pinned = False
        """The cursor was asked for by its key, and stays when the pointer leaves."""
        self.lane = 0
        """The number of the chosen lane."""
        self.cells = 0
        """The width of the timeline, in cells, where it is drawn."""

    def show(self, lanes: StepLanes) -> None:
        """Look at this step from now on, where one looked before."""
        self.lanes = lanes
        if self.zoomed is not None:
            self._zoom_to(*self.zoomed)

    @property
    def window(self) -> tuple[float, float]:
        """The seconds that are seen."""
        return self.zoomed or (0.0, self._duration_s)

    @property
    def under_cursor(self) -> LaneSpan | None:
        """The span that the cursor reads."""
        if self.lanes is None or self.cursor_s is None:
            return None
        return self._track().at(self.cursor_s, self._cell_s / 2)

    @property
    def cursor_cell(self) -> int | None:
        """The cell that the cursor is in."""
        start, end = self.window
        if self.cursor_s is None or end <= start:
            return None
        cell = int((self.cursor_s - start) / (end - start) * self.cells)
        return cell if 0 <= cell < self.cells else None

    # Zoom and pan.

    def zoom(self, factor: float) -> None:
        """See `factor` times as much of the step; what the cursor, else the middle, is at stays where it is."""
        start, end = self.window
        at = (start + end) / 2 if self.cursor_s is None else self.cursor_s
        self.zoom_about(min(end, max(start, at)), factor)

    def zoom_about(self, time_s: float, factor: float) -> None:
        """See `factor` times as much of the step; what is at `time_s` stays where it is."""
        start, end = self.window
        length = max(_SHORTEST_S, factor * (end - start))
        share = (time_s - start) / (end - start) if end > start else 0.5
        self._zoom_to(time_s - share * length, time_s + (1 - share) * length)

    def pan(self, direction: int) -> None:
        """Move by an eighth of the window to the left (-1) or to the right (1)."""
        start, end = self.window
        by = direction * (end - start) / 8
        self._zoom_to(start + by, end + by)

    # The cursor.

    def toggle_cursor(self) -> None:
        """Put it into the middle, to stay, or take it away."""
        self.pinned = not self.pinned
        start, end = self.window
        self.cursor_s = (start + end) / 2 if self.pinned else None

    def move(self, direction: int) -> None:
        """Move the cursor by a cell; without one, the window."""
        if self.cursor_s is None:
            self.pan(direction)
        else:
            self.place_cursor(self.cursor_s + direction * self._cell_s)

    def jump(self, direction: int) -> None:
        """Move the cursor to the next (1) or the previous (-1) span of the lane, to stay."""
        if self.lanes is None:
            return
        at = self.under_cursor
        time = self.window[0] if self.cursor_s is None else self.cursor_s
        if at is not None:
            time = at.start_s
        found = self._track().after(time) if direction > 0 else self._track().before(time)
        self.pinned = True
        target = found or at
        self.place_cursor((target.start_s + target.end_s) / 2 if target else time)

    def place_cursor(self, time_s: float) -> None:
        """Put the cursor here, or where the step is nearest; the window follows it."""
        self.cursor_s = time_s = min(max(0.0, time_s), self._duration_s)
        start, end = self.window
        if time_s < start:
            self._zoom_to(time_s, time_s + end - start)
        elif time_s > end:
            self._zoom_to(time_s - (end - start), time_s)

    def choose_lane(self, lane: int) -> None:
        """Choose the lane of this number, or the nearest there is."""
        if self.lanes is not None:
            self.lane = min(max(0, lane), len(self.lanes.tracks) - 1)

    @property
    def _duration_s(self) -> float:
        return self.lanes.duration_s if self.lanes else 0.0

    @property
    def _cell_s(self) -> float:
        start, end = self.window
        return (end - start) / max(1, self.cells)

    def _track(self) -> LaneTrack:
        assert self.lanes is not None
        tracks = list(self.lanes.tracks.values())
        return tracks[min(self.lane, len(tracks) - 1)]

    def _zoom_to(self, start: float, end: float) -> None:
        whole = self._duration_s
        length = max(_SHORTEST_S, end - start)
        if length >= whole:
            self.zoomed = None
            return
        start = min(max(0.0, start), whole - length)
        self.zoomed = (start, start + length)
