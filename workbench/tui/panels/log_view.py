"""A run's log: followed, searched, filtered and copied from, however large the file is.

A window of lines is held, never the whole file; reading happens in a thread, one task at a time, and comes back as a
message. Invariant: the window is one stretch of the file, at most MAX_LINES lines of the chosen level.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import REVERSED, Line, clean, cut
from workbench.tui.panels.log_file import (
    LEVELS,
    Level,
    LogLine,
    Piece,
    find,
    read_after,
    read_before,
    read_end,
    read_new,
)
from workbench.tui.panels.panel import Panel
from workbench.tui.panels.units import amount

MAX_LINES = 5000
PAGE_LINES = 1000
_PAN_COLUMNS = 20
_LEVEL_NAMES: dict[Level, str] = {"all": "", "warning": "warnings and errors", "error": "errors"}
Stopped = Callable[[], bool]


@dataclass(frozen=True)
class _Found:
    """The answer to a search."""

    offset: int | None
    around: Piece | None
    """Lines before and after it, where the window does not have it."""


class LogView(Panel):
    TITLE = "Log"
    HELP: ClassVar[str | None] = """\
### Log

What the run has printed (`train.log`), the newest line at the bottom.

- `f` follows the end of the log or stays; moving up stays, `end` follows again. `home` goes to the first line.
- `/` searches: type a text and press enter. The search goes up from the current line, as one reads a log from
  its end; `n` goes on upwards, `N` downwards. Capitals and small letters are the same. `esc` ends the search.
- `e` shows all lines, warnings and errors, or errors alone. A line counts as an error by its words (error,
  traceback, cannot, out of memory and the like); `!` and a cross in front of a line mark both.
- `y` copies the current line. Left and right move long lines sideways.

Files of any size open at once: only the part around what is seen is read.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", id="log.follow", show=False),
        Binding("slash", "search", "Search", id="log.search", show=False),
        Binding("n", "next(False)", "Next above", id="log.next", show=False),
        Binding("N", "next(True)", "Next below", id="log.previous", show=False),
        Binding("e", "level", "Level", id="log.level", show=False),
        Binding("y", "copy", "Copy line", id="log.copy", show=False),
        Binding("left", "pan(-1)", "Left", id="log.left", show=False),
        Binding("right", "pan(1)", "Right", id="log.right", show=False),
        Binding("escape", "end_search", "End search", id="log.end_search", show=False),
    ]

    class Read(Message):
        """A task in the thread is done."""

        def __init__(self, turn: int, done: Callable[[], None]) -> None:
            super().__init__()
            self.turn = turn
            self.done = done

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self.path: Path | None = None
        self.following = True
        self.level: Level = "all"
        self.searched = ""
        """What is searched for; "" where nothing is."""
        self._window: list[LogLine] = []
        self._known = Piece()
        """Of the window its begin and end, of the file what was seen last; its lines are in the window alone."""
        self._at_end = True
        """Whether the window reaches to the end of the file."""
        self._current = 0
        self._top = 0
        self._pan = 0
        self._typed: str | None = None
        """The search that is being typed; None where none is."""
        self._told = ""
        self._turn = 0
        self._busy = False

    # What screens use.

    def open(self, path: Path) -> None:
        """Show this file from now on; `look` reads it."""
        self.path = path
        self.following = True
        self._forget()
        self.look()

    def look(self) -> None:
        """Read what has come since, in a thread; while that goes on, or a search, nothing is done."""
        if self.path is None or self._busy or not self.is_mounted:
            return
        path, known, level = self.path, self._known, self.level
        if known.identity == (0, 0):
            self._begin(lambda stopped: read_end(path, level, PAGE_LINES, stopped), self._replace)
        elif self._at_end:
            self._begin(lambda stopped: read_new(path, known, level, PAGE_LINES, stopped), self._append)

    @property
    def current(self) -> LogLine | None:
        """The line that the keys act on."""
        return self._window[self._current] if self._current < len(self._window) else None

    # Reading in a thread.

    def _begin(self, job: Callable[[Stopped], Piece | _Found | None], then: Callable[..., None]) -> None:
        """Do `job` in a thread and then `then` with its answer here; what was going on is given up."""
        self._turn += 1
        turn = self._turn
        self._busy = True

        def stopped() -> bool:
            return turn != self._turn

        def work() -> None:
            answer = job(stopped)
            if not stopped():
                self.post_message(self.Read(turn, lambda: then(answer)))

        self.run_worker(work, thread=True, group="log", exit_on_error=False)

    def on_log_view_read(self, message: Read) -> None:
        message.stop()
        if message.turn == self._turn:
            self._busy = False
            message.done()

    def on_unmount(self) -> None:
        self._turn += 1

    def _forget(self) -> None:
        self._turn += 1
        self._busy = False
        self._window, self._known = [], Piece()
        self._current = self._top = 0
        self._at_end = True
        self.changed()

    def _replace(self, piece: Piece) -> None:
        """The window is this piece now, the end of the file; what was read of one that is gone stays."""
        if piece.problem and self._window:
            return
        self._window = list(piece.lines)
        self._known = replace(piece, lines=())
        self._at_end = True
        self._go_to(len(self._window) - 1)

    def _append(self, piece: Piece | None) -> None:
        if piece is None:
            return
        if piece.problem:
            self._known = replace(self._known, problem=piece.problem, identity=(0, 0))
            self._told = clean(piece.problem, self.glyphs)
            self.changed()
            return
        if piece.start != self._known.end or piece.identity != self._known.identity:
            self.following = True
            self._replace(piece)
            return
        self._window += piece.lines
        self._known = replace(piece, lines=(), start=self._known.start)
        extra = len(self._window) - MAX_LINES
        if extra > 0:
            # Where one reads further up, what is read stays and the end is taken up again later.
            if self.following or self._top >= extra:
                self._drop_first(extra)
            else:
                self._drop_last()
        if self.following:
            self._go_to(len(self._window) - 1)
        else:
            self.changed()

    def _prepend(self, piece: Piece) -> None:
        if piece.problem or not self._window or piece.end > self._window[0].offset:
            return
        self._window = [*piece.lines, *self._window]
        self._known = replace(self._known, start=piece.start)
        self._current += len(piece.lines)
        self._top += len(piece.lines)
        self._drop_last()
        self.changed()

    def _extend(self, piece: Piece) -> None:
        """What comes after a window that did not reach the end."""
        if piece.problem:
            return
        self._window += piece.lines
        self._known = replace(piece, lines=(), start=self._known.start)
        self._at_end = not piece.lines or piece.end >= piece.size
        self._drop_first(len(self._window) - MAX_LINES)
        self.changed()

    def _drop_first(self, count: int) -> None:
        if count > 0:
            del self._window[:count]
            self._known = replace(self._known, start=self._window[0].offset)
            self._current = max(0, self._current - count)
            self._top = max(0, self._top - count)

    def _drop_last(self) -> None:
        if len(self._window) > MAX_LINES:
            end = self._window[MAX_LINES].offset
            del self._window[MAX_LINES:]
            self._known = replace(self._known, end=end, mark=b"", tail="")
            self._at_end = False

    def _read_on(self) -> None:
        """Fetch what lies beyond the window where the current line comes near its end."""
        if self.path is None or self._busy or not self._window:
            return
        path, level, known = self.path, self.level, self._known
        near = max(2 * self._drawn_size.height, PAGE_LINES // 2)
        if self._current < near and known.start > 0:
            start = known.start
            self._begin(lambda stopped: read_before(path, start, level, PAGE_LINES, stopped), self._prepend)
        elif not self._at_end and self._current >= len(self._window) - near:
            end = known.end
            self._begin(lambda stopped: read_after(path, end, level, PAGE_LINES, stopped), self._extend)

    # Drawing.

    def heading(self) -> tuple[str, ...]:
        marks = []
        if self.following:
            marks.append("following")
        if self.level != "all":
            marks.append(_LEVEL_NAMES[self.level])
        if self.searched:
            marks.append(f"/{clean(self.searched, self.glyphs)}")
        return (self.separator.join(marks), marks[-1] if marks else "")

    def footing(self) -> str:
        if self._told:
            return self._told
        size = self._known.size
        if not size or not self.current:
            return ""
        return f"{100 * self.current.offset // size} % of {amount(size)}"

    def lines(self, width: int, height: int) -> list[Line]:
        if self.path is None or (not self._window and not self._known.tail):
            what = self._known.problem or ("Reading." if self._busy else "The log is empty.")
            if self._known.size and not self._busy:
                what = f"No {_LEVEL_NAMES[self.level] or 'lines'} in the log."
            out = self.note(clean("No log is shown." if self.path is None else what, self.glyphs), width)[
                :height
            ]
        else:
            out = self._text_lines(width, height - (self._typed is not None))
        if self._typed is not None:
            out = out[: height - 1]
            typed = clean(self._typed, self.glyphs)
            prompt = self.write(f"/{typed[-(width - 2) :]}", "strong")
            out += [[]] * (height - 1 - len(out)) + [[*prompt, Segment(" ", self.pen("") + REVERSED)]]
        return out

    def _text_lines(self, width: int, height: int) -> list[Line]:
        tail = self._known.tail if self._at_end and self.level == "all" else ""
        last = len(self._window) - height + bool(tail)
        if self.following:
            self._top = last
        elif self._current < self._top:
            self._top = self._current
        elif self._current >= self._top + height:
            self._top = self._current - height + 1
        self._top = max(0, min(self._top, last))
        out = [
            self._text_line(line, self._top + y == self._current, width)
            for y, line in enumerate(self._window[self._top : self._top + height])
        ]
        if tail and len(out) < height:
            out.append(
                [*self.write("  "), *self.write(cut(clean(tail, self.glyphs), width - 2, self.glyphs), "dim")]
            )
        return out

    def _text_line(self, line: LogLine, current: bool, width: int) -> Line:
        pen = {"all": "", "warning": "warning", "error": "bad"}[line.level]
        mark = {"all": " ", "warning": self.glyphs.warning, "error": self.glyphs.bad}[line.level]
        pointer = self.write(self.glyphs.selected if current else " ", "mark")
        whole = clean(line.text, self.glyphs)
        shown = cut(whole[self._pan :], width - 2, self.glyphs)
        out = [*pointer, *self.write(mark, pen)]
        if not self.searched:
            return [*out, Segment(shown, self.pen(pen))]
        needle, lower, at = self.searched.lower(), shown.lower(), 0
        if len(lower) == len(shown):
            while (hit := lower.find(needle, at)) >= 0:
                out += [Segment(shown[at:hit], self.pen(pen))]
                at = hit + len(needle)
                out += [Segment(shown[hit:at], self.pen(pen) + REVERSED)]
        return [*out, Segment(shown[at:], self.pen(pen))]

    # Moving.

    def _go_to(self, index: int) -> None:
        self._current = max(0, min(index, len(self._window) - 1))
        self._told = ""
        self.changed()
        self._read_on()

    def action_scroll_rows(self, rows: int) -> None:
        if rows < 0:
            self.following = False
        self._go_to(self._current + rows)

    def action_scroll_pages(self, pages: int) -> None:
        self.action_scroll_rows(pages * max(1, self._drawn_size.height - 1))

    def action_scroll_first(self) -> None:
        self.following = False
        if self.path is None or self._known.start == 0:
            self._go_to(0)
            return
        path, level = self.path, self.level

        def take(piece: Piece) -> None:
            self._show_from_start(piece)

        self._begin(lambda stopped: read_after(path, 0, level, PAGE_LINES, stopped), take)

    def _show_from_start(self, piece: Piece) -> None:
        self._window = list(piece.lines)
        self._known = replace(piece, lines=())
        self._at_end = piece.end >= piece.size
        self._go_to(0)

    def action_scroll_last(self) -> None:
        self.following = True
        if self._at_end:
            self._go_to(len(self._window) - 1)
        else:
            self._forget()
            self.look()

    def action_follow(self) -> None:
        if self.following:
            self.following = False
            self.changed()
        else:
            self.action_scroll_last()

    def action_pan(self, direction: int) -> None:
        longest = max((len(line.text) for line in self._window[self._top : self._top + 200]), default=0)
        self._pan = max(0, min(self._pan + direction * _PAN_COLUMNS, longest))
        self.changed()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_rows(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_rows(3)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and self._top + offset.y < len(self._window):
            self.following = False
            self._go_to(self._top + offset.y)

    # Level, search and copy.

    def action_level(self) -> None:
        """All lines, then warnings and errors, then errors."""
        self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]
        self.following = True
        self._forget()
        self.look()

    def action_copy(self) -> None:
        if self.current is not None:
            self.app.copy_to_clipboard(self.current.text)
            self._told = "copied"
            self.changed()

    def action_search(self) -> None:
        self._typed = ""
        self.changed()

    def action_end_search(self) -> None:
        if self.searched:
            self.searched = ""
            self._told = ""
            self.changed()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return self._typed is not None and character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        if self._typed is None:
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self.searched, self._typed = self._typed, None
            self.changed()
            self.action_next(False)
        elif event.key == "escape":
            self._typed = None
        elif event.key in ("backspace", "ctrl+h"):
            self._typed = self._typed[:-1]
        elif event.is_printable and event.character:
            self._typed += event.character
        self.changed()

    def on_paste(self, event: events.Paste) -> None:
        if self._typed is not None:
            event.stop()
            self._typed += event.text.splitlines()[0] if event.text else ""
            self.changed()

    def action_next(self, down: bool) -> None:
        """To the next line with the text, above the current one or below it."""
        if not self.searched or self.path is None or self.current is None:
            return
        path, text, level, at = self.path, self.searched, self.level, self.current.offset
        if not down and self.following:
            # The newest line counts as well.
            at = self._known.end
        first, end = self._window[0].offset, self._known.end

        def job(stopped: Stopped) -> _Found:
            offset = find(path, text, at, down=down, wanted=level, stopped=stopped)
            if offset is None or first <= offset < end:
                return _Found(offset, None)
            before = read_before(path, offset, level, PAGE_LINES // 2, stopped)
            after = read_after(path, offset, level, PAGE_LINES // 2, stopped)
            around = replace(after, lines=before.lines + after.lines, start=before.start)
            return _Found(offset, around)

        self._told = "searching"
        self.changed()
        self._begin(job, lambda found: self._show_found(found, down))

    def _show_found(self, found: _Found, down: bool) -> None:
        if found.offset is None:
            self._told = f"not found {'below' if down else 'above'}"
            self.changed()
            return
        self.following = False
        if found.around is not None:
            self._window = list(found.around.lines)
            self._known = replace(found.around, lines=())
            self._at_end = found.around.end >= found.around.size
        self._go_to(bisect_left([line.offset for line in self._window], found.offset))
