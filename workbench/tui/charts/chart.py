"""The chart: a titled box with curves that grow, which can be zoomed, panned and read out.

What a key or the mouse does is here; the box and its picture are `ChartBox`'s. Invariant: whatever is done, what is
shown lies within the bounds of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from workbench.tui.charts.chart_box import ChartBox
from workbench.tui.charts.curves import Curve
from workbench.tui.charts.readings import nearest_point, place_of
from workbench.tui.charts.series import AXES, Axis
from workbench.tui.glyphs import BLOCKS, Glyphs

ZOOM = 1.5
PAN = 0.25
SKIPS = (0, 10, 100, 1_000, 10_000)


class Chart(ChartBox):
    """Curves on shared axes. `title` says what is drawn, `unit` what its values are in ("s": times, "%": shares,
    "e": numbers with an exponent).
    """

    HELP = """
# Chart

Dots are the values, the line their average. `↑` (`^`) at the top marks values that the axis has no room for,
`✗` (`x`) at the foot values that are not finite.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom_in", "Zoom in", key_display="+", id="chart.zoom_in"),
        Binding("minus", "zoom_out", "Zoom out", key_display="-", id="chart.zoom_out"),
        Binding("left,h", "pan_left", "Back", show=False, id="chart.pan_left"),
        Binding("right,l", "pan_right", "Ahead", show=False, id="chart.pan_right"),
        Binding("home", "to_start", "To the start", show=False, id="chart.to_start"),
        Binding("end", "to_end", "To the newest", show=False, id="chart.to_end"),
        Binding("0", "reset", "Show all", id="chart.reset"),
        Binding("c", "cursor", "Cursor", id="chart.cursor"),
        Binding("comma", "cursor_back", "Cursor back", show=False, id="chart.cursor_back"),
        Binding("full_stop", "cursor_ahead", "Cursor ahead", show=False, id="chart.cursor_ahead"),
        Binding("x", "next_axis", "By step, tokens, time", show=False, id="chart.next_axis"),
        Binding("g", "log_y", "Log values", show=False, id="chart.log_y"),
        Binding("G", "log_x", "Log axis", show=False, id="chart.log_x"),
        Binding("s", "skip", "Skip the start", show=False, id="chart.skip"),
        Binding("o", "spikes", "Room for spikes", show=False, id="chart.spikes"),
    ]

    can_focus = True

    def __init__(
        self,
        title: str,
        curves: Sequence[Curve] = (),
        *,
        glyphs: Glyphs = BLOCKS,
        unit: str = "",
        axis: Axis = "step",
        log_y: bool = False,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(
            title, curves, glyphs=glyphs, unit=unit, axis=axis, log_y=log_y, id=id, classes=classes
        )

    @property
    def allow_maximize(self) -> bool:
        return True

    # Points and places

    def _share_under(self, x: int) -> float:
        """The share of the horizontal axis at a column of the widget's content."""
        left, width = (self._plot.left, self._plot.width) if self._plot is not None else (0, self.size.width)
        return min(1.0, max(0.0, (x - left + 0.5) / max(1, width)))

    def _set_cursor(self, place: float) -> None:
        first = next((curve.series for curve in self._curves if len(curve.series)), None)
        if first is not None:
            low, high = self._bounds()
            self.cursor = min(max(place, low), high)
            self.view_changed()

    def _step_cursor(self, direction: int) -> None:
        """To the next point, or where a column of cells holds several, to that of the next column."""
        first = next((curve.series for curve in self._curves if len(curve.series)), None)
        if first is None:
            return
        scale, axis = self._scale(), self.view.axis
        if self.cursor is None:
            self._set_cursor(scale.high)
            return
        width = max(1, self._plot.width if self._plot is not None else self.size.width)
        beside = scale.value(scale.share(self.cursor) + direction / width)
        point = nearest_point(first, self.cursor, axis)
        if point is not None and 0 <= point + direction < len(first):
            neighbour = place_of(first, point + direction, axis)
            beside = max(beside, neighbour) if direction > 0 else min(beside, neighbour)
        low, high = self._bounds()
        share = scale.share(min(max(beside, low), high))
        if not 0 <= share <= 1:
            self.view.pan(share - (1 if share > 1 else 0), (low, high))
        self._set_cursor(beside)

    # Actions

    def action_zoom_in(self) -> None:
        self._zoom(1 / ZOOM)

    def action_zoom_out(self) -> None:
        self._zoom(ZOOM)

    def action_pan_left(self) -> None:
        self._pan(-PAN)

    def action_pan_right(self) -> None:
        self._pan(PAN)

    def action_to_start(self) -> None:
        self._pan(-math.inf)

    def action_to_end(self) -> None:
        self._pan(math.inf)

    def action_reset(self) -> None:
        self.view.reset()
        self.view_changed()

    def action_cursor(self) -> None:
        if self.cursor is None:
            self._set_cursor(self._scale().high)
        else:
            self.cursor = None
            self.view_changed()

    def action_cursor_back(self) -> None:
        self._step_cursor(-1)

    def action_cursor_ahead(self) -> None:
        self._step_cursor(1)

    def action_next_axis(self) -> None:
        """By step, by tokens, by time: the same points stay in view, and under the cursor."""
        first = next((curve.series for curve in self._curves if len(curve.series)), None)
        ends = [*(self.view.part or ()), *([] if self.cursor is None else [self.cursor])]
        points = []
        if first is not None:
            origin = first.positions.origin(self.view.axis)
            points = [min(first.first_at(place + origin, self.view.axis), len(first) - 1) for place in ends]
        self.view.axis = AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]
        if first is not None:
            places = [place_of(first, point, self.view.axis) for point in points]
            if self.view.part is not None:
                self.view.part = places[0], places[1]
            if self.cursor is not None:
                self.cursor = places[-1]
        self.view_changed()

    def action_log_y(self) -> None:
        self.log_y = not self.log_y
        self.view_changed()

    def action_log_x(self) -> None:
        self.view.log = not self.view.log
        self.view_changed()

    def action_skip(self) -> None:
        """Leave out the first 10, 100, ... steps, as long as half of the points stay; then none again."""
        most = max((len(curve.series) for curve in self._curves), default=0) / 2
        larger = [skip for skip in SKIPS if self.view.skip < skip <= most]
        self.view.skip = larger[0] if larger else 0
        self.view_changed()

    def action_spikes(self) -> None:
        self.with_spikes = not self.with_spikes
        self.view_changed()

    def _zoom(self, factor: float, at: float | None = None) -> None:
        """About the place at share `at`; without one, about the cursor, else the right end where that is the newest."""
        bounds = self._bounds()
        if at is None:
            share = self.view.scale(bounds).share(self.cursor) if self.cursor is not None else -1.0
            at = share if 0 <= share <= 1 else 1.0 if self.view.follows else 0.5
        self.view.zoom(factor, at, bounds)
        self.view_changed()

    def _pan(self, shares: float) -> None:
        self.view.pan(shares, self._bounds())
        self.view_changed()

    # The mouse

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._zoom_under(event, 1 / ZOOM)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._zoom_under(event, ZOOM)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        event.stop()
        self._pan(-PAN / 2)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        event.stop()
        self._pan(PAN / 2)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.cursor is not None:
            self._point_to(event)

    def on_click(self, event: events.Click) -> None:
        self._point_to(event)

    def _zoom_under(self, event: events.MouseEvent, factor: float) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        self._zoom(factor, None if offset is None else self._share_under(offset.x))

    def _point_to(self, event: events.MouseEvent) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            self._set_cursor(self._scale().value(self._share_under(offset.x)))
