"""A canvas of cells that curves are drawn on: eight braille dots a cell, or in ASCII mode one character.

Curves are drawn in layers. Invariant: a cell shows one layer, the last that drew in it, so that a line stays clear over
the dots beneath it; and nothing is drawn outside the canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.segment import Segment
from rich.style import Style

from workbench.tui.glyphs import Glyphs

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of a cell's left and right column of dots, from the top (Unicode, block U+2800)."""
_SPANS = tuple(
    tuple(tuple(sum(side[top : bottom + 1]) for bottom in range(4)) for top in range(4)) for side in _BITS
)
"""[side][top][bottom]: all dots of a column from top to bottom."""
_CELLS = " " + "".join(chr(0x2800 + mask) for mask in range(1, 256))


@dataclass(frozen=True)
class Layer:
    """The look of one curve. `character` stands for it in ASCII mode, where each curve has its own."""

    style: Style
    character: str = "*"


class Canvas:
    """`width` x `height` cells; dots count from the left and from the top."""

    def __init__(self, width: int, height: int, glyphs: Glyphs) -> None:
        self.width = max(0, width)
        self.height = max(0, height)
        self._braille = not glyphs.ascii
        across, down = (2, 4) if self._braille else (1, 1)
        self.dots_wide = self.width * across
        self.dots_high = self.height * down
        self._layers: list[Layer] = []
        cells = self.width * self.height
        self._masks = bytearray(cells)
        self._owners = bytearray(cells)
        """1 + the layer that a cell shows; 0: none."""
        self._written: dict[int, tuple[str, int]] = {}
        """Cells that show a character instead of dots, and their owner when it was written."""

    def layer(self, layer: Layer) -> int:
        """Add a layer above the others, 255 at most, and return its number."""
        if len(self._layers) == 255:
            raise ValueError("a canvas has room for 255 layers")
        self._layers.append(layer)
        return len(self._layers) - 1

    def dot(self, x: int, y: int, layer: int) -> None:
        """Draw one dot; one outside the canvas is left out."""
        if not (0 <= y < self.dots_high and 0 <= x < self.dots_wide):
            return
        owner = layer + 1
        if not self._braille:
            self._owners[y * self.width + x] = owner
            return
        cell = (y >> 2) * self.width + (x >> 1)
        bit = _BITS[x & 1][y & 3]
        if self._owners[cell] == owner:
            self._masks[cell] |= bit
        else:
            self._masks[cell], self._owners[cell] = bit, owner

    def span(self, x: int, top: int, bottom: int, layer: int) -> None:
        """Draw all dots of column `x` from top to bottom; those outside the canvas are left out."""
        if top < 0:
            top = 0
        if bottom >= self.dots_high:
            bottom = self.dots_high - 1
        if top > bottom or not 0 <= x < self.dots_wide:
            return
        masks, owners, width, owner = self._masks, self._owners, self.width, layer + 1
        if not self._braille:
            for cell in range(top * width + x, bottom * width + x + 1, width):
                owners[cell] = owner
            return
        spans = _SPANS[x & 1]
        first, last = top >> 2, bottom >> 2
        cell = first * width + (x >> 1)
        for row in range(first, last + 1):
            bits = spans[top & 3 if row == first else 0][bottom & 3 if row == last else 3]
            if owners[cell] == owner:
                masks[cell] |= bits
            else:
                masks[cell] = bits
                owners[cell] = owner
            cell += width

    def line(self, x0: int, y0: int, x1: int, y1: int, layer: int) -> None:
        """Draw a line without gaps from one dot to another, x0 <= x1, cut at the canvas's edges."""
        steps = x1 - x0
        if steps <= 0:
            self.span(x0, min(y0, y1), max(y0, y1), layer)
            return
        rise = (y1 - y0) / steps
        first = max(x0, -1)
        before = round(y0 + (first - x0) * rise)
        self.dot(first, before, layer)
        for x in range(first + 1, min(x1, self.dots_wide) + 1):
            y = round(y0 + (x - x0) * rise)
            if abs(y - before) <= 1:
                self.dot(x, y, layer)
            else:
                # Of a steep piece the first half belongs to the column before.
                middle, onward = (before + y) // 2, 1 if y > before else -1
                self.span(x - 1, min(before, middle), max(before, middle), layer)
                self.span(x, min(middle + onward, y), max(middle + onward, y), layer)
            before = y

    def write(self, column: int, row: int, text: str, layer: int) -> None:
        """Put characters in place of dots, from the cell at (column, row) on, cut at the canvas's edges."""
        if not 0 <= row < self.height:
            return
        for at, character in enumerate(text, column):
            if 0 <= at < self.width:
                cell = row * self.width + at
                self._written[cell] = character, layer + 1
                self._owners[cell] = layer + 1

    def rows(self, base: Style) -> list[list[Segment]]:
        """Return the rows from the top, each as wide as the canvas; layers are drawn upon the style `base`."""
        styles = [base, *(base + layer.style for layer in self._layers)]
        cells = self._texts()
        rows = []
        for start in range(0, self.width * self.height, self.width or 1):
            text = cells[start : start + self.width]
            segments = []
            at = 0
            for owner, run in groupby(self._owners[start : start + self.width]):
                length = sum(1 for _ in run)
                segments.append(Segment("".join(text[at : at + length]), styles[owner]))
                at += length
            rows.append(segments)
        return rows if self.width else [[] for _ in range(self.height)]

    def _texts(self) -> Sequence[str]:
        """Return the character of each cell."""
        if self._braille:
            texts = list(map(_CELLS.__getitem__, self._masks))
        else:
            signs = [" ", *(layer.character for layer in self._layers)]
            texts = list(map(signs.__getitem__, self._owners))
        for cell, (character, owner) in self._written.items():
            if self._owners[cell] == owner:
                texts[cell] = character
        return texts
