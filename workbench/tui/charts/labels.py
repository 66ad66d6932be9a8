"""What is written around a chart's curves: labels at the axes, and the legend.

Invariant: everything is cut to the width it is given, one character a cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from workbench.tui.charts.curves import Curve
from workbench.tui.charts.readings import newest_value
from workbench.tui.charts.scale import Scale
from workbench.tui.glyphs import Glyphs

LINES = "*+x#%&=~"
"""Characters of the curves' lines in ASCII mode, in the curves' order."""


def row_labels(y: Scale, height: int, unit: str) -> dict[int, str]:
    """The labels of the vertical axis by the row, from the top, that they belong to."""
    labels: dict[int, str] = {}
    for tick in y.ticks(max(2, height // 3), unit):
        row = round((1 - y.share(tick.value)) * (height - 1))
        if 0 <= row < height:
            labels.setdefault(row, tick.label)
    return labels


def axis_labels(x: Scale, width: int, unit: str) -> str:
    """Labels under their places, from the left, each only where it does not touch the one before."""
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
    """Each curve's sign and name, and its newest value where there is room for all."""
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
    """What tells the curves apart in the legend: of lines a letter or their character, of marks their own sign."""
    lines = sum(curve.form == "line" for curve in curves)
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
    """`text` with every character that does not fill one cell replaced, in ASCII mode every other one too."""
    return "".join(
        sign if sign.isprintable() and cell_len(sign) == 1 and (sign.isascii() or not glyphs.ascii) else "?"
        for sign in text
    )
