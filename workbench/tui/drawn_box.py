"""A box with a border and titles whose rows are drawn by hand, and of which only what has changed is repainted.

Invariant: a row that looks as before stays the same strip and is not repainted; nothing is drawn while nobody sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.app import RenderResult
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip

from workbench.tui.kept_lines import KeptLines

if TYPE_CHECKING:
    from typing_extensions import Self


class DrawnBox(KeptLines):
    """Subclasses give `drawn`."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._strips: list[Strip] = []
        self._drawn_size = Size(0, 0)
        self._stale = True
        """Whether what is drawn is no longer what is to be seen."""
        self._titles = ("", "")
        self._border_row: int | None = None
        """While a title is set, the row of it, counted from the first row of content."""
        self._frame: tuple[Segment, Segment] | None = None
        """The border at the left and the right of each row; None where a row is more than that and its content."""

    def drawn(self, width: int, height: int) -> Sequence[Strip]:
        """At most `height` rows, each `width` cells wide."""
        raise NotImplementedError

    def draw_again(self) -> None:
        """Draw, and have repainted what is different now."""
        size = self._drawn_size
        before = self._strips
        self._draw()
        if size != self._drawn_size:
            self.refresh()
        elif rows := [y for y, strip in enumerate(self._strips) if strip is not before[y]]:
            self.refresh(*_stretches(rows, size.width))

    def set_titles(self, title: str, subtitle: str) -> None:
        """Plain text in the borders."""
        before, self._titles = self._titles, (title, subtitle)
        if title != before[0]:
            self._border_row = -1
            self.border_title = Content(title)
        if subtitle != before[1]:
            self._border_row = self.content_size.height
            self.border_subtitle = Content(subtitle)
        self._border_row = None

    def render(self) -> RenderResult:
        return ""

    def render_line(self, y: int) -> Strip:
        if self._stale or self._drawn_size != self.content_size:
            self._draw()
        return self._strips[y] if y < len(self._strips) else self._blank()

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        if self._border_row is not None and not regions:
            # A new title repaints its row, not all of the box.
            regions = (Region(-1, self._border_row, self.outer_size.width, 1),)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        self._stale = True
        super().notify_style_update()

    def _draw(self) -> None:
        size = self.content_size
        before = self._strips if size == self._drawn_size else []
        self._stale, self._drawn_size = False, size
        width, height = size
        strips = list(self.drawn(width, height)) if width > 0 and height > 0 else []
        if len(strips) < height:
            strips += [self._blank()] * (height - len(strips))
        for y, (old, new) in enumerate(zip(before, strips, strict=False)):
            if old == new:
                strips[y] = old
        self._strips = strips

    def _blank(self) -> Strip:
        return Strip.blank(self._drawn_size.width, self.rich_style)

    def _all_rendered(self, crop: Region) -> None:
        """Take the border from a row, to put it around the rows that change, where that gives what Textual gives."""
        self._frame = None
        whole = crop == self.outer_size.region and self.gutter == (1, 1, 1, 1)
        if whole and self.content_size.height and self._kept is not None:
            segments = list(self._kept[1])
            frame = segments[0], segments[-1]
            # Padding, tint, opacity and the like make something else of a row.
            (strip,) = self._framed((0,), frame, crop.width)
            if strip == self._kept[1]:
                self._frame = frame

    def _render_rows(self, into: list[Strip], rows: Sequence[int], crop: Region) -> None:
        if self._frame is None:
            super()._render_rows(into, rows, crop)
            return
        last = self.content_size.height
        inside = [y for y in rows if 0 < y <= last]
        for y, strip in zip(
            inside, self._framed([y - 1 for y in inside], self._frame, crop.width), strict=True
        ):
            into[y] = strip
        super()._render_rows(into, [y for y in rows if not 0 < y <= last], crop)

    def _framed(self, rows: Sequence[int], frame: tuple[Segment, Segment], width: int) -> list[Strip]:
        """Rows of content between the left and the right border."""
        if self._stale or self._drawn_size != self.content_size:
            self._draw()
        background = self.background_colors[1]
        left, right = frame
        out = []
        for y in rows:
            strip = self._strips[y].adjust_cell_length(width - 2)
            for line_filter in self._kept_filters:
                strip = strip.apply_filter(line_filter, background)
            out.append(Strip([left, *strip, right], width))
        return out


def _stretches(rows: Sequence[int], width: int) -> list[Region]:
    """Rows, in order, as regions: those that follow on one another in one."""
    out: list[Region] = []
    for y in rows:
        if out and out[-1].bottom == y:
            out[-1] = Region(0, out[-1].y, width, out[-1].height + 1)
        else:
            out.append(Region(0, y, width, 1))
    return out
