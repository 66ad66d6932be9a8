"""The characters that panels draw with: one set with blocks and braille, one of plain ASCII.

Invariant: nothing drawn by colour alone; a number or a character says it too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """Each character is one cell wide."""

    ascii: bool
    bar: str
    """Filled shares of one cell, from empty to full: a bar's last cell, or one cell of heat."""
    column: str
    """Heights of one cell, from empty to full."""
    rest: str
    """The unfilled part of a bar."""
    dot: str
    selected: str
    arrow_up: str
    arrow_down: str
    line: str
    """A horizontal rule."""
    separator: str
    """Between two things on one line."""
    good: str
    warning: str
    bad: str
    ellipsis: str

    def cut(self, text: str, width: int) -> str:
        """`text` in at most `width` cells; what is cut off shows."""
        if len(text) <= width:
            return text
        return text[: max(0, width - 1)] + self.ellipsis if width > 0 else ""


BLOCKS = Glyphs(
    ascii=False,
    bar=" ▏▎▍▌▋▊▉█",
    column=" ▁▂▃▄▅▆▇█",
    rest="░",
    dot="●",
    selected="▸",
    arrow_up="↑",
    arrow_down="↓",
    line="─",
    separator="·",
    good="✓",
    warning="!",
    bad="✗",
    ellipsis="…",
)
PLAIN = Glyphs(
    ascii=True,
    bar=" .:-=+*%#",
    column=" .:-=+*%#",
    rest=".",
    dot="*",
    selected=">",
    arrow_up="^",
    arrow_down="v",
    line="-",
    separator="|",
    good="+",
    warning="!",
    bad="x",
    ellipsis="~",
)
