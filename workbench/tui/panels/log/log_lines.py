"""A log's lines as they are drawn: the pointer, the mark of a level, what is searched for; and the search being typed.

Invariant: what is drawn follows from the window and the arguments alone; of the window, drawing moves `top`.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import REVERSED, Line, clean, cut
from workbench.tui.panels.log.log_file import Level, LogLine
from workbench.tui.panels.log.log_window import LogWindow


class LogLines:
    """`pen`: the style of each of a panel's component classes. `searched` ("": nothing) is shown wherever it stands;
    `pan`: characters of each line that are left of what is seen."""

    def __init__(self, glyphs: Glyphs, pen: Callable[[str], Style]) -> None:
        self._glyphs = glyphs
        self._pen = pen

    def draw(
        self,
        window: LogWindow,
        width: int,
        height: int,
        *,
        level: Level,
        following: bool,
        searched: str,
        pan: int,
    ) -> list[Line]:
        """The lines of `window` that are seen, and behind the last one what is not a whole line yet."""
        tail = window.tail if level == "all" else ""
        window.scroll(height, with_tail=bool(tail), following=following)
        out = [
            self._line(line, window.top + y == window.current, width, searched, pan)
            for y, line in enumerate(window.lines[window.top : window.top + height])
        ]
        if tail and len(out) < height:
            shown = cut(clean(tail, self._glyphs), width - 2, self._glyphs)
            out.append([*self._write("  "), *self._write(shown, "dim")])
        return out

    def with_prompt(self, lines: list[Line], typed: str, width: int, height: int) -> list[Line]:
        """The lines, and in the last of `height` rows the search that is being typed."""
        out = lines[: height - 1]
        prompt = self._write(f"/{clean(typed, self._glyphs)[-(width - 2) :]}", "strong")
        out += [[]] * (height - 1 - len(out))
        return [*out, [*prompt, Segment(" ", self._pen("") + REVERSED)]]

    def _write(self, text: str, pen: str = "") -> Line:
        return [Segment(text, self._pen(pen))]

    def _line(self, line: LogLine, current: bool, width: int, searched: str, pan: int) -> Line:
        pen = {"all": "", "warning": "warning", "error": "bad"}[line.level]
        mark = {"all": " ", "warning": self._glyphs.warning, "error": self._glyphs.bad}[line.level]
        pointer = self._write(self._glyphs.selected if current else " ", "mark")
        whole = clean(line.text, self._glyphs)
        shown = cut(whole[pan:], width - 2, self._glyphs)
        out = [*pointer, *self._write(mark, pen)]
        if not searched:
            return [*out, Segment(shown, self._pen(pen))]
        needle, lower, at = searched.lower(), shown.lower(), 0
        if len(lower) == len(shown):
            while (hit := lower.find(needle, at)) >= 0:
                out += [Segment(shown[at:hit], self._pen(pen))]
                at = hit + len(needle)
                out += [Segment(shown[hit:at], self._pen(pen) + REVERSED)]
        return [*out, Segment(shown[at:], self._pen(pen))]
