"""A run's log: followed, searched, filtered and copied from, however large the file is.

A window of lines is held, never the whole file; `LogReading` fills it, `LogLines` draws it. Here are the panel's keys,
the mouse and the search while it is typed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.formatting import amount
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean
from workbench.tui.panels.log.log_file import Level, LogLine
from workbench.tui.panels.log.log_lines import LogLines
from workbench.tui.panels.log.log_reading import LogReading, Work
from workbench.tui.panels.panel import Panel

_PAN_COLUMNS = 20
_LEVEL_NAMES: dict[Level, str] = {"all": "", "warning": "warnings and errors", "error": "errors"}


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

        def __init__(self, done: Callable[[], None]) -> None:
            super().__init__()
            self.done = done

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self.reading = LogReading(glyphs, self._in_thread, self.changed, lambda: self.drawn_size.height)
        self.searched = ""
        """What is searched for; "" where nothing is."""
        self._drawing = LogLines(glyphs, self.pen)
        self._pan = 0
        self._typed: str | None = None
        """The search that is being typed; None where none is."""

    # What screens use.

    def open(self, path: Path) -> None:
        """Show this file from now on; `look` reads it."""
        self.reading.open(path)
        self.look()

    def look(self) -> None:
        """Read what has come since, in a thread; while that goes on, or a search, nothing is done."""
        if self.is_mounted:
            self.reading.look()

    @property
    def current(self) -> LogLine | None:
        """The line that the keys act on."""
        return self.reading.window.current_line

    # The thread.

    def _in_thread(self, work: Work) -> None:
        def read() -> None:
            done = work()
            if done is not None:
                self.post_message(self.Read(done))

        self.run_worker(read, thread=True, group="log", exit_on_error=False)

    def on_log_view_read(self, message: Read) -> None:
        message.stop()
        message.done()

    def on_unmount(self) -> None:
        self.reading.give_up()

    # Drawing.

    def heading(self) -> tuple[str, ...]:
        marks = []
        if self.reading.following:
            marks.append("following")
        if self.reading.level != "all":
            marks.append(_LEVEL_NAMES[self.reading.level])
        if self.searched:
            marks.append(f"/{clean(self.searched, self.glyphs)}")
        return (self.separator.join(marks), marks[-1] if marks else "")

    def footing(self) -> str:
        if self.reading.told:
            return self.reading.told
        window = self.reading.window
        if not window.known.size or not self.current:
            return ""
        # The last line is all there is, not what stands before it.
        last = window.at_end and window.current == len(window.lines) - 1
        size = window.known.size
        return f"{100 if last else 100 * self.current.offset // size} % of {amount(size)}"

    def lines(self, width: int, height: int) -> list[Line]:
        reading, window = self.reading, self.reading.window
        if reading.path is None or (not window.lines and not window.known.tail):
            out = self.note(clean(self._nothing(), self.glyphs), width)[:height]
        else:
            out = self._drawing.draw(
                window,
                width,
                height - (self._typed is not None),
                level=reading.level,
                following=reading.following,
                searched=self.searched,
                pan=self._pan,
            )
        return out if self._typed is None else self._drawing.with_prompt(out, self._typed, width, height)

    def _nothing(self) -> str:
        """Why there is no line to be seen."""
        reading, known = self.reading, self.reading.window.known
        if reading.path is None:
            return "No log is shown."
        if known.size and not reading.busy:
            return f"No {_LEVEL_NAMES[reading.level] or 'lines'} in the log."
        return known.problem or ("Reading." if reading.busy else "The log is empty.")

    # Moving.

    def action_scroll_rows(self, rows: int) -> None:
        if rows < 0:
            self.reading.following = False
        self.reading.go_to(self.reading.window.current + rows)

    def action_scroll_pages(self, pages: int) -> None:
        self.action_scroll_rows(pages * max(1, self.drawn_size.height - 1))

    def action_scroll_first(self) -> None:
        self.reading.go_to_first()

    def action_scroll_last(self) -> None:
        if not self.reading.go_to_last():
            self.look()

    def action_follow(self) -> None:
        if self.reading.following:
            self.reading.following = False
            self.changed()
        else:
            self.action_scroll_last()

    def action_pan(self, direction: int) -> None:
        window = self.reading.window
        longest = max((len(line.text) for line in window.lines[window.top :][:200]), default=0)
        self._pan = max(0, min(self._pan + direction * _PAN_COLUMNS, longest))
        self.changed()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_rows(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_rows(3)

    def on_click(self, event: events.Click) -> None:
        offset, window = event.get_content_offset(self), self.reading.window
        if offset is not None and window.top + offset.y < len(window.lines):
            self.reading.following = False
            self.reading.go_to(window.top + offset.y)

    # Level, search and copy.

    def action_level(self) -> None:
        """All lines, then warnings and errors, then errors."""
        self.reading.next_level()
        self.look()

    def action_copy(self) -> None:
        if self.current is not None:
            self.app.copy_to_clipboard(self.current.text)
            self.reading.told = "copied"
            self.changed()

    def action_search(self) -> None:
        self._typed = ""
        self.changed()

    def action_end_search(self) -> None:
        if not self.searched:
            raise SkipAction  # whoever is above may leave this screen
        self.searched = ""
        self.reading.told = ""
        self.changed()

    def action_next(self, down: bool) -> None:
        """To the next line with the text, above the current one or below it."""
        self.reading.search(self.searched, down=down)

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
