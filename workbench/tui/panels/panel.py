"""A titled box whose lines are drawn by hand, and what its lines are made with.

Invariant: no line is wider than the width it was given, and a number is left out whole, never cut short.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from workbench.formatting import known
from workbench.tui.canvas import CanvasWidget
from workbench.tui.charts.bars import sparkline, stacked_bar
from workbench.tui.glyphs import Glyphs

if TYPE_CHECKING:  # it would hold up the first picture
    from workbench.monitor.samples import MonitorSample

Line = list[Segment]
PLAIN_STYLE = Style()
"""Of gaps: a panel draws them in its own style."""
REVERSED = Style(reverse=True)
_ALL_ROWS = 1_000_000
_PENS = ("good", "warning", "bad", "dim", "strong", "own", "other", "mark")


def clean(text: str, glyphs: Glyphs) -> str:
    """Text from outside as it may be drawn: no control characters, and in plain mode no others than ASCII."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text.encode("ascii", "replace").decode() if glyphs.ascii else text


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Return `text` in at most `width` cells, wide characters counted; what is cut off shows."""
    if width <= 0:
        return ""
    if text.isascii():
        return glyphs.cut(text, width)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + glyphs.ellipsis


def width_of(line: Iterable[Segment]) -> int:
    total = 0
    for segment in line:
        text = segment.text
        total += len(text) if text.isascii() else cell_len(text)
    return total


def keep(width: int, parts: Sequence[tuple[int, Line]], gap: str = "  ") -> Line:
    """Return the parts side by side, those of the highest number left out until the rest fits; 0 is the most important.

    Of equal numbers the last goes first. A single part that is too wide is cut by the panel.
    """
    chosen = [(importance, line) for importance, line in parts if line]
    sizes = [width_of(line) for _, line in chosen]
    while len(chosen) > 1 and sum(sizes) + len(gap) * (len(chosen) - 1) > width:
        worst = max(range(len(chosen)), key=lambda i: (chosen[i][0], i))
        del chosen[worst], sizes[worst]
    out: Line = []
    for i, (_, line) in enumerate(chosen):
        if i:
            out.append(Segment(gap, PLAIN_STYLE))
        out += line
    return out


def ends(left: Line, right: Line, width: int) -> Line:
    """Return one at each end; the right one is left out where there is no room for both."""
    room = width - width_of(left) - width_of(right)
    if room < 1 or not right:
        return left
    return [*left, Segment(" " * room, PLAIN_STYLE), *right]


def filled_up(line: Line, width: int, glyphs: Glyphs, base: Style) -> Strip:
    """Return the line in exactly `width` cells, in the style `base` where a segment has none of its own."""
    used = width_of(line)
    if used > width:
        line = crop(line, width, glyphs)
        used = width_of(line)
    segments = [segment if segment.style else Segment(segment.text, base) for segment in line]
    if used < width:
        segments.append(Segment(" " * (width - used), base))
    return Strip(segments, width)


def crop(line: Line, width: int, glyphs: Glyphs) -> Line:
    """Return the line in at most `width` cells; what is cut off shows."""
    if width_of(line) <= width:
        return line
    out: Line = []
    room = width
    for segment in line:
        if segment.cell_length >= room:
            # Cut here even where this one ends just in time: more follows, or it is too wide itself.
            out.append(Segment(cut(segment.text + " ", room, glyphs), segment.style))
            break
        out.append(segment)
        room -= segment.cell_length
    return out


class History:
    """The newest values of one quantity, the oldest forgotten."""

    LENGTH = 240

    def __init__(self) -> None:
        self.values: list[float | None] = []
        """The oldest first, at most LENGTH."""

    def add(self, value: float | None) -> None:
        self.values.append(known(value))
        if len(self.values) > self.LENGTH:
            del self.values[0]

    @property
    def top(self) -> float:
        """The largest value; 0 where there is none."""
        return max((value for value in self.values if value is not None), default=0.0)


class Panel(CanvasWidget, can_focus=True):
    """One titled box. Subclasses give `TITLE`, `HELP`, `lines` and, where they like, `heading` and `footing`."""

    TITLE: ClassVar[str] = ""
    HELP: ClassVar[str | None] = ""
    ALLOW_MAXIMIZE = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"panel--{name}" for name in _PENS}
    DEFAULT_CSS = """
    Panel {
        border: round $foreground 30%;
        border-title-color: $foreground;
        border-subtitle-color: $text-muted;
        min-width: 20;
        min-height: 3;
        & > .panel--good { color: $success; }
        & > .panel--warning { color: $warning; }
        & > .panel--bad { color: $error; text-style: bold; }
        & > .panel--dim { color: $text-muted; }
        & > .panel--strong { text-style: bold; }
        & > .panel--own { color: $text-primary; }
        & > .panel--other { color: $text-secondary; }
        & > .panel--mark { color: $text-accent; text-style: bold; }
        &.-ascii { border: ascii $foreground 30%; }
        &:focus { border: round $accent; border-title-style: reverse; }
        &.-ascii:focus { border: ascii $accent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_rows(-1)", "Up", id="panel.up", show=False),
        Binding("down", "scroll_rows(1)", "Down", id="panel.down", show=False),
        Binding("pageup", "scroll_pages(-1)", "Page up", id="panel.page_up", show=False),
        Binding("pagedown", "scroll_pages(1)", "Page down", id="panel.page_down", show=False),
        Binding("home", f"scroll_rows({-_ALL_ROWS})", "First", id="panel.first", show=False),
        Binding("end", f"scroll_rows({_ALL_ROWS})", "Last", id="panel.last", show=False),
    ]

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        # Not by `set_class`, which styles the panel anew at once where an application runs.
        super().__init__(id=id, classes=" ".join(filter(None, (classes, "-ascii" if glyphs.ascii else None))))
        self.glyphs = glyphs
        self.first_row = 0
        """The first of the lines that is seen."""
        self._rows = 0
        self._pens: dict[str, Style] = {}

    # What a subclass says.

    def lines(self, width: int, height: int) -> list[Line]:
        """Return all lines; where there are more than `height`, the panel scrolls."""
        raise NotImplementedError

    def heading(self) -> tuple[str, ...]:
        """Return the present value, behind the title: forms of it, the longest first."""
        return ()

    def footing(self) -> str:
        """Return the text of the lower border where nothing scrolls."""
        return ""

    def part(self, first: int, last: int, total: int) -> tuple[str, str]:
        """Return the noun of what scrolls, and the part of it that is seen; lines are counted from 1."""
        return "lines", f"{first}-{last} of {total}"

    # What a subclass uses.

    def pen(self, name: str) -> Style:
        """Return the style of one of the component classes, by the name behind "--"; "" is plain text."""
        style = self._pens.get(name)
        if style is None:
            style = self.get_component_rich_style(f"panel--{name}") if name else self.rich_style
            if self.content_size:  # what has no place yet may not have been styled either
                self._pens[name] = style
        return style

    def write(self, text: str, pen: str = "") -> Line:
        return [Segment(text, self.pen(pen))]

    def bar(self, share: float | None, width: int, pen: str = "good") -> Line:
        """Return a share of `width` cells; nothing where there is no room for a bar."""
        return self.stack([(share, pen)], width) if width > 3 else []

    def stack(self, parts: Sequence[tuple[float | None, str]], width: int) -> Line:
        """Shares of a whole, each with a pen, drawn with the characters of `part_marks`."""
        return stacked_bar(
            [(share, self.pen(pen)) for share, pen in parts], width, self.glyphs, self.pen("dim")
        )

    def spark(
        self, history: History, width: int, rows: int, top: float | None, pen: str = "good"
    ) -> list[Line]:
        """Return the newest values as columns up to `top`."""
        drawn = sparkline(history.values, width, self.glyphs, height=rows, high=top)
        return [self.write(row, pen) for row in drawn]

    def note(self, sentence: str, width: int, pen: str = "dim") -> list[Line]:
        """Return a sentence over as many lines as it needs."""
        text = " ".join(sentence.split())
        rows = textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)
        return [self.write(row, pen) for row in rows or [""]]

    def named(self, label: str, value: str, pen: str = "") -> Line:
        """Return a label and its value behind it."""
        return [*self.write(f"{label} ", "dim"), *self.write(value, pen)]

    def named_at_ends(self, label: str, value: str, width: int) -> Line:
        """Return a label and its value in a column, at most 44 cells from one end to the other."""
        return ends(self.write(label, "dim"), self.write(value), min(width, 44))

    @property
    def separator(self) -> str:
        return f" {self.glyphs.separator} "

    # Drawing.

    def draw_rows(self, width: int, height: int) -> list[Strip]:
        lines = self.lines(width, height)
        self._rows = len(lines)
        self.first_row = max(0, min(self.first_row, len(lines) - height))
        shown = lines[self.first_row : self.first_row + height]
        return [filled_up(line, width, self.glyphs, self.pen("")) for line in shown]

    def border_texts(self) -> tuple[str, str]:
        height = self.drawn_size.height
        room = self.outer_size.width - 6
        forms = [f"{self.TITLE} {value}" for value in self.heading()] or [self.TITLE]
        title = next((form for form in forms if len(form) <= room), forms[-1])
        foot = self.footing()
        if self._rows > height > 0:
            what, seen = self.part(self.first_row + 1, min(self._rows, self.first_row + height), self._rows)
            foot = next(
                (form for form in (f"{what} {seen}", seen) if len(form) <= room), seen.replace(" of ", "/")
            )
        return cut(title, room, self.glyphs), cut(foot, room, self.glyphs)

    def notify_style_update(self) -> None:
        self._pens.clear()
        super().notify_style_update()

    # Scrolling.

    @property
    def overflow_rows(self) -> int:
        """The number of lines that do not fit."""
        return max(0, self._rows - self.drawn_size.height)

    def scroll_to_row(self, row: int) -> bool:
        """Scroll to a row, and tell whether anything moved."""
        row = max(0, min(row, self.overflow_rows))
        if row == self.first_row:
            return False
        self.first_row = row
        self.changed()
        return True

    def action_scroll_rows(self, rows: int) -> None:
        self.scroll_to_row(self.first_row + rows)

    def action_scroll_pages(self, pages: int) -> None:
        self.scroll_to_row(self.first_row + pages * max(1, self.drawn_size.height - 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        if self.scroll_to_row(self.first_row + 1):
            event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self.scroll_to_row(self.first_row - 1):
            event.stop()


class SamplePanel(Panel):
    """Draws the newest sample of the machine. A subclass gives `sample_lines`, and what to `remember` for graphs."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes=classes)
        self.sample: MonitorSample | None = None
        self.histories: defaultdict[object, History] = defaultdict(History)

    def sample_lines(self, sample: MonitorSample, width: int, height: int) -> list[Line]:
        """Return all lines of a sample; see `lines`."""
        raise NotImplementedError

    def remember(self, sample: MonitorSample) -> None:
        """Add what is drawn over time to `histories`."""

    def show(self, sample: MonitorSample) -> None:
        """Draw this sample; one that was shown already changes nothing."""
        if self.sample is None or sample.time != self.sample.time:
            self.sample = sample
            self.remember(sample)
            self.changed()

    def lines(self, width: int, height: int) -> list[Line]:
        if self.sample is None:
            return self.note("Waiting for the first sample.", width)
        return self.sample_lines(self.sample, width, height)

    def history_lines(
        self, label: str, history: History, width: int, rows: int, top: float | None
    ) -> list[Line]:
        """Return a history of several rows, the label before the first of them."""
        drawn = self.spark(history, max(0, width - len(label)), rows, top)
        labels = [label, *[" " * len(label)] * (rows - 1)]
        return [[*self.write(start, "dim"), *line] for start, line in zip(labels, drawn, strict=True)]
