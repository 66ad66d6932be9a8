"""The chart: a titled box with curves that grow, which can be zoomed, panned and read out.

The widget holds what is shown and how; the picture is `plot.draw`'s. Invariant: it draws anew only when its data, its
view or its size has changed, and its curves' series belong to whoever made them: it never changes one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.markup import escape
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from workbench.tui.charts.curves import Curve
from workbench.tui.charts.labels import plain
from workbench.tui.charts.plot import Frame, Look, Plot, draw
from workbench.tui.charts.readings import nearest_point, newest_value, place_of, read_out, settings
from workbench.tui.charts.scale import Scale
from workbench.tui.charts.series import AXES, Axis
from workbench.tui.charts.view import View, bounds_of
from workbench.tui.glyphs import BLOCKS, Glyphs

ZOOM = 1.5
PAN = 0.25
SKIPS = (0, 10, 100, 1_000, 10_000)
COLOURS = 8


class Chart(Widget):
    """Curves on shared axes. `title` says what is drawn, `unit` what its values are in ("s" writes times)."""

    DEFAULT_CSS = """
    Chart {
        height: 1fr;
        min-height: 3;
        border: round $panel-lighten-2;
        border-title-color: $foreground;
        border-subtitle-color: $text-muted;
    }
    Chart:focus { border: round $border; }
    Chart.-ascii { border: ascii $panel-lighten-2; }
    Chart.-ascii:focus { border: ascii $border; }
    Chart > .chart--axis { color: $text-muted; }
    Chart > .chart--cursor { color: $foreground; }
    Chart > .chart--spike { color: $text-warning; text-style: bold; }
    Chart > .chart--bad { color: $text-error; text-style: bold; }
    Chart > .chart--curve-1 { color: $text-primary; }
    Chart > .chart--curve-2 { color: $text-accent; }
    Chart > .chart--curve-3 { color: $foreground; }
    Chart > .chart--curve-4 { color: ansi_bright_magenta; }
    Chart > .chart--curve-5 { color: ansi_bright_cyan; }
    Chart > .chart--curve-6 { color: $text-secondary; }
    Chart > .chart--curve-7 { color: ansi_cyan; }
    Chart > .chart--curve-8 { color: ansi_magenta; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chart--axis",
        "chart--cursor",
        "chart--spike",
        "chart--bad",
        *(f"chart--curve-{number}" for number in range(1, COLOURS + 1)),
    }
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
        super().__init__(id=id, classes=classes)
        self.set_class(glyphs.ascii, "-ascii")
        self.view = View(axis)
        """The horizontal axis; call `view_changed` after a change."""
        self.log_y = log_y
        self.with_spikes = False
        self.cursor: float | None = None
        """The place that is read out, relative to the axis's origin; None: no cursor."""
        self.unit = unit
        self._title = title
        self._glyphs = glyphs
        self._curves: tuple[Curve, ...] = ()
        self._plot: Plot | None = None
        self._strips: list[Strip] = []
        self._drawn_size = (-1, -1)
        self.set_curves(curves)

    @property
    def allow_maximize(self) -> bool:
        return True

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self._curves

    def set_curves(self, curves: Sequence[Curve]) -> None:
        """Draw these, the later ones above the earlier. The newest value of a single line is in the title."""
        self._curves = tuple(curves)
        self.data_changed()

    def data_changed(self) -> None:
        """Series have grown, or were cut. Cheap where the chart is not seen: it only draws when it is."""
        self._plot = None
        self._write_titles()
        self.refresh()

    def view_changed(self) -> None:
        """Draw anew after a change of `view`, `log_y`, `with_spikes`, `cursor` or `unit`."""
        self.data_changed()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._plot = None

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._plot is None or self._drawn_size != (width, height):
            self._plot = draw(self._frame(), self._look(), self._glyphs, width, height)
            self._strips = [Strip(segments, width) for segments in self._plot.rows]
            self._drawn_size = (width, height)
        return self._strips[y] if y < len(self._strips) else Strip.blank(width, self.rich_style)

    # What is shown

    def _bounds(self) -> tuple[float, float]:
        return bounds_of((curve.series for curve in self._curves), self.view) or (0.0, 1.0)

    def _scale(self) -> Scale:
        return self.view.scale(self._bounds())

    def _frame(self) -> Frame:
        return Frame(
            self._curves,
            self._scale(),
            self.view.axis,
            self.log_y,
            self.with_spikes,
            self.unit,
            self.cursor,
        )

    def _look(self) -> Look:
        base = self.rich_style
        axis, cursor, spike, bad, *palette = (
            self.get_component_rich_style(f"chart--{name}")
            for name in (
                "axis",
                "cursor",
                "spike",
                "bad",
                *(f"curve-{number}" for number in range(1, COLOURS + 1)),
            )
        )
        return Look(base, axis, cursor, spike, bad, tuple(palette))

    def _write_titles(self) -> None:
        """The newest value in the title, and beneath what is read out or how the axes are set."""
        lines = [curve.series for curve in self._curves if curve.form == "line"]
        value = newest_value(lines[0], self.unit) if len(lines) == 1 else ""
        self.border_title = escape(f"{self._title} {value}" if value else self._title)
        if self.cursor is None:
            said = settings(self.view, log_y=self.log_y, with_spikes=self.with_spikes)
        else:
            said = read_out(self._curves, self.cursor, self.view.axis, self.unit)
        text = f" {self._glyphs.separator} ".join(said)
        self.border_subtitle = escape(plain(text, self._glyphs))

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
