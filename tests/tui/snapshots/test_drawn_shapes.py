"""Characters that are drawn as paths fill their cells as they should, and lie within them."""

from __future__ import annotations

import re

import pytest
from scenes.shapes import HEIGHT, WIDTH, is_drawn, shapes

from workbench.tui.glyphs import BLOCKS

BOXES = "─│╭╮╰╯"


def boxes(sign: str) -> list[tuple[float, ...]]:
    """Left, top, width and height of what is drawn in the first cell."""
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", shapes(sign, 0, 0, "#ffffff"))
    return [tuple(map(float, box)) for box in found]


def test_what_bars_and_boxes_are_made_of_is_drawn_and_words_are_not() -> None:
    assert all(map(is_drawn, BLOCKS.bar[1:] + BLOCKS.column[1:] + BLOCKS.rest + BOXES))
    assert not any(map(is_drawn, " aA0|-✓✗●▸↑…"))


def test_eighths_grow_from_the_left_and_from_below() -> None:
    for eighths, sign in enumerate(BLOCKS.bar[1:], start=1):
        assert boxes(sign) == [(0, 0, WIDTH * eighths / 8, HEIGHT)]
    for eighths, sign in enumerate(BLOCKS.column[1:], start=1):
        part = HEIGHT * eighths / 8
        assert boxes(sign) == [(0, HEIGHT - part, WIDTH, part)]


@pytest.mark.parametrize("bits", [0, 1, 0b10000000, 0b01011010, 0xFF])
def test_braille_has_a_dot_for_every_bit_within_its_cell(bits: int) -> None:
    dots = re.findall(r"M(\d+) (\d+)h0", shapes(chr(0x2800 + bits), 3, 2, "#ffffff"))
    assert len(dots) == bits.bit_count() == len(set(dots))
    assert all(3 * WIDTH < int(x) < 4 * WIDTH and 2 * HEIGHT < int(y) < 3 * HEIGHT for x, y in dots)


def test_neighbours_of_one_look_are_one_path() -> None:
    assert shapes("██▄", 0, 0, "#ffffff").count("<path") == 1
    assert shapes("─█", 0, 0, "#ffffff").count("<path") == 2
