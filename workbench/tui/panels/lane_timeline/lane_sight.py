"""What of a step's lanes is seen: the seconds that are zoomed to, the chosen lane, and the cursor in it.

No textual. Invariant: the window lies within the step, and the cursor that is placed lies within the window.
"""

from __future__ import annotations

from workbench.runs import LaneSpan
from workbench.tui.panels.lane_timeline.lane_times import LaneTrack, StepLanes

_SHORTEST_S = 1e-6
"""No zoom goes below this."""


class LaneSight:
    """Where one looks in `lanes`, the step that is shown; all times are seconds of that step."""

    def __init__(self) -> None:
        self.lanes: StepLanes | None = None
        self.zoomed: tuple[float, float] | None = None
        """What is zoomed to; None: the whole step."""
        self.cursor_s: float | None = None
        self.pinned = False
        """Whether the cursor was asked for by its key and stays when the pointer leaves."""
        self.lane = 0
        """The number of the chosen lane."""
        self.cells = 0
        """How many cells the timeline has where it is drawn."""

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
        """An eighth of the window to the left (-1) or to the right (1)."""
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
        """The cursor by a cell; without one, the window."""
        if self.cursor_s is None:
            self.pan(direction)
        else:
            self.place_cursor(self.cursor_s + direction * self._cell_s)

    def jump(self, direction: int) -> None:
        """The cursor to the next (1) or the previous (-1) span of the lane, to stay."""
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
        """The lane of this number, or the nearest there is."""
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
