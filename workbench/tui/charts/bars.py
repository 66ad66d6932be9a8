"""Horizontal bars inside panels: a share, or several stacked on one another.

Pure functions; what they give is exactly `width` cells wide whatever the shares are. Parts of a stacked bar differ by
character as well as by style, so that colour is never needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from workbench.tui.glyphs import Glyphs


def part_marks(glyphs: Glyphs) -> str:
    """The characters of a stacked bar's parts, in their order: for the legend beside it. After the last they repeat."""
    return "#=o+" if glyphs.ascii else "█▓▒▚"


def filled(share: float | None, levels: str) -> str:
    """One cell of `levels` (`glyphs.bar` or `glyphs.column`), which go from empty to full.

    A share above 0 never shows as empty and one below 1 never as full; None and NaN show as empty.
    """
    return levels[_steps(share, len(levels) - 1)]


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """`share` of `width` cells filled, the last one in part, then `glyphs.rest`.

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
    """How many of `steps` are filled: none only for nothing, all only for the whole."""
    if share is None or math.isnan(share) or share <= 0 or steps <= 0:
        return 0
    if share >= 1:
        return steps
    return min(max(1, steps - 1), max(1, round(share * steps)))
