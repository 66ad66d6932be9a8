"""Which stretch of the horizontal axis a chart shows: all of it, or a part that was zoomed to.

Places are relative to the axis's origin (`Positions.origin`). Invariant: what is shown lies within the bounds of the
data, and a view whose right end was the newest point stays there as the data grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.tui.charts.scale import Scale
from workbench.tui.charts.series import Axis, Series

_NEAREST = 1e-6
"""The least share of the bounds that can be zoomed to."""
_WHOLE = 0.99
"""A part of more than this is the whole: zooming in and out again ends where it began."""


@dataclass
class View:
    """State of one chart's horizontal axis. `bounds`, which the methods take, come from `bounds_of`."""

    axis: Axis = "step"
    log: bool = False
    skip: int = 0
    """Steps at the start that are left out of the whole."""
    part: tuple[float, float] | None = None
    """The places that were zoomed to; None: all."""
    follows: bool = True
    """Whether a part's right end is the newest point."""

    def scale(self, bounds: tuple[float, float]) -> Scale:
        """The horizontal axis as it is drawn."""
        whole = Scale.fit(*bounds, log=self.log)
        if self.part is None:
            return whole
        # Steps that are skipped since, or places that a logarithmic axis lacks, may lie in the part.
        low, high = max(self.part[0], whole.low), min(self.part[1], whole.high)
        if not low < high:
            return whole
        part = Scale(low, high, self.log)
        return self._moved(part, part.share(whole.high) - 1) if self.follows else part

    def zoom(self, factor: float, at: float, bounds: tuple[float, float]) -> None:
        """Show `factor` times as much, the place at share `at` (0 left, 1 right) staying where it is."""
        shown = self.scale(bounds)
        self._show(
            Scale(shown.value(at * (1 - factor)), shown.value(at + (1 - at) * factor), self.log), bounds
        )

    def pan(self, shares: float, bounds: tuple[float, float]) -> None:
        """Move by so many of what is shown, to the right where it is positive; as far as there is data."""
        if self.part is not None:
            shown = self.scale(bounds)
            whole = Scale.fit(*bounds, log=self.log)
            to_left, to_right = shown.share(whole.low), shown.share(whole.high) - 1
            self._show(self._moved(shown, min(max(shares, to_left), max(to_right, to_left))), bounds)

    def reset(self) -> None:
        """Show all, and all that comes."""
        self.part = None
        self.follows = True

    def _show(self, shown: Scale, bounds: tuple[float, float]) -> None:
        whole = Scale.fit(*bounds, log=self.log)
        left, right = max(0.0, whole.share(shown.low)), min(1.0, whole.share(shown.high))
        if right - left > _WHOLE:
            self.reset()
            return
        if right - left < _NEAREST:
            return
        low, high = whole.value(left), whole.value(right)
        if low < high:
            self.part = low, high
            self.follows = right > 1 - 1e-9

    def _moved(self, scale: Scale, shares: float) -> Scale:
        return Scale(scale.value(shares), scale.value(1 + shares), self.log)


def bounds_of(series: Iterable[Series], view: View) -> tuple[float, float] | None:
    """The first and last place of all series without the steps that are skipped; None where there is no point.

    Where nothing would be left nothing is skipped. A logarithmic axis begins at the first place above zero.
    """
    filled = [one for one in series if len(one)]
    if not filled:
        return None
    first_step = min(float(one.positions.along("step")[0]) for one in filled)
    for skip in (view.skip, 0) if view.skip else (0,):
        lows, highs = [], []
        for one in filled:
            places, origin = one.positions.along(view.axis), one.positions.origin(view.axis)
            start = one.first_at(first_step + skip, "step")
            if view.log:
                start = max(start, one.first_at(math.nextafter(origin, math.inf), view.axis))
            if start < len(one):
                lows.append(float(places[start]) - origin)
                highs.append(float(places[len(one) - 1]) - origin)
        if lows and (skip == 0 or max(highs) > min(lows)):
            return min(lows), max(highs)
    return (0.0, 0.0)
