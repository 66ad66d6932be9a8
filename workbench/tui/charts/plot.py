"""The picture of a chart: curves on a canvas with labels at both axes, as rows of segments. It knows no widget.

Invariant: the picture is exactly as wide and as high as asked for, every point falls into exactly one column of dots,
and curves are told apart by characters and letters as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from workbench.tui.charts.braille import Canvas, Layer
from workbench.tui.charts.scale import Scale, label_of, readout, short_time
from workbench.tui.charts.series import BLOCK, Axis, Floats, Points, Series
from workbench.tui.glyphs import Glyphs

LINES = "*+x#%&=~"
"""Characters of the curves' lines in ASCII mode, in the curves' order."""
_DOTS = ".:,'`;\"^"
_LEAST_WIDTH_WITH_LABELS = 24
_LEAST_HEIGHT_WITH_AXIS = 4
_LEAST_HEIGHT_WITH_LEGEND = 6
_MARGIN = 0.04
"""Of the vertical axis, beyond the least and the greatest value."""


@dataclass(frozen=True)
class Curve:
    """One quantity in a chart.

    `form`: "line" is a line, where the series has an average that of the average, over the values as dots; "marks"
    a sign at each point, for what is measured now and then; "area" fills all below the values, and of several
    areas, which are given from the lowest to the highest, each what is above those before it. `colour` chooses
    among the chart's colours; None: by the curve's place in the chart. A run that keeps its number keeps its
    colour.
    """

    name: str
    series: Series
    form: Literal["line", "marks", "area"] = "line"
    colour: int | None = None


class Column(NamedTuple):
    """The points start to stop, without stop, that fall into column `x`, with their extremes."""

    x: int
    start: int
    stop: int
    low: float
    high: float


class Shown(NamedTuple):
    """A curve's part within a horizontal axis. Columns without a finite value are not listed."""

    curve: Curve
    start: int
    stop: int
    columns: list[Column]


def shown_part(curve: Curve, axis: Axis, scale: Scale, width: int) -> Shown:
    """Return what `width` columns of dots show of a curve."""
    series = curve.series
    start, stop = _shown_points(series, axis, scale)
    if start >= stop or width < 1:
        return Shown(curve, start, stop, [])
    places = series.positions.along(axis)[start:stop]
    firsts = np.concatenate(
        [[0], np.searchsorted(places, _edges(series, axis, scale, width)), [stop - start]]
    )
    x = np.flatnonzero(firsts[1:] > firsts[:-1])
    values = series.finite(start, stop)
    lows, highs = np.fmin.reduceat(values, firsts[x]), np.fmax.reduceat(values, firsts[x])
    found = zip(
        x.tolist(),
        (start + firsts[x]).tolist(),
        (start + firsts[x + 1]).tolist(),
        lows.tolist(),
        highs.tolist(),
        strict=True,
    )
    return Shown(curve, start, stop, [Column(*column) for column in found if column[3] == column[3]])


def column_of(place: float, scale: Scale, width: int) -> int:
    """Return the column that a place falls into; beyond the axis one beyond the picture, but not far from it."""
    share = min(1e3, max(-1e3, scale.share(place)))
    return width - 1 if share == 1 else math.floor(share * width)


def value_range(
    curves: Sequence[Curve], axis: Axis, scale: Scale, *, log: bool, with_spikes: bool
) -> tuple[float, float] | None:
    """Return the least and greatest value shown, to make room for; with `log` of those above zero. None without any.

    Without spikes the blocks of 32 points around them do not count, unless nothing else is shown.
    """
    pieces = []
    for curve in curves:
        series = curve.series
        start, stop = _shown_points(series, axis, scale)
        values = series.finite(start, stop)
        if not with_spikes:
            values = values[_calm(series.spikes, start, stop)]
        if log:
            values = values[values > 0]
        if len(values) and not math.isnan(low := float(np.fmin.reduce(values))):
            pieces.append((low, float(np.fmax.reduce(values))))
    if pieces and not log and any(curve.form == "area" for curve in curves):
        pieces.append((0.0, 0.0))
    if pieces:
        return min(low for low, _ in pieces), max(high for _, high in pieces)
    return None if with_spikes else value_range(curves, axis, scale, log=log, with_spikes=True)


def marked_columns(points: Points, part: Shown, axis: Axis, scale: Scale, width: int) -> list[int]:
    """Return the columns of those of the points, which are sorted, that are shown; each once."""
    series = part.curve.series
    shown = points[(points >= part.start) & (points < part.stop)]
    places = series.positions.along(axis)[shown]
    columns = np.searchsorted(_edges(series, axis, scale, width), places, side="right")
    return [int(column) for column in np.unique(columns)]


def _edges(series: Series, axis: Axis, scale: Scale, width: int) -> Floats:
    """Return where the columns behind the first begin."""
    origin = series.positions.origin(axis)
    return np.array([origin + scale.value(column / width) for column in range(1, width)])


def _shown_points(series: Series, axis: Axis, scale: Scale) -> tuple[int, int]:
    """Return the points from the scale's low end to its high end, both shown."""
    origin = series.positions.origin(axis)
    start = series.first_at(origin + scale.low, axis)
    return start, series.first_at(math.nextafter(origin + scale.high, math.inf), axis, start)


def _calm(spikes: Points, start: int, stop: int) -> slice | Points:
    """Return what chooses the points, counted from `start`, whose block has no spike."""
    near = spikes[(spikes >= start // BLOCK * BLOCK) & (spikes < stop)]
    if not len(near):
        return slice(None)
    points = np.arange(start, stop)
    return points[~np.isin(points // BLOCK, near // BLOCK)] - start


def newest_value(series: Series, unit: str = "") -> str:
    """Return the newest average, or the newest value where there is no average or it is not finite."""
    if series.last is None:
        return ""
    point = len(series) - 1
    value = float(series.values[point])
    if series.smoothing and math.isfinite(value):
        value = series.average_at(point)
    return said_value(value, unit, digits=5)


def newest_values(series: Series, unit: str = "") -> tuple[str, ...]:
    """Return forms of the newest value, the longest first: with the average, where there is one, and without."""
    point = len(series) - 1
    if series.last is None:
        return ()
    last = said_value(float(series.values[point]), unit, digits=5)
    if not series.smoothing:
        return (last,)
    average = said_value(series.average_at(point), unit, digits=5).removesuffix(f" {unit}")
    return f"{last} avg {average}", last


def said_value(value: float, unit: str, digits: int = 6) -> str:
    """Return a value with its unit: "s" is a length of time, "%" a share, "e" an exponent and no unit.

    A rate is without digits that only flicker.
    """
    if math.isnan(value):
        return "NaN"
    if unit == "s" and math.isfinite(value):
        return short_time(value)
    if unit == "e" and math.isfinite(value):
        return f"{value:.2e}"
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit and 1 <= abs(value) < 1e12:
        return f"{value:,.{0 if abs(value) >= 100 else 1}f} {unit}"
    return f"{readout(value, digits)} {unit}".rstrip()


def row_labels(y: Scale, height: int, unit: str) -> dict[int, str]:
    """Return the labels of the vertical axis by the row, from the top, that they belong to."""
    labels: dict[int, str] = {}
    for tick in y.ticks(max(2, height // 3), unit):
        row = round((1 - y.share(tick.value)) * (height - 1))
        if 0 <= row < height:
            labels.setdefault(row, tick.label)
    if len(labels) < 2 <= height:
        step = (y.high - y.low) / 2
        ends = ((0, 1 - _MARGIN), (height - 1, _MARGIN))
        labels = {row: label_of(y.value(share), step, unit) for row, share in ends}
    return labels


def axis_labels(x: Scale, width: int, unit: str) -> str:
    """Return labels under their places, from the left, each only where it does not touch the one before."""
    text = ""
    for tick in x.ticks(max(2, width // 12), unit):
        centre = round(x.share(tick.value) * (width - 1))
        start = min(max(0, centre - len(tick.label) // 2), width - len(tick.label))
        if start >= 0 and (not text or start > len(text)):
            text = text.ljust(start) + tick.label
    return text.ljust(width)[: max(0, width)]


def legend(
    curves: Sequence[Curve], styles: Sequence[Style], base: Style, glyphs: Glyphs, width: int
) -> list[Segment]:
    """Return each curve's sign and name, and its newest value where there is room for all."""
    names = [plain(curve.name, glyphs) for curve in curves]
    values = [f" {newest_value(curve.series)}".rstrip() for curve in curves]
    if sum(map(len, names)) + sum(map(len, values)) + 4 * len(names) > width:
        values = [""] * len(names)
    room = max(1, (width + 2) // len(names) - 4)
    if sum(map(len, names)) + 4 * len(names) > width:
        names = [glyphs.cut(name, room) for name in names]
    segments: list[Segment] = []
    left = width
    for sign, name, value, style in zip(signs(curves, glyphs), names, values, styles, strict=True):
        for text, text_style in ((sign, base + style), (f" {name}{value}  ", base)):
            segments.append(Segment(text[:left], text_style))
            left -= len(segments[-1].text)
    segments.append(Segment(" " * left, base))
    return [segment for segment in segments if segment.text]


def signs(curves: Sequence[Curve], glyphs: Glyphs) -> list[str]:
    """Return the signs of the curves in the legend: of lines a letter or their character, of marks their own."""
    lines = sum(curve.form != "marks" for curve in curves)
    marks = len(curves) - lines
    found = []
    for place, curve in enumerate(curves):
        if curve.form == "marks":
            found.append(chr(ord("a") + place % 26) if marks > 1 else "o" if glyphs.ascii else glyphs.dot)
        elif glyphs.ascii:
            found.append(LINES[place % len(LINES)])
        else:
            found.append(chr(ord("A") + place % 26) if lines > 1 else glyphs.line)
    return found


def plain(text: str, glyphs: Glyphs) -> str:
    """Return `text` with every character that does not fill one cell replaced, in ASCII mode every other one too."""
    return "".join(
        sign if sign.isprintable() and cell_len(sign) == 1 and (sign.isascii() or not glyphs.ascii) else "?"
        for sign in text
    )


@dataclass(frozen=True)
class Look:
    """Styles on the background `base`; `palette` holds the curves' colours."""

    base: Style
    axis: Style
    cursor: Style
    spike: Style
    bad: Style
    palette: tuple[Style, ...]


@dataclass(frozen=True)
class Frame:
    """The curves and axes of one picture."""

    curves: Sequence[Curve]
    x: Scale
    axis: Axis
    log_y: bool = False
    with_spikes: bool = False
    """The vertical axis makes room for spikes; else they are marked at its top."""
    unit: str = ""
    """The values' unit; "s" writes times."""
    cursor: float | None = None
    """The place of the cursor's line."""


@dataclass(frozen=True)
class Plot:
    """A picture, and where in it the curves are."""

    rows: list[list[Segment]]
    left: int
    """Cells before the curves."""
    width: int
    """Cells of the curves."""
    y: Scale | None
    """None: there was nothing to draw."""


def draw(frame: Frame, look: Look, glyphs: Glyphs, width: int, height: int) -> Plot:
    """Return the picture in `width` x `height` cells. Labels and legend give way where there is little room."""
    with_legend = len(frame.curves) > 1 and height >= _LEAST_HEIGHT_WITH_LEGEND
    with_axis = height >= _LEAST_HEIGHT_WITH_AXIS
    plot_height = height - with_legend - with_axis
    extremes = value_range(frame.curves, frame.axis, frame.x, log=frame.log_y, with_spikes=frame.with_spikes)
    if extremes is None:
        return _empty(frame, look, glyphs, width, height)
    y = Scale.fit(*extremes, log=frame.log_y, margin=_MARGIN)
    labels = row_labels(y, plot_height, frame.unit) if width >= _LEAST_WIDTH_WITH_LABELS else {}
    left = max((len(label) + 1 for label in labels.values()), default=0)
    if left > width // 3:
        labels, left = {}, 0
    plot_width = width - left
    canvas = Canvas(plot_width, plot_height, glyphs)
    parts = [shown_part(curve, frame.axis, frame.x, canvas.dots_wide) for curve in frame.curves]
    _draw_cursor(canvas, frame, look, glyphs)
    _draw_curves(canvas, parts, frame, y, look, glyphs)
    _draw_marks(canvas, parts, frame, y, look, glyphs)
    rows = canvas.rows(look.base)
    axis = look.base + look.axis
    if left:
        for row, segments in enumerate(rows):
            segments.insert(0, Segment(f"{labels.get(row, ''):>{left - 1}} ", axis))
    if with_axis:
        rows.append(
            [
                Segment(
                    " " * left + axis_labels(frame.x, plot_width, "s" if frame.axis == "time" else ""), axis
                )
            ]
        )
    if with_legend:
        styles = [colour_of(curve, place, look) for place, curve in enumerate(frame.curves)]
        rows.insert(0, legend(frame.curves, styles, look.base, glyphs, width))
    return Plot(rows, left, plot_width, y)


def colour_of(curve: Curve, place: int, look: Look) -> Style:
    """Return the style of the curve at this place of the chart."""
    return look.palette[(place if curve.colour is None else curve.colour) % len(look.palette)]


def _draw_curves(
    canvas: Canvas, parts: Sequence[Shown], frame: Frame, y: Scale, look: Look, glyphs: Glyphs
) -> None:
    """Draw values as dots beneath all lines, marks above them, letters at the ends of several lines."""
    sign, row_of = signs(frame.curves, glyphs), _rows_of(canvas, y)
    lines = [(place, part) for place, part in enumerate(parts) if part.curve.form == "line"]
    for place, part in lines:
        if part.curve.series.smoothing:
            style = colour_of(part.curve, place, look) + Style(dim=True)
            _draw_values(canvas, part, row_of, canvas.layer(Layer(style, _DOTS[place % len(_DOTS)])))
    ends: set[tuple[int, int]] = set()
    areas = [(place, part) for place, part in enumerate(parts) if part.curve.form == "area"]
    for place, part in reversed(areas):
        layer = canvas.layer(Layer(colour_of(part.curve, place, look), LINES[place % len(LINES)]))
        for x, _, _, _, high in part.columns:
            canvas.span(x, row_of(high), canvas.dots_high - 1, layer)
    for place, part in areas:
        if part.columns and len(areas) > 1 and not glyphs.ascii:
            layer = canvas.layer(Layer(colour_of(part.curve, place, look)))
            x, _, _, _, high = part.columns[-1]
            canvas.write(
                *_cell(canvas, x, min(canvas.dots_high - 1, max(0, row_of(high)))), sign[place], layer
            )
    for place, part in lines:
        layer = canvas.layer(Layer(colour_of(part.curve, place, look), LINES[place % len(LINES)]))
        end = _draw_line(canvas, part, frame, row_of, layer)
        if end is not None and len(lines) > 1 and not glyphs.ascii:
            column, row = end
            while (column, row) in ends and column > 0:
                column -= 1
            ends.add((column, row))
            canvas.write(column, row, sign[place], layer)
    for place, part in enumerate(parts):
        if part.curve.form == "marks":
            layer = canvas.layer(Layer(colour_of(part.curve, place, look)))
            for x, _, _, low, high in part.columns:
                for value in (low, high):
                    canvas.write(*_cell(canvas, x, row_of(value)), sign[place], layer)


def _draw_values(canvas: Canvas, part: Shown, row_of: Callable[[float], int], layer: int) -> None:
    """Draw each value as a dot; a column with many as the band between its extremes."""
    values = part.curve.series.values
    for x, start, stop, low, high in part.columns:
        if stop - start > 4:
            canvas.span(x, row_of(high), row_of(low), layer)
            continue
        for value in values[start:stop].tolist():
            if math.isfinite(value):
                canvas.dot(x, row_of(value), layer)


def _draw_line(
    canvas: Canvas, part: Shown, frame: Frame, row_of: Callable[[float], int], layer: int
) -> tuple[int, int] | None:
    """Draw the average, else the values; return the cell where it ends, None where nothing was drawn.

    The points next to what is shown are its neighbours, so that the line goes on to both edges.
    """
    series, smooth = part.curve.series, part.curve.series.smoothing > 0
    places, origin = series.positions.along(frame.axis), series.positions.origin(frame.axis)
    columns = list(part.columns)
    for neighbour in (part.start - 1, part.stop):
        if 0 <= neighbour < len(series) and math.isfinite(value := float(series.values[neighbour])):
            x = column_of(float(places[neighbour]) - origin, frame.x, canvas.dots_wide)
            beside = Column(x, neighbour, neighbour + 1, value, value)
            columns = [beside, *columns] if neighbour < part.start else [*columns, beside]
    firsts, lasts = (np.array([column[place] for column in columns], np.intp) for place in (1, 2))
    lasts -= 1
    entries, leaves = (series.averages_at(lasts) if smooth else series.values[at] for at in (firsts, lasts))
    # A line stops at a value that is not finite; an average goes on.
    marks = series.marks[:0] if smooth else series.marks
    ahead, behind = (np.searchsorted(marks, at).tolist() for at in (firsts, lasts + 1))
    end = None
    before: tuple[int, int, int] | None = None
    for (x, _, _, low, high), first, last, marked, marked_after in zip(
        columns, entries.tolist(), leaves.tolist(), ahead, behind, strict=True
    ):
        entry, leave = (value if smooth or math.isfinite(value) else high for value in (first, last))
        if not smooth and low != high:
            canvas.span(x, row_of(high), row_of(low), layer)
        if not math.isfinite(entry):
            continue
        row = row_of(entry)
        if before is None or marked > before[2]:
            canvas.dot(x, row, layer)
        else:
            canvas.line(before[0], before[1], x, row, layer)
        before = (x, row_of(leave), marked_after)
        if 0 <= x < canvas.dots_wide:
            end = _cell(canvas, x, min(canvas.dots_high - 1, max(0, before[1])))
    return end


def _draw_marks(
    canvas: Canvas, parts: Sequence[Shown], frame: Frame, y: Scale, look: Look, glyphs: Glyphs
) -> None:
    """Mark what the axis has no room for at its top, values that are not finite at its foot."""
    spike, bad = canvas.layer(Layer(look.spike)), canvas.layer(Layer(look.bad))
    width = canvas.dots_wide
    for part in parts:
        series = part.curve.series
        columns = {column.x for column in part.columns if y.share(column.high) > 1}
        columns.update(marked_columns(series.spikes, part, frame.axis, frame.x, width))
        for x in columns:
            canvas.write(_cell(canvas, x, 0)[0], 0, glyphs.arrow_up, spike)
    for part in parts:
        if part.columns:
            for x in marked_columns(part.curve.series.marks, part, frame.axis, frame.x, width):
                canvas.write(_cell(canvas, x, 0)[0], canvas.height - 1, glyphs.bad, bad)


def _draw_cursor(canvas: Canvas, frame: Frame, look: Look, glyphs: Glyphs) -> None:
    if frame.cursor is None or not 0 <= frame.x.share(frame.cursor) <= 1:
        return
    layer = canvas.layer(Layer(look.cursor))
    column = column_of(frame.cursor, frame.x, canvas.width)
    for row in range(canvas.height):
        canvas.write(column, row, "|" if glyphs.ascii else "│", layer)


def _rows_of(canvas: Canvas, y: Scale) -> Callable[[float], int]:
    """Return a function from a value to its row of dots; beyond the axis it lies outside the canvas, but near."""
    lowest = canvas.dots_high - 1
    least, greatest = -lowest - 2, 2 * lowest + 2
    share, high, dots = y.share, y.high, lowest / (y.high - y.low)

    def row(value: float) -> int:
        at = (high - value) * dots
        return round(at) if least < at < greatest else least if at <= least else greatest

    def row_of_log(value: float) -> int:
        at = (1 - share(value)) * lowest
        return round(at) if least < at < greatest else least if at <= least else greatest

    return row_of_log if y.log else row


def _cell(canvas: Canvas, x: int, row: int) -> tuple[int, int]:
    """Return the column and row of the cell of a dot."""
    across = canvas.dots_wide // canvas.width if canvas.width else 1
    down = canvas.dots_high // canvas.height if canvas.height else 1
    return x // across, row // down


def _empty(frame: Frame, look: Look, glyphs: Glyphs, width: int, height: int) -> Plot:
    """Return a sentence in the middle of an empty picture."""
    some = any(len(curve.series) for curve in frame.curves)
    if frame.log_y and value_range(frame.curves, frame.axis, frame.x, log=False, with_spikes=True):
        text = "no value above zero for a logarithmic axis"
    else:
        text = "no finite value here" if some else "no values yet"
    blank = [Segment(" " * width, look.base)]
    rows = [list(blank) for _ in range(height)]
    if height:
        rows[height // 2] = [Segment(glyphs.cut(text, width).center(width), look.base + look.axis)]
    return Plot(rows, 0, width, None)
