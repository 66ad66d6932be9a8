"""A widget whose rows are drawn by hand, and of which only the rows that changed are painted again.

Invariant: a row that looks as before stays the same strip and is not painted again; nothing is drawn while nobody sees
the widget, and all of it is when it comes into sight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from textual.app import RenderResult
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from typing_extensions import Self


class CachedLines(Widget):
    """Mixed into containers, and the base of `CanvasWidget`: keeps finished lines until the widget is refreshed.

    For every picture Textual asks each widget that a change touches for all of its lines, and applies its colour
    filters to each of them anew: a live run took a third more processor time (`python -m benchmarks.screen`).
    """

    _cached: tuple[object, list[Strip]] | None = None
    """The size and state that the lines were made for, and the lines."""
    _dirty_rows: frozenset[int] = frozenset()
    """Rows of the widget that have changed since."""

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        if not regions:
            self._cached = None
        elif self._cached is not None:
            above = self.content_offset.y
            rows = (range(region.y + above, region.bottom + above) for region in regions)
            self._dirty_rows = self._dirty_rows.union(*rows)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def notify_style_update(self) -> None:
        self._cached = None
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        made_for = (crop, self.size, self.get_line_filters())
        if self._cached is None or self._cached[0] != made_for:
            lines = super().render_lines(crop)
        else:
            lines = list(self._cached[1])
            for top, bottom in _stretches(row for row in self._dirty_rows if crop.y <= row < crop.bottom):
                part = Region(crop.x, top, crop.width, bottom - top)
                lines[top - crop.y : bottom - crop.y] = self.render_part(part, lines[1:2])
        self._cached, self._dirty_rows = (made_for, lines), frozenset()
        return lines

    def render_part(self, part: Region, example: list[Strip]) -> list[Strip]:
        """Render rows that have changed; `example`: the second of the finished lines, where there are two."""
        return super().render_lines(part)


class CanvasWidget(CachedLines):
    """Subclasses give `draw_rows` and `border_texts`, and call `changed` after a change of what they show."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.drawn_size = Size(0, 0)
        """The size of the content when it was last drawn."""
        self._strips: list[Strip] = []
        self._stale = True
        self._titles = ("", "")
        self._title_row: int | None = None
        """While a title is set: its row, counted from the first row of the content."""

    def draw_rows(self, width: int, height: int) -> Sequence[Strip]:
        """Return at most `height` rows, each `width` cells wide."""
        raise NotImplementedError

    def border_texts(self) -> tuple[str, str]:
        """Return the plain texts of the upper and the lower border; called after `draw_rows`."""
        return "", ""

    @property
    def seen(self) -> bool:
        """It is on the screen, and has a place there."""
        return self.is_mounted and self.display and bool(self.content_size) and self.is_on_screen

    def changed(self) -> None:
        """Draw again and paint the rows that differ; while nobody sees it, put that off."""
        self._stale = True
        if not self.seen:
            return
        before, size = self._strips, self.drawn_size
        self._draw()
        if size != self.drawn_size:
            self.refresh()
        else:
            changed = [y for y, strip in enumerate(self._strips) if strip is not before[y]]
            if changed:
                self.refresh(*(Region(0, y, size.width, 1) for y in changed))
        self._set_titles()

    def on_mount(self) -> None:
        self._set_titles()

    def on_show(self) -> None:
        self._catch_up()

    def on_resize(self) -> None:
        self._catch_up()

    def _catch_up(self) -> None:
        if self._stale or self.drawn_size != self.content_size:
            self.changed()
        else:
            self._set_titles()

    def notify_style_update(self) -> None:
        self._stale = True
        super().notify_style_update()

    def render(self) -> RenderResult:
        return ""

    def render_line(self, y: int) -> Strip:
        if self._stale or self.drawn_size != self.content_size:
            self._draw()
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.drawn_size.width)

    def render_part(self, part: Region, example: list[Strip]) -> list[Strip]:
        inside = part.intersection(Region(0, 1, part.width, len(self._strips)))
        simple = part.width == self.outer_size.width and self.gutter == (1, 1, 1, 1)
        if not (inside and simple and example) or self.opacity < 1 or self.styles.tint.a:
            return super().render_part(part, example)
        # Between the borders that stand around another row: a third of the time that Textual takes for a row.
        left, *_, right = example[0]
        filters, background = self.get_line_filters(), self.background_colors[1]
        lines = []
        for strip in self._strips[inside.y - 1 : inside.bottom - 1]:
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            lines.append(Strip([left, *strip, right], part.width))
        above = Region(part.x, part.y, part.width, inside.y - part.y)
        below = Region(part.x, inside.bottom, part.width, part.bottom - inside.bottom)
        return [
            *(super().render_part(above, example) if above else ()),
            *lines,
            *(super().render_part(below, example) if below else ()),
        ]

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        if self._title_row is not None and not regions:
            # Textual would paint the whole box for a new title.
            regions = (Region(-1, self._title_row, self.outer_size.width, 1),)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _draw(self) -> None:
        size = self.content_size
        before = self._strips if size == self.drawn_size else []
        self._stale, self.drawn_size = False, size
        strips = list(self.draw_rows(*size)) if size else []
        if len(strips) < size.height:
            strips += [Strip.blank(size.width, self.rich_style)] * (size.height - len(strips))
        for y, (old, new) in enumerate(zip(before, strips, strict=False)):
            if old == new:
                strips[y] = old
        self._strips = strips

    def _set_titles(self) -> None:
        before, self._titles = self._titles, self.border_texts()
        if self._titles[0] != before[0]:
            self._title_row = -1
            self.border_title = Content(self._titles[0])
        if self._titles[1] != before[1]:
            self._title_row = self.content_size.height
            self.border_subtitle = Content(self._titles[1])
        self._title_row = None


def _stretches(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield rows that follow on one another as (first, behind the last)."""
    for _, stretch in groupby(enumerate(sorted(rows)), lambda place: place[1] - place[0]):
        found = [row for _, row in stretch]
        yield found[0], found[-1] + 1
