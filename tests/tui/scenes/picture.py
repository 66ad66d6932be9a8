"""What an application shows, as cells with colours, and as an SVG that is written by rows.

The application's own screenshot is read back: its names are made anew from its content at every change, and it says
each cell's place to a fraction. Invariant: of what can be seen nothing is lost; the same picture is the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape, unescape
from itertools import groupby
from typing import Any

from emulated_terminal import EmulatedTerminal
from rich.cells import cell_len
from textual.app import App

from scenes.shapes import HEIGHT as CELL_HEIGHT
from scenes.shapes import WIDTH as CELL_WIDTH
from scenes.shapes import is_drawn, shapes

_RICH_WIDTH, _RICH_HEIGHT = 12.2, 24.4
_FONT_SIZE = 19.93
"""At which DejaVu Sans Mono is CELL_WIDTH wide."""
_RULE = re.compile(r"\.terminal-\d+-r(\d+) \{ ([^}]*) \}")
_RECT = re.compile(
    r'<rect fill="(#[0-9a-f]{6})" x="([\d.e+]+)" y="([\d.e+]+)" width="([\d.e+]+)" height="24.65" shape'
)
_TEXT = re.compile(r'<text class="terminal-\d+-r(\d+)" x="([\d.e+]+)" [^>]*line-(\d+)\)">([^<]*)</text>')
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">
<style>text{{font:{size}px "DejaVu Sans Mono","Fira Code",monospace}}{styles}</style>
<rect width="{width}" height="{height}" fill="{background}"/>
"""


@dataclass(frozen=True)
class Piece:
    """Cells of one row that look alike. `style`: CSS without the background."""

    column: int
    cells: int
    text: str
    style: str
    background: str


@dataclass(frozen=True)
class Picture:
    """Rows from the top; each row's pieces from the left, without gaps."""

    width: int
    height: int
    rows: tuple[tuple[Piece, ...], ...]

    @property
    def lines(self) -> list[str]:
        """The characters alone."""
        return ["".join(piece.text for piece in row) for row in self.rows]

    @property
    def colours(self) -> set[str]:
        """All colours that are seen, "#rrggbb"."""
        found = {piece.background for row in self.rows for piece in row}
        for row in self.rows:
            for piece in row:
                found.update(re.findall("#[0-9a-f]{6}", piece.style))
        return found

    def replaced(self, text: str, by: str) -> Picture:
        """With `by`, which is as long, in the place of `text`."""
        assert len(text) == len(by)
        rows = tuple(
            tuple(Piece(p.column, p.cells, p.text.replace(text, by), p.style, p.background) for p in row)
            for row in self.rows
        )
        return Picture(self.width, self.height, rows)

    def svg(self, *, exact: bool = False) -> str:
        """The picture, one row a line. `exact`: to be looked at, every piece as wide as its cells in any font."""
        styles = sorted({piece.style for row in self.rows for piece in row if piece.text.strip()})
        ground = self._ground()
        head = _HEAD.format(
            width=self.width * CELL_WIDTH,
            height=self.height * CELL_HEIGHT,
            size=_FONT_SIZE,
            styles="".join(f".{_name(style)}{{{style}}}" for style in styles),
            background=ground,
        )
        rows = ("".join(_drawn(row, y, ground, exact)) for y, row in enumerate(self.rows))
        return head + "\n".join(rows) + "\n</svg>\n"

    def _ground(self) -> str:
        """The background of most cells."""
        cells: dict[str, int] = {}
        for row in self.rows:
            for piece in row:
                cells[piece.background] = cells.get(piece.background, 0) + piece.cells
        return max(sorted(cells), key=cells.__getitem__)


def picture_of(app: App[Any]) -> Picture:
    """What `app` shows now."""
    width, height = app.size
    return read_screenshot(app.export_screenshot(simplify=True), width, height)


def picture_in(terminal: EmulatedTerminal) -> Picture:
    """What `terminal` shows now."""
    width, height = terminal.size
    grounds = [["#000000"] * width for _ in range(height)]
    signs: list[list[tuple[str, str]]] = [[(" ", "")] * width for _ in range(height)]
    for column, row, cell in terminal.cells():
        style = ["fill: #" + bytes(cell.text).hex()]
        style += ["font-weight: bold"] * cell.is_bold + ["text-decoration: underline"] * cell.is_underlined
        signs[row][column] = cell.sign, ";".join(style)
        grounds[row][column] = "#" + bytes(cell.background).hex()
    return _joined(signs, grounds)


def read_screenshot(svg: str, width: int, height: int) -> Picture:
    """The picture in a screenshot that Textual has exported.

    Raises:
        ValueError: there is something in it that is not understood.
    """
    styles = {number: ";".join(filter(None, css.split(";"))) for number, css in _RULE.findall(svg)}
    grounds = [["#000000"] * width for _ in range(height)]
    for colour, x, y, cells in _RECT.findall(svg):
        column = _whole(float(x) / _RICH_WIDTH)
        row = _whole((float(y) - 1.5) / _RICH_HEIGHT)
        for cell in range(column, column + _whole(float(cells) / _RICH_WIDTH)):
            grounds[row][cell] = colour
    signs: list[list[tuple[str, str]]] = [[(" ", "")] * width for _ in range(height)]
    texts = _TEXT.findall(svg)
    if len(texts) != len(re.findall(r'<text class="terminal-\d+-r', svg)):
        raise ValueError("a screenshot has texts that are not understood")
    for style, x, row, text in texts:
        column = _whole(float(x) / _RICH_WIDTH)
        for sign in unescape(text).rstrip("\n").replace("\xa0", " "):
            signs[int(row)][column] = sign, styles[style]
            for extra in range(column + 1, column + cell_len(sign)):
                signs[int(row)][extra] = "", styles[style]
            column += cell_len(sign)
    return _joined(signs, grounds)


def _joined(signs: list[list[tuple[str, str]]], grounds: list[list[str]]) -> Picture:
    rows = tuple(tuple(_pieces(row, ground)) for row, ground in zip(signs, grounds, strict=True))
    return Picture(len(grounds[0]), len(grounds), rows)


def _pieces(signs: list[tuple[str, str]], grounds: list[str]) -> Iterator[Piece]:
    """Neighbours that look alike as one. A blank looks like any text, unless there is a line through or under it."""
    start, text, look = 0, "", ""
    for column, (sign, style) in enumerate(signs):
        own = style if sign != " " or "decoration" in style else ""
        if grounds[column] != grounds[start] or (own and look and own != look):
            yield Piece(start, column - start, text, look, grounds[start])
            start, text, look = column, "", ""
        text += sign
        look = look or own
    yield Piece(start, len(signs) - start, text, look, grounds[start])


def _drawn(row: tuple[Piece, ...], y: int, ground: str, exact: bool) -> Iterator[str]:
    for piece in row:
        if piece.background != ground:
            yield (
                f'<rect x="{piece.column * CELL_WIDTH}" y="{y * CELL_HEIGHT}" width="{piece.cells * CELL_WIDTH}" '
                f'height="{CELL_HEIGHT}" fill="{piece.background}"/>'
            )
    for piece in row:
        column = piece.column
        for drawn, signs in groupby(piece.text, key=is_drawn) if exact else [(False, piece.text)]:
            text = "".join(signs)
            if drawn:
                yield shapes(text, column, y, _colour(piece.style))
            else:
                yield from _written(text, column, y, piece.style, exact)
            column += cell_len(text)


def _written(text: str, column: int, y: int, style: str, exact: bool) -> Iterator[str]:
    """Text without the blanks around it, unless they are underlined."""
    if "decoration" not in style:
        column += len(text) - len(text.lstrip())
        text = text.strip()
    if text:
        length = f' textLength="{cell_len(text) * CELL_WIDTH}"' if exact else ""
        yield (
            f'<text class="{_name(style)}" x="{column * CELL_WIDTH}" y="{y * CELL_HEIGHT + 18}"{length}>'
            f"{escape(text, quote=False)}</text>"
        )


def _colour(style: str) -> str:
    return style.partition("fill: ")[2][:7]


def _name(style: str) -> str:
    """A class's name, by what it looks like: other styles of a picture do not change it."""
    words = style.replace("fill: #", "c").replace("font-weight: bold", "b").replace("font-style: italic", "i")
    words = words.replace("text-decoration: underline", "u").replace("text-decoration: line-through", "s")
    return re.sub("[^a-z0-9]", "", words)


def _whole(value: float) -> int:
    number = round(value)
    if abs(value - number) > 0.05:
        raise ValueError(f"a screenshot has something at {value:g} cells")
    return number
