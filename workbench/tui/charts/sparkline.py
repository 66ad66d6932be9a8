"""A history graph of one or several rows for the inside of a panel: the newest value at the right.

Pure functions. Invariant: as many rows as asked for, each exactly as wide as asked for; a value that is missing (None
or not finite) leaves its column empty, while the lowest value still draws its lowest level, so that the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeGuard

from rich.segment import Segment
from rich.style import Style

from workbench.tui.glyphs import Glyphs

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
"""Braille dots of the left half of a cell, filled from below by 0 to 4 dots (Unicode, block U+2800)."""
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)


def sparkline(
    values: Sequence[float | None],
    width: int,
    glyphs: Glyphs,
    *,
    height: int = 1,
    low: float = 0.0,
    high: float | None = None,
    braille: bool = False,
) -> list[str]:
    """The newest values as columns, rows from the top down.

    A cell is one value, with `braille` (which ASCII mode ignores) two. `low` is the foot of a column and `high` its
    full height; without `high` it is the greatest value shown. What lies beyond them is cut to them.
    """
    width, height = max(0, width), max(0, height)
    braille = braille and not glyphs.ascii
    a_cell, levels = (2, 4) if braille else (1, len(glyphs.column) - 1)
    heights = _heights(values, width * a_cell, levels * height, low, high)
    rows = []
    for row in range(height - 1, -1, -1):
        under = row * levels
        part = [min(levels, max(0, tall - under)) for tall in heights]
        if braille:
            pairs = zip(part[::2], part[1::2], strict=True)
            rows.append("".join(chr(0x2800 + _LEFT[a] + _RIGHT[b]) if a or b else " " for a, b in pairs))
        else:
            rows.append("".join(glyphs.column[tall] for tall in part))
    return rows


def styled_sparkline(
    values: Sequence[float | None],
    width: int,
    glyphs: Glyphs,
    style_of: Callable[[float], Style],
    *,
    height: int = 1,
    low: float = 0.0,
    high: float | None = None,
) -> list[list[Segment]]:
    """`sparkline` with every column in the style of its value, such as that of the value's band of severity."""
    shown = [None] * max(0, width - len(values)) + list(values[max(0, len(values) - width) :])
    styles = [style_of(value) if _is_known(value) else Style.null() for value in shown]
    rows = sparkline(values, width, glyphs, height=height, low=low, high=high)
    return [
        [
            Segment("".join(character for character, _ in run), style)
            for style, run in groupby(zip(row, styles, strict=True), key=lambda cell: cell[1])
        ]
        for row in rows
    ]


def _heights(
    values: Sequence[float | None], columns: int, levels: int, low: float, high: float | None
) -> list[int]:
    """The newest `columns` values as levels from 1 to `levels`; 0 where there is none."""
    shown = values[max(0, len(values) - columns) :]
    if high is None:
        high = max((value for value in shown if _is_known(value)), default=low)
    span = high - low
    heights = [0] * (columns - len(shown))
    for value in shown:
        if not _is_known(value):
            heights.append(0)
        elif span > 0 and math.isfinite(span):
            heights.append(max(1, round(min(1.0, max(0.0, (value - low) / span)) * levels)))
        else:
            heights.append(min(1, levels))
    return heights


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
