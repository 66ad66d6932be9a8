"""Where groups and charts stand: within the size, without overlaps, the chosen one always seen."""

from __future__ import annotations

import random

import pytest

from workbench.tui.run.charts import LEAST_HEIGHT, LEAST_WIDTH, chart_columns
from workbench.tui.run.groups import GROUPS, SIDE, Group, arrange_groups
from workbench.tui.run.machine import share_height


def test_groups_fill_the_size_without_overlaps_and_the_chosen_one_is_seen() -> None:
    source = random.Random(11)
    for _ in range(500):
        width, height = source.randrange(20, 260), source.randrange(1, 90)
        chosen: Group = source.choice(GROUPS)
        side: Group = chosen if chosen in SIDE else source.choice(SIDE)
        regions = arrange_groups(width, height, chosen, side)
        assert chosen in regions
        assert sum(region.area for region in regions.values()) == width * height
        cells: set[tuple[int, int]] = set()
        for region in regions.values():
            inside = {(x, y) for x in range(region.x, region.right) for y in range(region.y, region.bottom)}
            assert not inside & cells and region.right <= width and region.bottom <= height
            cells |= inside


@pytest.mark.parametrize(
    ("size", "seen", "columns"),
    [((60, 13), 1, 1), ((80, 21), 1, 1), ((119, 37), 1, 1), ((120, 37), 4, 2), ((160, 47), 4, 3)],
)
def test_columns_come_with_the_width(size: tuple[int, int], seen: int, columns: int) -> None:
    regions = arrange_groups(*size, "charts", "log")
    assert len(regions) == seen
    assert len({region.x for region in regions.values()}) == columns


def test_a_terminal_that_is_wide_and_low_has_tabs() -> None:
    assert list(arrange_groups(200, 13, "lanes", "log")) == ["lanes"]


def test_heights_are_shared_whole_and_none_is_lower_than_the_least() -> None:
    source = random.Random(7)
    for _ in range(300):
        wants = [source.randrange(3, 20) for _ in range(source.randrange(1, 7))]
        height = source.randrange(1, 80)
        found = share_height(height, wants, 3)
        assert min(found) >= 3 and len(found) == len(wants)
        assert sum(found) == max(height, 3 * len(wants))
    assert share_height(30, [20, 5], 3)[0] > share_height(30, [5, 20], 3)[0]


def test_all_charts_are_seen_where_each_has_room_and_one_where_not() -> None:
    assert chart_columns(58, 12, 4) is None
    assert chart_columns(80, 21, 4) == 2
    assert chart_columns(53, 47, 4) == 1
    source = random.Random(5)
    for _ in range(300):
        width, height, count = source.randrange(20, 200), source.randrange(3, 60), source.choice((4, 5))
        columns = chart_columns(width, height, count)
        if columns is not None:
            assert height // -(-count // columns) >= LEAST_HEIGHT
            assert columns == 1 or width // columns >= LEAST_WIDTH
