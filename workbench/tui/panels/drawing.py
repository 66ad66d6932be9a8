"""Lines of a panel as segments: cleaning, cutting and justifying, all pure; and the history that a panel keeps.

Invariant: nothing made here is wider than the width it was given, and a number is left out whole, never cut short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from workbench.formatting import known
from workbench.tui.glyphs import Glyphs

Line = list[Segment]
PLAIN_STYLE = Style()
"""Of gaps: a panel draws them in its own style."""
REVERSED = Style(reverse=True)


def clean(text: str, glyphs: Glyphs) -> str:
    """Text from outside as it may be drawn: no control characters, and in plain mode no others than ASCII."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """`text` in at most `width` cells, wide characters counted; what is cut off shows."""
    if width <= 0:
        return ""
    if text.isascii():
        return glyphs.cut(text, width)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + glyphs.ellipsis


def width_of(line: Iterable[Segment]) -> int:
    total = 0
    for segment in line:
        text = segment.text
        total += len(text) if text.isascii() else cell_len(text)
    return total


def keep(width: int, parts: Sequence[tuple[int, Line]], gap: str = "  ") -> Line:
    """The parts side by side, those of the highest number left out until the rest fits; 0 is the most important.

    Of equal numbers the last goes first. A single part that is too wide is cut by the panel.
    """
    chosen = [(importance, line) for importance, line in parts if line]
    sizes = [width_of(line) for _, line in chosen]
    while len(chosen) > 1 and sum(sizes) + len(gap) * (len(chosen) - 1) > width:
        worst = max(range(len(chosen)), key=lambda i: (chosen[i][0], i))
        del chosen[worst], sizes[worst]
    out: Line = []
    for i, (_, line) in enumerate(chosen):
        if i:
            out.append(Segment(gap, PLAIN_STYLE))
        out += line
    return out


def ends(left: Line, right: Line, width: int) -> Line:
    """One at each end; the right one is left out where there is no room for both."""
    room = width - width_of(left) - width_of(right)
    if room < 1 or not right:
        return left
    return [*left, Segment(" " * room, PLAIN_STYLE), *right]


def filled_up(line: Line, width: int, glyphs: Glyphs, base: Style) -> Strip:
    """The line in exactly `width` cells, in the style `base` where a segment has none of its own."""
    used = width_of(line)
    if used > width:
        line = crop(line, width, glyphs)
        used = width_of(line)
    segments = [segment if segment.style else Segment(segment.text, base) for segment in line]
    if used < width:
        segments.append(Segment(" " * (width - used), base))
    return Strip(segments, width)


def crop(line: Line, width: int, glyphs: Glyphs) -> Line:
    """The line in at most `width` cells; what is cut off shows."""
    if width_of(line) <= width:
        return line
    out: Line = []
    room = width
    for segment in line:
        if segment.cell_length >= room:
            # Cut here even where this one ends just in time: more follows, or it is too wide itself.
            out.append(Segment(cut(segment.text + " ", room, glyphs), segment.style))
            break
        out.append(segment)
        room -= segment.cell_length
    return out


class History:
    """The newest values of one quantity, the oldest forgotten."""

    LENGTH = 240

    def __init__(self) -> None:
        self.values: list[float | None] = []
        """The oldest first, at most LENGTH."""

    def add(self, value: float | None) -> None:
        self.values.append(known(value))
        if len(self.values) > self.LENGTH:
            del self.values[0]

    @property
    def top(self) -> float:
        """The largest value; 0 where there is none."""
        return max((value for value in self.values if value is not None), default=0.0)
