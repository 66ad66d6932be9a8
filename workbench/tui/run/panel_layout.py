"""Where the groups of the run's screen stand, by the size of the terminal: beside each other, or behind tabs.

Pure. Invariant: what is given out lies within the size, without overlaps, and the chosen group is always among it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from textual.geometry import Region

Group = Literal["charts", "machine", "lanes", "log", "samples", "events"]
GROUPS: tuple[Group, ...] = ("charts", "machine", "lanes", "log", "samples", "events")
"""In the order of their digits."""
SIDE: tuple[Group, ...] = ("log", "samples", "events")
"""Of these one is seen at a time, however large the terminal."""
TWO_COLUMNS, THREE_COLUMNS = 120, 160
_LEAST_HEIGHT = 26
_LANES = (10, 14)
"""The lanes' least and greatest height beside others."""


def arrange_groups(width: int, height: int, chosen: Group, side: Group) -> Mapping[Group, Region]:
    """The groups that are seen, `side` being the last chosen of SIDE."""
    if width < TWO_COLUMNS or height < _LEAST_HEIGHT:
        return {chosen: Region(0, 0, width, height)}
    lanes = min(_LANES[1], max(_LANES[0], height // 3))
    if width < THREE_COLUMNS:
        left = width // 2
        machine = height * 3 // 5
        return {
            "charts": Region(0, 0, left, height - lanes),
            "lanes": Region(0, height - lanes, left, lanes),
            "machine": Region(left, 0, width - left, machine),
            side: Region(left, machine, width - left, height - machine),
        }
    first, second = width // 3, width // 3
    third = width - first - second
    return {
        "charts": Region(0, 0, first, height),
        "machine": Region(first, 0, second, height),
        "lanes": Region(first + second, 0, third, lanes),
        side: Region(first + second, lanes, third, height - lanes),
    }


def share_height(height: int, wants: list[int], least: int) -> list[int]:
    """`height` rows of cells for rows of panels that want so many; none gets less than `least`, whatever there is.

    What is over, or lacking, is borne in proportion to what each wants beyond the least.
    """
    spare = max(0, height - least * len(wants))
    beyond = [max(0, want - least) + 1 for want in wants]
    ends = [spare * sum(beyond[: row + 1]) // sum(beyond) for row in range(len(wants))]
    return [least + end - before for before, end in zip([0, *ends], ends, strict=False)]
