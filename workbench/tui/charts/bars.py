"""Bars and history graphs of one or several rows inside panels. Pure functions.

Invariant: what they give is exactly as wide as asked for. Parts of a stacked bar differ by character as well as by
style; in a graph a value that is missing (None or not finite) leaves its column empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from rich.segment import Segment
from rich.style import Style

from workbench.tui.glyphs import Glyphs


def part_marks(glyphs: Glyphs) -> str:
    """Return the characters of a stacked bar's parts in their order, for the legend beside it; they repeat."""
    return "#=o+" if glyphs.ascii else "█▓▒▚"


def filled(share: float | None, levels: str) -> str:
    """Return one cell of `levels` (`glyphs.bar` or `glyphs.column`), which go from empty to full.

    A share above 0 never shows as empty and one below 1 never as full; None and NaN show as empty.
    """
    return levels[_steps(share, len(levels) - 1)]


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """Return `share` of `width` cells filled, the last one in part, then `glyphs.rest`.

    Shares beyond 0 and 1 are cut to them; None and NaN give an empty bar, beside which the panel prints N/A.
    """
    levels = glyphs.bar
    whole, part = divmod(_steps(share, max(0, width) * (len(levels) - 1)), len(levels) - 1)
    text = levels[-1] * whole + (levels[part] if part else "")
    return text + glyphs.rest * (max(0, width) - len(text))


def stacked_bar(
    parts: Sequence[tuple[float | None, Style]], width: int, glyphs: Glyphs, rest: Style | None = None
) -> list[Segment]:
    """Parts as (share of the whole, style) side by side, then `glyphs.rest` in the style `rest`.

    Part k is drawn with character k of `part_marks`. Ends are rounded to cells from the sum of the shares so far,
    so that rounding never adds up; what goes beyond the whole is cut off. A part that is not zero gets one cell at
    least while there are cells left. Where there is but one part its last cell is filled in part.
    """
    width = max(0, width)
    rest = rest or Style.null()
    if len(parts) == 1:
        share, style = parts[0]
        text = bar(share, width, glyphs)
        levels = len(glyphs.bar) - 1
        end = math.ceil(_steps(share, levels * width) / levels)
        pieces = [Segment(text[:end], style), Segment(text[end:], rest)]
        return [piece for piece in pieces if piece.text]
    marks = part_marks(glyphs)
    segments = []
    total, drawn = 0.0, 0
    for index, (share, style) in enumerate(parts):
        if share is None or math.isnan(share) or share <= 0:
            continue
        total = min(1.0, total + share)
        end = min(width, max(drawn + 1, round(total * width)))
        if end > drawn:
            segments.append(Segment(marks[index % len(marks)] * (end - drawn), style))
        drawn = max(drawn, end)
    if drawn < width:
        segments.append(Segment(glyphs.rest * (width - drawn), rest))
    return segments


def _steps(share: float | None, steps: int) -> int:
    """Return how many of `steps` are filled: none only for nothing, all only for the whole."""
    if share is None or math.isnan(share) or share <= 0 or steps <= 0:
        return 0
    if share >= 1:
        return steps
    return min(max(1, steps - 1), max(1, round(share * steps)))


def sparkline(
    values: Sequence[float | None],
    width: int,
    glyphs: Glyphs,
    *,
    height: int = 1,
    low: float = 0.0,
    high: float | None = None,
) -> list[str]:
    """Return the newest values as columns, a cell each, in rows from the top down.

    `low` is the foot of a column and `high` its full height; without `high` it is the greatest value shown. What lies
    beyond them is cut to them.
    """
    width, height = max(0, width), max(0, height)
    levels = len(glyphs.column) - 1
    heights = _heights(values, width, levels * height, low, high)
    rows = []
    for under in range((height - 1) * levels, -1, -levels):
        rows.append("".join(glyphs.column[min(levels, max(0, tall - under))] for tall in heights))
    return rows


def _heights(
    values: Sequence[float | None], columns: int, levels: int, low: float, high: float | None
) -> list[int]:
    """Return the newest `columns` values as levels from 1 to `levels`; 0 where there is none."""
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
