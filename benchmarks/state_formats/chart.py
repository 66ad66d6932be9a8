"""Line charts as SVG: a panel with axes, ticks, a legend and lines; panels in rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 46
TICKS = 5
LEGEND_ROW = 15
CHARACTER = 5.8
"""About the width of a letter of the legend."""


@dataclass(frozen=True)
class Line:
    """One line; lines of one label share a colour, a width and an entry of the legend."""

    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    width: float = 1.0


@dataclass(frozen=True)
class Panel:
    """One chart. `log_y`: powers of ten are evenly apart."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_y: bool = False


def to_svg(rows: Sequence[Sequence[Panel]]) -> str:
    """The panels row by row, on white."""
    body = "".join(
        f'<g transform="translate({column * WIDTH} {row * HEIGHT})">{_panel(panel)}</g>'
        for row, panels in enumerate(rows)
        for column, panel in enumerate(panels)
    )
    width, height = WIDTH * max(len(panels) for panels in rows), HEIGHT * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="{width}" height="{height}" fill="white"/>{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    scale_y = math.log10 if panel.log_y else float
    xs = [x for line in panel.lines for x in line.x]
    ys = [scale_y(y) for line in panel.lines for y in line.y]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(ys), max(ys)
    margin = (high_y - low_y) * 0.04 or 1.0
    labels = {line.label: line for line in panel.lines}
    x0, x1 = LEFT, WIDTH - RIGHT
    y0, y1 = HEIGHT - BOTTOM, TOP
    # The legend has a band of its own above the lines, so that it never lies on one.
    band = (LEGEND_ROW * len(labels) + 6) / (y0 - y1)
    low_y, high_y = low_y - margin, high_y + margin
    high_y += (high_y - low_y) * band / (1 - band)

    def at_x(x: float) -> float:
        return x0 + (x - low_x) / ((high_x - low_x) or 1.0) * (x1 - x0)

    def at_y(scaled: float) -> float:
        return y0 + (scaled - low_y) / (high_y - low_y) * (y1 - y0)

    parts = [
        f'<text x="{(x0 + x1) / 2}" y="18" text-anchor="middle" font-size="13">{escape(panel.title)}</text>',
        f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="black"/>',
        f'<text x="{(x0 + x1) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(panel.x_label)}</text>',
        f'<text transform="translate(14 {(y0 + y1) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>",
    ]
    for tick in _ticks(low_x, high_x):
        x = at_x(tick)
        parts.append(f'<path d="M{x:.1f} {y0}v4" stroke="black"/>')
        parts.append(f'<text x="{x:.1f}" y="{y0 + 16}" text-anchor="middle">{tick:,g}</text>')
    for tick in _ticks(low_y, high_y):
        y = at_y(tick)
        value = 10**tick if panel.log_y else tick
        parts.append(f'<path d="M{x0} {y:.1f}h{x1 - x0}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for line in panel.lines:
        points = " ".join(
            f"{at_x(x):.1f},{at_y(scale_y(y)):.1f}" for x, y in zip(line.x, line.y, strict=True)
        )
        stroke = f'stroke="{line.colour}" stroke-width="{line.width:g}"'
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/>')
    width = max(map(len, labels)) * CHARACTER + 34
    height = LEGEND_ROW * len(labels) + 2
    parts.append(f'<rect x="{x1 - width:.0f}" y="{y1}" width="{width:.0f}" height="{height}" fill="white"/>')
    for row, (label, line) in enumerate(labels.items()):
        y = TOP + 12 + LEGEND_ROW * row
        stroke = f'stroke="{line.colour}" stroke-width="{max(line.width, 1.5):g}"'
        parts.append(f'<path d="M{x1 - width + 4:.0f} {y - 4}h18" {stroke}/>')
        parts.append(f'<text x="{x1 - width + 28:.0f}" y="{y}">{escape(label)}</text>')
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers between the two."""
    raw = (high - low) / TICKS or 1.0
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step)
    return [round(index * step, 10) for index in range(first, math.floor(high / step) + 1)]
