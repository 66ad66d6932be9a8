"""What is read of a log, and when: its end, what has come since, what lies around the current line, what is searched.

Reading happens in a thread, one task at a time. No textual. Invariant: what was given up changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import clean
from workbench.tui.panels.log.log_file import (
    LEVELS,
    Level,
    Piece,
    read_after,
    read_before,
    read_end,
    read_new,
)
from workbench.tui.panels.log.log_search import Found, Search, Stopped, search
from workbench.tui.panels.log.log_window import LogWindow

PAGE_LINES = 1000

Work = Callable[[], Callable[[], None] | None]
"""For a thread; what it returns is for the thread that the screen is in."""


class LogReading:
    """Keeps `window` filled with lines of `path`.

    `in_thread` starts such work, `changed` is called when there is something else to be seen, `rows` says how many rows
    there are to see it in.
    """

    def __init__(
        self,
        glyphs: Glyphs,
        in_thread: Callable[[Work], None],
        changed: Callable[[], None],
        rows: Callable[[], int],
    ) -> None:
        self.path: Path | None = None
        self.following = True
        self.level: Level = "all"
        self.window = LogWindow()
        self.busy = False
        self.told = ""
        """What there is to say of the file, or of a search; "" where there is nothing."""
        self._glyphs = glyphs
        self._in_thread = in_thread
        self._changed = changed
        self._rows = rows
        self._turn = 0

    def open(self, path: Path) -> None:
        """Show this file from now on; `look` reads it."""
        self.path = path
        self.following = True
        self.forget()

    def look(self) -> None:
        """Read what has come since; while a task goes on nothing is done."""
        if self.path is None or self.busy:
            return
        path, known, level = self.path, self.window.known, self.level
        if known.identity == (0, 0):
            self.begin(lambda stopped: read_end(path, level, PAGE_LINES, stopped), self._replace)
        elif self.window.at_end:
            self.begin(lambda stopped: read_new(path, known, level, PAGE_LINES, stopped), self._append)

    def begin(self, job: Callable[[Stopped], Any], then: Callable[[Any], None]) -> None:
        """Do `job` in a thread and then `then` with its answer here; what was going on is given up."""
        self._turn += 1
        turn = self._turn
        self.busy = True

        def stopped() -> bool:
            return turn != self._turn

        def work() -> Callable[[], None] | None:
            answer = job(stopped)
            return None if stopped() else lambda: finish(answer)

        def finish(answer: Any) -> None:
            if not stopped():
                self.busy = False
                then(answer)

        self._in_thread(work)

    def give_up(self) -> None:
        """Nothing of what is going on is wanted any more."""
        self._turn += 1
        self.busy = False

    def forget(self) -> None:
        """Hold no lines; `look` reads the end of the file."""
        self.give_up()
        self.window = LogWindow()
        self._changed()

    # Where one reads.

    def go_to(self, index: int) -> None:
        """Make the line of this number, or the nearest there is, the current one."""
        self.window.go_to(index)
        self.told = ""
        self._changed()
        self._read_on()

    def go_to_first(self) -> None:
        """To the first line of the file."""
        self.following = False
        if self.path is None or self.window.known.start == 0:
            self.go_to(0)
            return
        path, level = self.path, self.level
        self.begin(lambda stopped: read_after(path, 0, level, PAGE_LINES, stopped), self._show_from_start)

    def go_to_last(self) -> bool:
        """To the last line, to follow; False where it is not at hand, but has to be looked for."""
        self.following = True
        if self.window.at_end:
            self.go_to(len(self.window.lines) - 1)
            return True
        self.forget()
        return False

    def next_level(self) -> None:
        """All lines, then warnings and errors, then errors; `look` reads them."""
        self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]
        self.following = True
        self.forget()

    def search(self, text: str, *, down: bool) -> None:
        """To the next line with this text, above the current one or below it."""
        current = self.window.current_line
        if not text or self.path is None or current is None:
            return
        path, level, window, at = self.path, self.level, self.window, current.offset
        if not down and self.following:
            # The newest line counts as well.
            at = window.known.end
        wanted = Search(text, at, down, window.lines[0].offset, window.known.end)
        self.told = "searching"
        self._changed()
        self.begin(
            lambda stopped: search(path, wanted, level, PAGE_LINES, stopped),
            lambda found: self._show_found(found, down),
        )

    # What becomes of what was read.

    def _replace(self, piece: Piece) -> None:
        """Show this piece, the end of the file; what was read of one that is gone stays."""
        if piece.problem and self.window.lines:
            return
        self.window.show(piece, at_end=True)
        self.go_to(len(self.window.lines) - 1)

    def _append(self, piece: Piece | None) -> None:
        if piece is None:
            return
        known = self.window.known
        if piece.problem:
            self.window.known = replace(known, problem=piece.problem, identity=(0, 0))
            self.told = clean(piece.problem, self._glyphs)
            self._changed()
        elif piece.start != known.end or piece.identity != known.identity:
            self.following = True
            self._replace(piece)
        else:
            self.window.append(piece, following=self.following)
            if self.following:
                self.go_to(len(self.window.lines) - 1)
            else:
                self._changed()

    def _prepend(self, piece: Piece) -> None:
        if self.window.prepend(piece):
            self._changed()

    def _extend(self, piece: Piece) -> None:
        if not piece.problem:
            self.window.extend(piece)
            self._changed()

    def _show_from_start(self, piece: Piece) -> None:
        self.window.show(piece, at_end=piece.end >= piece.size)
        self.go_to(0)

    def _show_found(self, found: Found, down: bool) -> None:
        if found.offset is None:
            self.told = f"not found {'below' if down else 'above'}"
            self._changed()
            return
        self.following = False
        if found.around is not None:
            self.window.show(found.around, at_end=found.around.end >= found.around.size)
        self.window.go_to_offset(found.offset)
        self.go_to(self.window.current)

    def _read_on(self) -> None:
        """Fetch what lies beyond the window where the current line comes near its end."""
        if self.path is None or self.busy or not self.window.lines:
            return
        path, level, window = self.path, self.level, self.window
        near = max(2 * self._rows(), PAGE_LINES // 2)
        if window.current < near and window.known.start > 0:
            start = window.known.start
            self.begin(lambda stopped: read_before(path, start, level, PAGE_LINES, stopped), self._prepend)
        elif not window.at_end and window.current >= len(window.lines) - near:
            end = window.known.end
            self.begin(lambda stopped: read_after(path, end, level, PAGE_LINES, stopped), self._extend)
