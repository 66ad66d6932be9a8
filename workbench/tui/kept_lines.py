"""Widgets that keep their finished lines from one picture to the next.

Textual asks every widget that a change touches for all of its lines, and goes through each of them anew. Most have not
changed: a container never does. Invariant: a line is kept exactly as long as Textual's own `StylesCache` would keep it,
which is told by `_set_dirty`, the one place through which it is told too.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.filter import LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class KeptLines(Widget):
    """To be named after a container that it makes cheap, or as the base of a widget that is drawn by hand."""

    _kept: list[Strip] | None = None
    """The lines of `_kept_crop`, in the order of their rows."""
    _kept_crop = Region()
    _kept_filters: Sequence[LineFilter] = ()
    _dirty_rows: frozenset[int] | set[int] = frozenset()
    """Rows of the widget that are to be rendered anew."""

    def _set_dirty(self, *regions: Region) -> None:
        super()._set_dirty(*regions)
        if not regions:
            self._kept = None
        elif self._kept is not None:
            above = self.content_offset.y
            for region in regions:
                self._dirty_rows |= set(range(region.y + above, region.bottom + above))

    def render_lines(self, crop: Region) -> list[Strip]:
        filters = self.get_line_filters()
        if self._kept is None or crop != self._kept_crop or filters != self._kept_filters:
            self._kept = super().render_lines(crop)
            self._kept_crop, self._kept_filters = crop, filters
            self._all_rendered(crop)
        elif self._dirty_rows:
            # A new list: Textual may still hold the one before.
            self._kept = list(self._kept)
            self._render_rows(self._kept, [y for y in self._dirty_rows if crop.y <= y < crop.bottom], crop)
        self._dirty_rows = set()
        return self._kept

    def _all_rendered(self, crop: Region) -> None:
        """All lines of `crop` are in `_kept`."""

    def _render_rows(self, into: list[Strip], rows: Sequence[int], crop: Region) -> None:
        """Put these rows of the widget, as they are now, in their places among the lines of `crop`."""
        for y in rows:
            into[y - crop.y] = super().render_lines(Region(crop.x, y, crop.width, 1))[0]
