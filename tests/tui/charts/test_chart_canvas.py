"""Dots land in their cells, lines have no gaps, and nothing leaves the canvas."""

from __future__ import annotations

import random

import pytest
from rich.style import Style

from workbench.tui.charts.braille import Canvas, Layer
from workbench.tui.glyphs import BLOCKS, PLAIN, Glyphs

BASE = Style(bgcolor="black")
RED, BLUE = Style(color="red"), Style(color="blue")


def text(canvas: Canvas) -> list[str]:
    return ["".join(segment.text for segment in row) for row in canvas.rows(BASE)]


def dots(canvas: Canvas) -> set[tuple[int, int]]:
    """The dots that are drawn, read from the characters."""
    found = set()
    bits = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2), 6: (0, 3), 7: (1, 3)}
    for row, line in enumerate(text(canvas)):
        for column, character in enumerate(line):
            mask = 0 if character == " " else ord(character) - 0x2800
            for bit, (right, down) in bits.items():
                if mask >> bit & 1:
                    found.add((2 * column + right, 4 * row + down))
    return found


def test_every_dot_lands_in_its_place() -> None:
    for x in range(4):
        for y in range(8):
            canvas = Canvas(2, 2, BLOCKS)
            canvas.dot(x, y, canvas.layer(Layer(RED)))
            assert dots(canvas) == {(x, y)}


def test_a_span_is_all_dots_between_its_ends() -> None:
    for top in range(-2, 14):
        for bottom in range(-2, 14):
            canvas = Canvas(1, 3, BLOCKS)
            canvas.span(1, top, bottom, canvas.layer(Layer(RED)))
            assert dots(canvas) == {(1, y) for y in range(max(0, top), min(11, bottom) + 1)}


def test_a_line_has_no_gaps_and_one_dot_a_column_where_it_is_flat() -> None:
    chance = random.Random(11)
    for _ in range(300):
        canvas = Canvas(10, 5, BLOCKS)
        x0, x1 = sorted(chance.sample(range(20), 2))
        y0, y1 = chance.randrange(20), chance.randrange(20)
        canvas.line(x0, y0, x1, y1, canvas.layer(Layer(RED)))
        drawn = dots(canvas)
        assert {(x0, y0), (x1, y1)} <= drawn
        assert {x for x, _ in drawn} == set(range(x0, x1 + 1))
        assert {y for _, y in drawn} == set(range(min(y0, y1), max(y0, y1) + 1))
        for x in range(x0, x1):
            here, there = ([y for column, y in drawn if column == at] for at in (x, x + 1))
            assert min(abs(a - b) for a in here for b in there) <= 1
        if abs(y1 - y0) <= x1 - x0:
            assert len(drawn) == x1 - x0 + 1


def test_a_cell_shows_the_layer_that_drew_last_and_not_what_lies_beneath() -> None:
    canvas = Canvas(2, 1, BLOCKS)
    below, above = canvas.layer(Layer(RED)), canvas.layer(Layer(BLUE))
    canvas.span(0, 0, 3, below)
    canvas.span(2, 0, 3, below)
    canvas.dot(1, 1, above)
    assert dots(canvas) == {(1, 1), (2, 0), (2, 1), (2, 2), (2, 3)}
    assert [segment.style for segment in canvas.rows(BASE)[0]] == [BASE + BLUE, BASE + RED]


def test_written_characters_give_way_to_what_is_drawn_later() -> None:
    canvas = Canvas(4, 1, BLOCKS)
    below, above = canvas.layer(Layer(RED)), canvas.layer(Layer(BLUE))
    canvas.write(-1, 0, "abcdef", below)
    assert text(canvas) == ["bcde"]
    canvas.dot(2, 0, above)
    assert text(canvas) == ["b⠁de"]


def test_in_ascii_each_layer_has_its_character() -> None:
    canvas = Canvas(5, 3, PLAIN)
    first, second = canvas.layer(Layer(RED, "*")), canvas.layer(Layer(BLUE, "+"))
    canvas.line(0, 0, 4, 2, first)
    canvas.span(4, -1, 1, second)
    assert text(canvas) == ["**  +", "  * +", "   **"]


@pytest.mark.parametrize("glyphs", [BLOCKS, PLAIN], ids=["blocks", "ascii"])
def test_whatever_is_drawn_the_rows_keep_their_size(glyphs: Glyphs) -> None:
    chance = random.Random(12)
    for _ in range(300):
        width, height = chance.randrange(0, 12), chance.randrange(0, 6)
        canvas = Canvas(width, height, glyphs)
        layers = [canvas.layer(Layer(RED)), canvas.layer(Layer(BLUE, "+"))]
        for _ in range(10):
            a, b, c, d = (chance.randrange(-50, 80) for _ in "abcd")
            layer = chance.choice(layers)
            canvas.line(min(a, c), b, max(a, c), d, layer)
            canvas.span(a, b, d, layer)
            canvas.write(a, b, "xyz", layer)
        rows = text(canvas)
        assert [len(row) for row in rows] == [width] * height
        if glyphs.ascii:
            assert "".join(rows).isascii()


def test_too_many_layers_are_refused() -> None:
    canvas = Canvas(1, 1, BLOCKS)
    for _ in range(255):
        canvas.layer(Layer(RED))
    with pytest.raises(ValueError, match="255"):
        canvas.layer(Layer(RED))
