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

    What is over, or lacking, is borne in proportion to what each wants beyond the least.
    """
    spare = max(0, height - least * len(wanted))
    beyond = [max(0, want - least) + 1 for want in wanted]
    ends = [spare * sum(beyond[: row + 1]) // sum(beyond) for row in range(len(wanted))]
    return [least + end - before for before, end in zip([0, *ends], ends, strict=False)]
