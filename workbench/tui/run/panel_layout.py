"""Where the panels of a screen stand, by the size of the terminal. Pure.

Invariant: what is given out lies within the size, without overlaps, and the chosen group is always among it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from textual.geometry import Region

Group = Literal["charts", "machine", "lanes", "log", "samples", "events"]
GROUPS: tuple[Group, ...] = ("charts", "machine", "lanes", "log", "samples", "events")
"""The groups of the run's screen, in the order of their digits."""
SIDE: tuple[Group, ...] = ("log", "samples", "events")
"""Of these one is seen at a time, however large the terminal."""
TWO_COLUMNS, THREE_COLUMNS = 120, 160
_LEAST_HEIGHT = 26
_LANES = (10, 14)
"""The lanes' least and greatest height beside others."""


def arrange_groups(width: int, height: int, chosen: Group, side: Group) -> Mapping[Group, Region]:
    """Return the regions of the groups that are seen; `side` is the last chosen of SIDE."""
    if width < TWO_COLUMNS or height < _LEAST_HEIGHT:
        return {chosen: Region(0, 0, width, height)}
    lanes = min(_LANES[1], max(_LANES[0], height // 3))
    if width < THREE_COLUMNS:
        left, machine = width // 2, height * 3 // 5
        return {
            "charts": Region(0, 0, left, height - lanes),
            "lanes": Region(0, height - lanes, left, lanes),
            "machine": Region(left, 0, width - left, machine),
            side: Region(left, machine, width - left, height - machine),
        }
    third = width // 3
    last = width - 2 * third
    return {
        "charts": Region(0, 0, third, height),
        "machine": Region(third, 0, third, height),
        "lanes": Region(2 * third, 0, last, lanes),
        side: Region(2 * third, lanes, last, height - lanes),
    }


def share_height(height: int, wanted: Sequence[int], least: int) -> list[int]:
    """Share `height` rows of cells among rows of panels that want so many; none gets less than `least`.

    A row of cells goes where most is lacking; when nothing is, to the lowest in turn.
    """
    heights = [least] * len(wanted)
    for _ in range(height - sum(heights)):
        lacking = [want - has for want, has in zip(wanted, heights, strict=True)]
        most = max(lacking)
        heights[lacking.index(most) if most > 0 else heights.index(min(heights))] += 1
    return heights
