"""Bars and sparklines keep their width, tell little from nothing, and draw plain characters where asked to."""

from __future__ import annotations

import math
import random

import pytest
from rich.style import Style

from workbench.tui.charts.bars import bar, filled, part_marks, sparkline, stacked_bar
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs

BOTH = pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "ascii"])
RED, BLUE = Style(color="red"), Style(color="blue")


def test_a_bar_fills_its_share_with_a_fraction_in_the_last_cell() -> None:
    assert bar(0.5, 4, BLOCKS) == "██░░"
    assert bar(0.5 + 1 / 8, 4, BLOCKS) == "██▌░"
    assert bar(1.0, 4, BLOCKS) == "████"
    assert bar(0.5, 4, PLAIN) == "##.."


def test_little_is_not_nothing_and_nearly_all_is_not_all() -> None:
    assert bar(1e-9, 4, BLOCKS) == "▏░░░"
    assert bar(1 - 1e-9, 4, BLOCKS) == "███▉"
    assert filled(0.001, BLOCKS.column) == "▁"
    assert filled(0.999, BLOCKS.column) == "▇"
    assert filled(1.0, BLOCKS.column) == "█"


@pytest.mark.parametrize("share", [None, math.nan, -1.0, 0.0])
def test_what_is_not_known_or_nothing_is_an_empty_bar(share: float | None) -> None:
    assert bar(share, 3, BLOCKS) == "░░░"
    assert filled(share, BLOCKS.bar) == " "


def test_stacked_parts_differ_by_character_and_never_add_up_rounding() -> None:
    segments = stacked_bar([(0.25, RED), (0.5, BLUE)], 8, BLOCKS)
    assert [(segment.text, segment.style) for segment in segments] == [
        ("██", RED),
        ("▓▓▓▓", BLUE),
        ("░░", Style.null()),
    ]
    thirds = stacked_bar([(1 / 3, RED)] * 3, 10, PLAIN)
    assert "".join(segment.text for segment in thirds) == "###====ooo"


def test_a_single_part_keeps_the_fraction_of_its_last_cell() -> None:
    segments = stacked_bar([(0.5 + 1 / 8, RED)], 4, BLOCKS, rest=BLUE)
    assert [(segment.text, segment.style) for segment in segments] == [("██▌", RED), ("░", BLUE)]


@BOTH
def test_bars_are_as_wide_as_asked_for_whatever_the_shares(glyphs: Glyphs) -> None:
    chance = random.Random(1)
    odd = [None, math.nan, math.inf, -math.inf, -3.0, 0.0, 1.0, 7.5]
    for _ in range(500):
        width = chance.randrange(0, 30)
        share = chance.choice([*odd, chance.random(), chance.random()])
        assert len(bar(share, width, glyphs)) == width
        parts = [
            (chance.choice([*odd, chance.random()]), chance.choice([RED, BLUE]))
            for _ in range(chance.randrange(6))
        ]
        text = "".join(segment.text for segment in stacked_bar(parts, width, glyphs))
        assert len(text) == width
        if glyphs.ascii:
            assert text.isascii()
    assert len(set(part_marks(glyphs))) == 4


def test_a_single_part_in_ascii_styles_its_fraction_too() -> None:
    segments = stacked_bar([(1 / 8, RED)], 2, PLAIN)
    assert [(segment.text, segment.style) for segment in segments] == [(":", RED), (".", Style.null())]


def test_a_sparkline_has_the_newest_value_at_the_right() -> None:
    assert sparkline([0, 4, 8], 5, BLOCKS, high=8) == ["  ▁▄█"]
    assert sparkline([1, 2, 3, 8], 2, BLOCKS, high=8) == ["▃█"]
    assert sparkline([0, 4, 8], 3, PLAIN, high=8) == [".=#"]


def test_a_missing_value_is_a_gap_and_zero_is_not() -> None:
    assert sparkline([None, 0.0, math.nan, 1.0, math.inf], 5, BLOCKS) == [" ▁ █ "]


def test_a_sparkline_of_several_rows_fills_them_from_below() -> None:
    assert sparkline([1, 8, 12, 16], 4, BLOCKS, height=2, high=16) == ["  ▄█", "▁███"]


@BOTH
def test_a_sparkline_keeps_its_size_whatever_the_values(glyphs: Glyphs) -> None:
    chance = random.Random(2)
    odd = [None, math.nan, math.inf, -math.inf, -5.0, 0.0, 1e308, -1e308]
    for _ in range(500):
        width, height = chance.randrange(0, 20), chance.randrange(0, 4)
        values = [chance.choice([*odd, chance.random()]) for _ in range(chance.randrange(0, 50))]
        low, high = chance.choice([(0.0, None), (0.0, 1.0), (1.0, 1.0), (-1e308, 1e308)])
        rows = sparkline(values, width, glyphs, height=height, low=low, high=high)
        assert [len(row) for row in rows] == [width] * height
        if glyphs.ascii:
            assert "".join(rows).isascii()
