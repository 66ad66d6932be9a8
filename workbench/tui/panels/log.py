"""A run's log: the end of the file in Textual's `Log`, followed, searched and filtered; `$PAGER` shows the whole file.

Invariant: memory does not grow with the file, nor with a line: no more than its last TAIL_BYTES are read, TAIL_LINES
lines are held, and a line longer than LONGEST_LINE is given in several parts.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from rich.highlighter import Highlighter
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.actions import SkipAction
from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Log

from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import clean

Level = Literal["all", "warning", "error"]
LEVELS: tuple[Level, ...] = ("all", "warning", "error")
TAIL_BYTES = 2 << 20
LONGEST_LINE = 4096

# What the trainer, Python and CUDA print where something went wrong.
_ERRORS = (
    "error",
    "fatal",
    "critical",
    "traceback",
    "exception",
    "failed",
    "cannot",
    "diverged",
    "killed",
    "aborted",
    "out of memory",
    "segmentation fault",
)
TAIL_LINES = 10_000
_STEP = re.compile(r"step 0*(\d+)/")
_GUTTER = 2
"""Cells before a line: the pointer and the mark of its level."""
_LEVEL_NAMES: dict[Level, str] = {"all": "", "warning": "warnings and errors", "error": "errors"}


class LogLine(NamedTuple):
    text: str
    level: Level
    """"all" for a line that is neither a warning nor an error."""


@dataclass(frozen=True)
class Appended:
    """Lines that have come since the last reading."""

    lines: tuple[LogLine, ...] = ()
    anew: bool = False
    """They take the place of all lines before: it is the first reading, or another file now."""
    problem: str = ""


def level_of(line: str) -> Level:
    """Return the level of a line by its words; a warning about an error is a warning."""
    lower = line.lower()
    if "warning" in lower:
        return "warning"
    return "error" if any(word in lower for word in _ERRORS) else "all"


class LogTail:
    """Reads one file, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        """Device and inode."""
        self._end = 0
        """Behind the last byte that was read."""
        self._rest = b""
        """The begin of a line whose end has not come yet."""

    def read(self) -> Appended:
        """Return what has come since the last reading. Never raises; see `problem`."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                size = status.st_size
                known = self._file == (status.st_dev, status.st_ino) and size >= self._end
                anew = not known or size - self._end > TAIL_BYTES
                if anew:
                    self._file, self._rest = (status.st_dev, status.st_ino), b""
                    self._end = max(0, size - TAIL_BYTES)
                start = self._end
                file.seek(start)
                data = file.read(size - start)
        except FileNotFoundError:
            self._file = None
            return Appended(problem=f"There is no {self.path.name} yet.")
        except OSError as error:
            self._file = None
            return Appended(problem=f"{self.path} cannot be read: {error.strerror or error}")
        self._end += len(data)
        if anew and start:
            data = data[data.find(b"\n") + 1 :]
        # What has no end yet waits for it until a reading finds nothing new: a process that died gives none.
        held = self._rest + data
        ready = len(held) if not data or len(held) > TAIL_BYTES else held.rfind(b"\n") + 1
        whole, self._rest = held[:ready], held[ready:]
        return Appended(tuple(_lines(whole)), anew)


def _lines(data: bytes) -> list[LogLine]:
    out = []
    for line in data.split(b"\n")[: None if data and not data.endswith(b"\n") else -1]:
        text = line.rstrip(b"\r").decode(errors="replace").expandtabs(4)
        level = level_of(text)
        out += [
            LogLine(text[at : at + LONGEST_LINE], level) for at in range(0, max(1, len(text)), LONGEST_LINE)
        ]
    return out


class LogView(Log):
    HELP: ClassVar[str | None] = """\
### Log

The end of what the run has printed (`train.log`, its last 10,000 lines), the newest line at the bottom.

- `f` follows the end of the log or stops; moving up stops, `end` follows again. Arrow keys scroll.
- `/` searches: type a regular expression and press enter. The search goes up from the end; `n` finds the next above,
  `N` the next below. The title counts the matches (3/17). Case is ignored. `esc` ends the search.
- `g` goes to a step: type its number and press enter.
- `e` shows all lines, warnings and errors, or errors alone. A line counts as an error by its words (error,
  traceback, cannot, out of memory and the like); `!` and a cross in front of a line mark both.
- `y` copies the line that was found or clicked, else the last one shown. `o` opens the whole file in `$PAGER`.
"""
    ALLOW_MAXIMIZE = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--warning", "log--error", "log--pointer", "log--note"}
    DEFAULT_CSS = """
    LogView {
        border: round $foreground 30%;
        border-title-color: $foreground;
        border-subtitle-color: $text-muted;
        background: transparent;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        overflow: auto scroll;
        min-width: 20;
        min-height: 3;
        & > .log--warning { color: $warning; }
        & > .log--error { color: $error; text-style: bold; }
        & > .log--pointer { color: $text-accent; text-style: bold; }
        & > .log--note { color: $text-muted; }
        &.-ascii { border: ascii $foreground 30%; }
        &:focus { border: round $accent; border-title-style: reverse; background-tint: $foreground 0%; }
        &.-ascii:focus { border: ascii $accent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", id="log.follow", show=False),
        Binding("slash", "search", "Search", id="log.search", show=False),
        Binding("n", "next(-1)", "Next above", id="log.next", show=False),
        Binding("N", "next(1)", "Next below", id="log.previous", show=False),
        Binding("g", "step", "Go to step", id="log.step", show=False),
        Binding("e", "level", "Level", id="log.level", show=False),
        Binding("y", "copy", "Copy line", id="log.copy", show=False),
        Binding("o", "pager", "Whole log in $PAGER", id="log.pager", show=False),
        Binding("escape", "end_search", "End search", id="log.end_search", show=False),
    ]

    class Read(Message):
        """A reading in the thread is done."""

        def __init__(self, tail: LogTail, found: Appended) -> None:
            super().__init__()
            self.tail = tail
            self.found = found

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        names = " ".join(filter(None, (classes, "-ascii" if glyphs.ascii else None)))
        super().__init__(highlight=True, max_lines=TAIL_LINES, id=id, classes=names)
        self.highlighter = _Marks(self)
        self.glyphs = glyphs
        self.searched: re.Pattern[str] | None = None
        """The pattern of the search."""
        self.level: Level = "all"
        self.chosen: int | None = None
        """The number of the line that was found or clicked."""
        self._tail: LogTail | None = None
        self._busy = False
        self._held: deque[LogLine] = deque(maxlen=TAIL_LINES)
        """The lines of every level."""
        self._typed: str | None = None
        """The text being typed, a search or a step; None if there is none."""
        self._types_step = False
        self._hits: list[int] = []
        """The numbers of the lines that hold what is searched for."""
        self._message = ""

    # What screens use.

    def open(self, path: Path) -> None:
        """Show this file from now on."""
        self._tail, self._busy = LogTail(path), False
        self.look()

    def look(self) -> None:
        """Read what has come since, in a thread; while that goes on nothing is done."""
        tail = self._tail
        if tail is None or self._busy or not self.is_mounted:
            return
        self._busy = True
        self.run_worker(
            lambda: self.post_message(self.Read(tail, tail.read())),
            thread=True,
            group="log",
            exit_on_error=False,
        )

    @property
    def following(self) -> bool:
        return self.auto_scroll and self.is_vertical_scroll_end

    @property
    def current(self) -> str:
        """The line that the keys act on: found, clicked, or the lowest that is seen."""
        lowest = self.scroll_offset.y + self.scrollable_content_region.height - 1
        place = min(lowest if self.chosen is None else self.chosen, len(self.lines) - 1)
        return self.lines[place][_GUTTER:] if place >= 0 else ""

    # What comes from the file.

    def on_log_view_read(self, message: Read) -> None:
        message.stop()
        if message.tail is not self._tail:
            return
        self._busy = False
        found = message.found
        self._message = clean(found.problem, self.glyphs)
        if found.anew:
            self._held.clear()
            self._held.extend(found.lines)
            self._show_all()
        elif found.lines:
            self._held.extend(found.lines)
            self._append(found.lines)
        self._write_titles()

    def _append(self, lines: tuple[LogLine, ...]) -> None:
        marks = {"all": " ", "warning": self.glyphs.warning, "error": self.glyphs.bad}
        least = LEVELS.index(self.level)
        shown = [line for line in lines if LEVELS.index(line.level) >= least]
        gone = len(self.lines) + len(shown) - TAIL_LINES
        if gone > 0 and not self.following:
            # What one reads stays where it is while the oldest lines go.
            self.scroll_to(y=max(0, self.scroll_offset.y - gone), animate=False, immediate=True)
        if gone > 0 and self.chosen is not None:
            self.chosen = max(0, self.chosen - gone)
        if gone > 0:
            self._hits = [place - gone for place in self._hits if place >= gone]
        held = len(self.lines) - max(0, gone)
        self._hits += self._found_in([line.text for line in shown], max(0, held))
        self.write_lines(f" {marks[line.level]}{clean(line.text, self.glyphs)}" for line in shown)

    def _show_all(self) -> None:
        """Show the lines of the level from the newest on."""
        self.chosen = None
        self.auto_scroll = True
        self._hits = []
        self.clear()
        self._append(tuple(self._held))
        self.scroll_end(animate=False, immediate=True, x_axis=False)
        self.refresh()

    # What is seen.

    def on_mount(self) -> None:
        self._write_titles()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._write_titles()

    def _write_titles(self) -> None:
        """Write the titles."""
        parts = [
            "Log following" if self.following else "Log",
            _LEVEL_NAMES[self.level],
            f"/{clean(self.searched.pattern, self.glyphs)} {self._count()}" if self.searched else "",
        ]
        title = f" {self.glyphs.separator} ".join(filter(None, parts))
        foot = self._message
        if self._typed is not None:
            foot = f"{'step ' if self._types_step else '/'}{clean(self._typed, self.glyphs)}_"
        elif not foot and self.lines:
            last = min(len(self.lines), self.scroll_offset.y + self.scrollable_content_region.height)
            foot = f"line {last:,} of {len(self.lines):,}"
        for name, text in (("border_title", title), ("border_subtitle", foot)):
            content = Content(text)
            if getattr(self, name) != content.markup:
                setattr(self, name, content)

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        if not self.lines and y == 0:
            what = _LEVEL_NAMES[self.level] or "lines"
            note = self._message or ("Reading." if self._busy else f"No {what} in the log.")
            style = self.get_component_rich_style("log--note")
            return Strip([Segment(note, style)]).adjust_cell_length(self.size.width, self.rich_style)
        if self.scroll_offset.y + y == self.chosen and not self.scroll_offset.x:
            pointer = Segment(self.glyphs.selected, self.get_component_rich_style("log--pointer"))
            return Strip.join([Strip([pointer], 1), strip.crop(1)])
        return strip

    # Moving.

    def action_scroll_home(self) -> None:
        self.auto_scroll = False
        self.scroll_home(animate=False, x_axis=False)

    def action_scroll_end(self) -> None:
        self.auto_scroll = True
        self.chosen = None
        self.scroll_end(animate=False, immediate=True, x_axis=False)
        self._write_titles()

    def action_follow(self) -> None:
        if self.following:
            self.auto_scroll = False
            self._write_titles()
        else:
            self.action_scroll_end()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and self.scroll_offset.y + offset.y < len(self.lines):
            self._choose(self.scroll_offset.y + offset.y)

    def _choose(self, place: int) -> None:
        self.chosen = place
        self.auto_scroll = False
        top, height = self.scroll_offset.y, self.scrollable_content_region.height
        if not top <= place < top + height:
            self.scroll_to(y=place - height // 2, animate=False, immediate=True)
        self.refresh()
        self._write_titles()

    # Level, search, copy and pager.

    def action_level(self) -> None:
        """Go from all lines to warnings and errors, to errors, and to all again."""
        self.level = LEVELS[(LEVELS.index(self.level) + 1) % len(LEVELS)]
        self._show_all()
        self._write_titles()

    def action_copy(self) -> None:
        if self.lines:
            self.app.copy_to_clipboard(self.current)
            self._say("copied")

    def action_pager(self) -> None:
        """Lend the terminal to $PAGER with the whole file."""
        if self._tail is None:
            return
        pager = os.environ.get("PAGER") or "less"
        try:
            with self.app.suspend():
                subprocess.run([*shlex.split(pager), str(self._tail.path)], check=False)
        except SuspendNotSupported:
            self._say("a pager cannot run in this terminal")
        except (OSError, ValueError) as error:
            self._say(f"{pager}: {error}")
        self.app.refresh()

    def action_search(self) -> None:
        self._typed, self._types_step = "", False
        self._say("")

    def action_step(self) -> None:
        self._typed, self._types_step = "", True
        self._say("")

    def action_end_search(self) -> None:
        if not self.searched:
            raise SkipAction  # whoever is above may leave this screen
        self._search_for("")

    def action_next(self, direction: int) -> None:
        """Go to the next line that was found, above (-1) the chosen one or below (1) it."""
        if not self.searched or not self.lines:
            return
        at = self.chosen if self.chosen is not None else len(self.lines) if direction < 0 else -1
        place = bisect_left(self._hits, at) - 1 if direction < 0 else bisect_right(self._hits, at)
        found = 0 <= place < len(self._hits)
        self._message = "" if found else f"not found {'above' if direction < 0 else 'below'}"
        if found:
            self._choose(self._hits[place])
        self._write_titles()

    def _found_in(self, texts: Sequence[str], first: int) -> list[int]:
        """Return the numbers of the lines that hold what is searched for; `first` is that of the first text."""
        searched = self.searched
        return (
            [] if searched is None else [first + n for n, text in enumerate(texts) if searched.search(text)]
        )

    def _count(self) -> str:
        """Return how many lines were found, and which of them is chosen."""
        if self.chosen not in self._hits:
            return f"{len(self._hits):,}"
        return f"{self._hits.index(self.chosen) + 1:,}/{len(self._hits):,}"

    def _search_for(self, text: str) -> None:
        try:
            self.searched = re.compile(text, re.IGNORECASE) if text else None
        except re.error as error:
            self._say(f"{text}: is no regular expression: {error}")
            return
        self._hits = self._found_in([line[_GUTTER:] for line in self.lines], 0)
        self._say("")
        self.refresh()

    def _go_to_step(self, text: str) -> None:
        """Choose the line of a step, else that of the next one that is in the log."""
        steps = ((place, _STEP.match(line[_GUTTER:])) for place, line in enumerate(self.lines))
        wanted = int(text) if text.isdecimal() and len(text) < 19 else None
        if wanted is None:
            self._say("type the number of a step")
            return
        place = next((place for place, found in steps if found and int(found[1]) >= wanted), None)
        self._say("" if place is not None else f"no step {wanted:,} or later is in these lines")
        if place is not None:
            self._choose(place)

    def _say(self, message: str) -> None:
        self._message = clean(message, self.glyphs)
        self._write_titles()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return self._typed is not None and character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        if self._typed is None:
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            typed, self._typed = self._typed, None
            if self._types_step:
                self._go_to_step(typed)
            else:
                self._search_for(typed)
                self.action_next(-1)
        elif event.key == "escape":
            self._typed = None
        elif event.key in ("backspace", "ctrl+h"):
            self._typed = self._typed[:-1]
        elif event.is_printable and event.character:
            self._typed += event.character
        self._write_titles()

    def on_paste(self, event: events.Paste) -> None:
        if self._typed is not None:
            event.stop()
            self._typed += event.text.splitlines()[0] if event.text else ""
            self._write_titles()


class _Marks(Highlighter):
    """Colours a line by the mark in its gutter, and reverses what is searched for."""

    def __init__(self, view: LogView) -> None:
        self._view = view

    def highlight(self, text: Text) -> None:
        view, mark = self._view, text.plain[1:_GUTTER]
        if mark in (view.glyphs.warning, view.glyphs.bad):
            name = "log--warning" if mark == view.glyphs.warning else "log--error"
            text.stylize(view.get_component_rich_style(name))
        for found in view.searched.finditer(text.plain, _GUTTER) if view.searched else ():
            text.stylize(Style(reverse=True), *found.span())
