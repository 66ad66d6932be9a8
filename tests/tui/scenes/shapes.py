"""Characters that are drawings, as SVG paths: blocks, braille and the lines of boxes.

Fonts draw them smaller than their cells, or wider, or not at all; as paths they meet. Invariant: what is drawn lies
within its cell.
"""

from __future__ import annotations

WIDTH, HEIGHT = 12, 24
_MIDDLE, _CENTRE = WIDTH // 2, HEIGHT // 2
_SHADES = {"░": 0.2, "▒": 0.45, "▓": 0.7}
_BELOW = "▁▂▃▄▅▆▇█"
_LEFT = "█▉▊▋▌▍▎▏"
_HALVES = {
    "▀": (0, 0, WIDTH, _CENTRE),
    "▐": (_MIDDLE, 0, _MIDDLE, HEIGHT),
    "▔": (0, 0, WIDTH, 3),
    "▕": (10.5, 0, 1.5, HEIGHT),
}
_QUARTERS = {
    "▖": "2",
    "▗": "3",
    "▘": "0",
    "▝": "1",
    "▚": "03",
    "▞": "12",
    "▙": "023",
    "▛": "012",
    "▜": "013",
    "▟": "123",
}
_LINES = {
    "─": (0, _CENTRE, "h12"),
    "━": (0, _CENTRE, "h12"),
    "│": (_MIDDLE, 0, "v24"),
    "┃": (_MIDDLE, 0, "v24"),
    "╭": (WIDTH, _CENTRE, "h-2q-4 0 -4 4v8"),
    "╮": (0, _CENTRE, "h2q4 0 4 4v8"),
    "╰": (WIDTH, _CENTRE, "h-2q-4 0 -4 -4v-8"),
    "╯": (0, _CENTRE, "h2q4 0 4 -4v-8"),
    "┌": (WIDTH, _CENTRE, "h-6v12"),
    "┐": (0, _CENTRE, "h6v12"),
    "└": (WIDTH, _CENTRE, "h-6v-12"),
    "┘": (0, _CENTRE, "h6v-12"),
}
"""Where a line begins in its cell, and how it goes on."""
_DOTS = ((3, 3), (3, 9), (3, 15), (9, 3), (9, 9), (9, 15), (3, 21), (9, 21))
"""Where the eight dots of braille lie, from the lowest bit."""


def is_drawn(sign: str) -> bool:
    """Whether `shapes` draws this character."""
    return sign in _SHADES or sign in _LINES or _boxes(sign) is not None or "\u2800" <= sign <= "\u28ff"


def shapes(text: str, column: int, row: int, colour: str) -> str:
    """SVG of characters that are all drawn, the first in this cell."""
    made: dict[str, list[str]] = {}
    for number, sign in enumerate(text):
        at_x, at_y = (column + number) * WIDTH, row * HEIGHT
        if sign in _SHADES:
            made.setdefault(f'fill="{colour}" opacity="{_SHADES[sign]}"', []).append(
                _box(at_x, at_y, (0, 0, WIDTH, HEIGHT))
            )
        elif sign in _LINES:
            width = 3 if sign in "━┃" else 1.5
            look = f'fill="none" stroke="{colour}" stroke-width="{width}"'
            x, y, rest = _LINES[sign]
            made.setdefault(look, []).append(f"M{at_x + x} {at_y + y}{rest}")
        elif "\u2800" <= sign <= "\u28ff":
            look = f'fill="none" stroke="{colour}" stroke-width="3.6" stroke-linecap="round"'
            bits = ord(sign) - 0x2800
            dots = (f"M{at_x + x} {at_y + y}h0" for bit, (x, y) in enumerate(_DOTS) if bits >> bit & 1)
            made.setdefault(look, []).extend(dots)
        else:
            boxes = _boxes(sign) or []
            look = f'fill="{colour}" shape-rendering="crispEdges"'
            made.setdefault(look, []).extend(_box(at_x, at_y, box) for box in boxes)
    return "".join(f'<path {look} d="{"".join(parts)}"/>' for look, parts in made.items() if parts)


Box = tuple[float, float, float, float]
"""Left, top, width and height within a cell."""


def _boxes(sign: str) -> list[Box] | None:
    """A block element as boxes; None where it is none."""
    if sign in _BELOW:
        part = HEIGHT * (_BELOW.index(sign) + 1) / 8
        return [(0, HEIGHT - part, WIDTH, part)]
    if sign in _LEFT:
        return [(0, 0, WIDTH * (8 - _LEFT.index(sign)) / 8, HEIGHT)]
    if sign in _HALVES:
        return [_HALVES[sign]]
    if sign in _QUARTERS:
        return [(_MIDDLE * (int(q) % 2), _CENTRE * (int(q) // 2), _MIDDLE, _CENTRE) for q in _QUARTERS[sign]]
    return None


def _box(x: float, y: float, box: Box) -> str:
    left, top, width, height = box
    return f"M{x + left:g} {y + top:g}h{width:g}v{height:g}h{-width:g}z"
