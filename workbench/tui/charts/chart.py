"""The chart: a titled box with curves that grow, which can be zoomed, panned and read out.

Invariant: the picture is worked out anew only when data, view, size or colours have changed and somebody sees it;
whatever is done, what is shown lies within the bounds of the data. The series belong to whoever made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from workbench.tui.canvas import CanvasWidget
from workbench.tui.charts.plot import Curve, Frame, Look, Plot, draw, newest_values, plain, said_value
from workbench.tui.charts.scale import Scale, View, bounds_of, short, short_time
from workbench.tui.charts.series import AXES, Axis, Series
from workbench.tui.glyphs import BLOCKS, Glyphs

COLOURS = 8
ZOOM = 1.5
PAN = 0.25
SKIPS = (0, 10, 100, 1_000, 10_000)
_STYLES = ("axis", "cursor", "spike", "bad", *(f"curve-{number}" for number in range(1, COLOURS + 1)))


class Chart(CanvasWidget):
    """Curves on shared axes. `title` says what is drawn, `unit` what its values are in ("s": times, "%": shares,
    "e": numbers with an exponent).
    """

    HELP = """
# Chart

Dots are the values, the line their average. `↑` (`^`) at the top marks values above the axis,
`✗` (`x`) at the bottom values that are not finite.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(-1)", "Zoom in", key_display="+", id="chart.zoom_in"),
        Binding("minus", "zoom(1)", "Zoom out", key_display="-", id="chart.zoom_out"),
        Binding("left,h", "pan(-1)", "Back", show=False, id="chart.pan_left"),
        Binding("right,l", "pan(1)", "Ahead", show=False, id="chart.pan_right"),
        Binding("home", "pan(-1e9)", "To the start", show=False, id="chart.to_start"),
        Binding("end", "pan(1e9)", "To the newest", show=False, id="chart.to_end"),
        Binding("0", "reset", "Show all", id="chart.reset"),
        Binding("c", "cursor", "Cursor", id="chart.cursor"),
        Binding("comma", "step_cursor(-1)", "Cursor back", show=False, id="chart.cursor_back"),
        Binding("full_stop", "step_cursor(1)", "Cursor forward", show=False, id="chart.cursor_ahead"),
        Binding("x", "next_axis", "By step, tokens, time", show=False, id="chart.next_axis"),
        Binding("g", "log_y", "Log values", show=False, id="chart.log_y"),
        Binding("G", "log_x", "Log axis", show=False, id="chart.log_x"),
        Binding("s", "skip", "Skip the start", show=False, id="chart.skip"),
        Binding("o", "spikes", "Room for spikes", show=False, id="chart.spikes"),
    ]

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
    Chart > .chart--curve-4 { color: #c678dd; }
    Chart > .chart--curve-5 { color: #2bbac5; }
    Chart > .chart--curve-6 { color: $text-secondary; }
    Chart > .chart--curve-7 { color: #7fb069; }
    Chart > .chart--curve-8 { color: #e08d79; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"chart--{name}" for name in _STYLES}

    can_focus = True
    ALLOW_MAXIMIZE = True

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
        # Not by `set_class`, which styles the chart anew at once where an application runs.
        super().__init__(id=id, classes=" ".join(filter(None, (classes, "-ascii" if glyphs.ascii else None))))
        self.view = View(axis)
        """The horizontal axis; call `view_changed` after a change."""
        self.log_y = log_y
        self.with_spikes = False
        self.cursor: float | None = None
        """The place that is read out, relative to the axis's origin; None: no cursor."""
        self.unit = unit
        self.remark = ""
        """A remark on the curves, drawn beneath them with the next change."""
        self._title = title
        self._glyphs = glyphs
        self._curves: tuple[Curve, ...] = ()
        self._plot: Plot | None = None
        self._kept_look: Look | None = None
        self.set_curves(curves)

    @property
    def curves(self) -> tuple[Curve, ...]:
        return self._curves

    def set_curves(self, curves: Sequence[Curve]) -> None:
        """Draw these, the later ones above the earlier. The newest value of a single line is in the title."""
        self._curves = tuple(curves)
        self.changed()

    def view_changed(self) -> None:
        """Draw anew after a change of `view`, `log_y`, `with_spikes`, `cursor` or `unit`."""
        self.changed()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._kept_look = None

    # What is shown

    def draw_rows(self, width: int, height: int) -> list[Strip]:
        frame = Frame(
            self._curves, self._scale(), self.view.axis, self.log_y, self.with_spikes, self.unit, self.cursor
        )
        self._plot = draw(frame, self._look(), self._glyphs, width, height)
        return [Strip(segments, width) for segments in self._plot.rows]

    def _bounds(self) -> tuple[float, float]:
        return bounds_of((curve.series for curve in self._curves), self.view) or (0.0, 1.0)

    def _scale(self) -> Scale:
        return self.view.scale(self._bounds())

    def _look(self) -> Look:
        if self._kept_look is None:
            axis, cursor, spike, bad, *palette = (
                self.get_component_rich_style(f"chart--{name}") for name in _STYLES
            )
            self._kept_look = Look(self.rich_style, axis, cursor, spike, bad, tuple(palette))
        return self._kept_look

    def border_texts(self) -> tuple[str, str]:
        """Return the newest value and the average in the title, beneath what is read out or how the axes are set."""
        lines = [curve.series for curve in self._curves if curve.form == "line"]
        values = newest_values(lines[0], self.unit) if len(lines) == 1 else ()
        room = self.outer_size.width - 6
        titles = (f"{self._title} {value}" for value in values)
        title = next((each for each in titles if len(each) <= room), self._title)
        if self.cursor is None:
            said = settings(self.view, log_y=self.log_y, with_spikes=self.with_spikes)
        else:
            said = read_out(self._curves, self.cursor, self.view.axis, self.unit)
        if self.remark:
            said.append(self.remark)
        text = f" {self._glyphs.separator} ".join(said)
        return title, plain(text, self._glyphs)

    # Points and places

    @property
    def _first_series(self) -> Series | None:
        return next((curve.series for curve in self._curves if len(curve.series)), None)

    def _share_under(self, x: int) -> float:
        """Return the share of the horizontal axis at a column of the widget's content."""
        left, width = (self._plot.left, self._plot.width) if self._plot is not None else (0, self.size.width)
        return min(1.0, max(0.0, (x - left + 0.5) / max(1, width)))

    def _set_cursor(self, place: float) -> None:
        first = self._first_series
        if first is not None:
            low, high = self._bounds()
            self.cursor = min(max(place, low), high)
            self.view_changed()

    def action_step_cursor(self, direction: int) -> None:
        """Move to the next point, or where a column of cells holds several, to that of the next column."""
        first = self._first_series
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

    def action_zoom(self, direction: int) -> None:
        self._zoom(ZOOM**direction)

    def action_pan(self, direction: float) -> None:
        self._pan(direction * PAN)

    def action_reset(self) -> None:
        self.view.reset()
        self.view_changed()

    def action_cursor(self) -> None:
        if self.cursor is None:
            self._set_cursor(self._scale().high)
        else:
            self.cursor = None
            self.view_changed()

    def action_next_axis(self) -> None:
        """Go on from steps to tokens, to time: the same points stay in view, and under the cursor."""
        first = self._first_series
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
        """Zoom about the place at share `at`, else about the cursor, else about the newest point or the middle."""
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


def read_out(curves: Sequence[Curve], place: float, axis: Axis, unit: str) -> list[str]:
    """Return the point nearest to a place: where it lies, then each curve's value there and its average."""
    said: list[str] = []
    for curve in curves:
        series = curve.series
        if not len(series):
            continue
        point = nearest_point(series, place, axis)
        if not said:
            said.append(f"{axis} {said_place(place_of(series, point, axis), axis)}")
        said.append(f"{curve.name} {said_value(float(series.values[point]), unit)}")
        if series.smoothing and curve.form == "line":
            said.append(f"average {said_value(series.average_at(point), unit)}")
    return said or ["no values yet"]


def settings(view: View, *, log_y: bool, with_spikes: bool) -> list[str]:
    """Return how the axes are set, as far as it is not the usual."""
    said = [f"by {view.axis}"]
    if view.log:
        said.append(f"log {view.axis}")
    if log_y:
        said.append("log values")
    if view.skip:
        said.append(f"without the first {view.skip:,}")
    if with_spikes:
        said.append("room for spikes")
    if view.part is not None:
        said.append("zoomed" if view.follows else "zoomed, not following")
    return said


def nearest_point(series: Series, place: float, axis: Axis) -> int:
    """Return the point of a series, which has one, that lies nearest to a place."""
    after = min(series.first_at(place + series.positions.origin(axis), axis), len(series) - 1)
    before = max(0, after - 1)
    nearer = place - place_of(series, before, axis) < place_of(series, after, axis) - place
    return before if nearer else after


def place_of(series: Series, point: int, axis: Axis) -> float:
    """Return where a point lies, relative to the axis's origin."""
    return float(series.positions.along(axis)[point]) - series.positions.origin(axis)


def said_place(place: float, axis: Axis) -> str:
    if axis == "time":
        return short_time(place)
    return f"{place:,.0f}" if axis == "step" else short(place)
