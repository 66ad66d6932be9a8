"""The part of a log that is held in memory, and which of its lines is current: a stretch of the file, moved along it.

No textual. Invariant: the lines are one stretch of the file, at most MAX_LINES lines of the chosen level, and `current`
is one of them where there are any.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from workbench.tui.panels.log.log_file import LogLine, Piece

MAX_LINES = 5000


class LogWindow:
    """Lines, and where one reads in them. What lies beyond them is fetched as `Piece`s by whoever shows it."""

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.known = Piece()
        """Of the lines their begin and end, of the file what was seen last; its own lines are in `lines` alone."""
        self.at_end = True
        """Whether the lines reach to the end of the file."""
        self.current = 0
        """The number of the line that keys act on."""
        self.top = 0
        """The number of the first line that is seen."""

    @property
    def current_line(self) -> LogLine | None:
        return self.lines[self.current] if self.current < len(self.lines) else None

    @property
    def tail(self) -> str:
        """What stands behind the last whole line; empty where the lines do not reach so far."""
        return self.known.tail if self.at_end else ""

    def go_to(self, index: int) -> None:
        """Make the line of this number, or the nearest there is, the current one."""
        self.current = max(0, min(index, len(self.lines) - 1))

    def go_to_offset(self, offset: int) -> None:
        """Make the line at this place of the file, or the one after it, the current one."""
        self.go_to(bisect_left([line.offset for line in self.lines], offset))

    def scroll(self, height: int, *, with_tail: bool, following: bool) -> None:
        """Choose `top` so that the current line is seen in `height` rows; `following`: so that the end is.

        `with_tail`: behind the last line one more row is drawn.
        """
        last = len(self.lines) - height + with_tail
        if following:
            self.top = last
        elif self.current < self.top:
            self.top = self.current
        elif self.current >= self.top + height:
            self.top = self.current - height + 1
        self.top = max(0, min(self.top, last))

    # Pieces of the file.

    def show(self, piece: Piece, *, at_end: bool) -> None:
        """Hold this piece and nothing else."""
        self.lines = list(piece.lines)
        self.known = replace(piece, lines=())
        self.at_end = at_end
        self.go_to(self.current)

    def append(self, piece: Piece, *, following: bool) -> None:
        """What has come at the end of the file since."""
        self.lines += piece.lines
        self.known = replace(piece, lines=(), start=self.known.start)
        extra = len(self.lines) - MAX_LINES
        if extra > 0:
            # Where one reads further up, what is read stays and the end is taken up again later.
            if following or self.top >= extra:
                self._drop_first(extra)
            else:
                self._drop_last()

    def prepend(self, piece: Piece) -> bool:
        """What stands in the file before the lines; False where it is not that."""
        if piece.problem or not self.lines or piece.end > self.lines[0].offset:
            return False
        self.lines = [*piece.lines, *self.lines]
        self.known = replace(self.known, start=piece.start)
        self.current += len(piece.lines)
        self.top += len(piece.lines)
        self._drop_last()
        return True

    def extend(self, piece: Piece) -> None:
        """What comes in the file after lines that do not reach its end."""
        self.lines += piece.lines
        self.known = replace(piece, lines=(), start=self.known.start)
        self.at_end = not piece.lines or piece.end >= piece.size
        self._drop_first(len(self.lines) - MAX_LINES)

    def _drop_first(self, count: int) -> None:
        if count > 0:
            del self.lines[:count]
            self.known = replace(self.known, start=self.lines[0].offset)
            self.current = max(0, self.current - count)
            self.top = max(0, self.top - count)

    def _drop_last(self) -> None:
        if len(self.lines) > MAX_LINES:
            end = self.lines[MAX_LINES].offset
            del self.lines[MAX_LINES:]
            self.known = replace(self.known, end=end, mark=b"", tail="")
            self.at_end = False
