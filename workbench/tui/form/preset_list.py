"""The list of presets, and what there is to say of the one under the cursor; drawn by hand.

Both show what they are given and read nothing. Invariant: whether a preset fits is a word beside its mark, so that
colour is never needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from workbench.tui.charts.scale import short
from workbench.tui.form.meter import PENS, mark_of
from workbench.tui.form.preset_forecast import PresetRow
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, cut
from workbench.tui.panels.panel import Panel

_MARK, _PARAMETERS, _BADGE, _ORIGIN = 2, 7, 8, 7
_LEAST_NAME, _LEAST_DESCRIPTION = 12, 20
_LONG_BADGE = 36


class PresetList(Panel, inherit_bindings=False):
    """Rows with a cursor. Posts `Highlighted` for the preset under the cursor, `Chosen` for a click on it."""

    TITLE = "Presets"
    HELP = """\
Presets that come with workbench, your own and the project's; the ones used last come first.

- **fits**: every tier has room; **tight**: less than 5 % of a tier is left; **no**: what is missing
- **broken**: the file has errors; open it to see them at their fields
"""
    COMPONENT_CLASSES: ClassVar[set[str]] = {"panel--cursor", "panel--unfocused"}
    DEFAULT_CSS = """
    PresetList {
        & > .panel--cursor { background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold; }
        & > .panel--unfocused { text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", id="presets.up", show=False),
        Binding("down", "move(1)", "Down", id="presets.down", show=False),
        Binding("pageup", "page(-1)", "Page up", id="presets.page_up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="presets.page_down", show=False),
        Binding("home", "move_to(0)", "First", id="presets.first", show=False),
        Binding("end", "move_to(-1)", "Last", id="presets.last", show=False),
    ]

    class Highlighted(Message):
        """The cursor is on another preset, or its row has changed; None: there is no row."""

        def __init__(self, row: PresetRow | None) -> None:
            super().__init__()
            self.row = row

    class Chosen(Message):
        """A click on the preset that the cursor was on already."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self.rows: tuple[PresetRow, ...] = ()
        self.note_when_empty = ""
        self.cursor = 0
        self.first = 0
        """The first row that is seen."""
        self._told: PresetRow | None = None

    @property
    def highlighted(self) -> PresetRow | None:
        return self.rows[self.cursor] if self.rows else None

    def show(self, rows: Sequence[PresetRow], note_when_empty: str = "", *, from_top: bool = False) -> None:
        """Show these rows. The cursor stays on its preset, else on its place; `from_top`: on the first."""
        before = self.highlighted
        if from_top:
            before, self.cursor = None, 0
        self.rows, self.note_when_empty = tuple(rows), note_when_empty
        same = (i for i, row in enumerate(self.rows) if before and row.preset.path == before.preset.path)
        self.cursor = max(0, min(next(same, self.cursor), len(self.rows) - 1))
        self._moved()

    def go_to(self, path: Path) -> None:
        """Put the cursor on the preset in this file, where it is listed."""
        found = next((i for i, row in enumerate(self.rows) if row.preset.path == path), None)
        if found is not None:
            self.cursor = found
            self._moved()

    # Drawing

    def heading(self) -> tuple[str, ...]:
        return (str(len(self.rows)),)

    def footing(self) -> str:
        seen = self._room(self.content_size.height)
        return (
            f"{self.first + 1}-{self.first + seen} of {len(self.rows)}" if len(self.rows) > seen > 0 else ""
        )

    def lines(self, width: int, height: int) -> list[Line]:
        if not self.rows:
            return self.note(self.note_when_empty, width) if self.note_when_empty else []
        room = self._room(height)
        self.first = max(0, min(self.first, len(self.rows) - room, self.cursor))
        self.first = max(self.first, self.cursor - room + 1)
        cells = self._cells(width)
        shown = range(self.first, min(self.first + room, len(self.rows)))
        drawn = [self._row(place, width, cells) for place in shown]
        if height < 2:
            return drawn
        name, badge, origin, description = cells
        titles = f"{'':{_MARK}}{'NAME':<{name}} {'PARAMS':>{_PARAMETERS}}  {'FIT':<{badge}}"
        titles += f"  {'FROM':<{origin}}" if origin else ""
        titles += "  DESCRIPTION" if description else ""
        return [self.write(cut(titles, width, self.glyphs), "dim"), *drawn]

    def _cells(self, width: int) -> tuple[int, int, int, int]:
        """Widths of name, badge, origin and description; what there is no room for is 0, except the first two."""
        longest = max(len(row.preset.name) for row in self.rows)
        fixed = _MARK + 1 + _PARAMETERS + 2
        name = max(_LEAST_NAME, min(longest, 28, width - fixed - _BADGE))
        room = width - fixed - name
        long = max((len(row.said) + 2 for row in self.rows), default=0)
        badge = _BADGE
        if room >= _BADGE + 2 + _LEAST_DESCRIPTION + 30:
            badge = max(_BADGE, min(long, _LONG_BADGE))
        room -= badge
        origin = _ORIGIN if room >= 2 + _ORIGIN + 2 + _LEAST_DESCRIPTION else 0
        room -= origin + 2 if origin else 0
        description = room - 2 if room >= 2 + 8 else 0
        return name, badge, origin, description

    def _row(self, place: int, width: int, cells: tuple[int, int, int, int]) -> Line:
        row = self.rows[place]
        name, badge, origin, description = cells
        here = place == self.cursor
        glyphs = self.glyphs

        def cell(text: str, size: int) -> str:
            return cut(clean(text, glyphs), size, glyphs).ljust(size)

        mark = f"{glyphs.selected if here else ' '} "
        first = f"{cell(row.preset.name, name)} {_parameters(row):>{_PARAMETERS}}  "
        word, pen = self._badge(row, badge)
        rest = f"  {cell(row.preset.origin, origin)}" if origin else ""
        if description:
            text = row.preset.description if row.preset.error is None else row.preset.error
            rest += f"  {cell(text, description)}"
        if here and self.has_focus:
            return self.write((mark + first + cell(word, badge) + rest).ljust(width)[:width], "cursor")
        plain = "unfocused" if here else ""
        return [
            *self.write(mark, "mark"),
            *self.write(first, plain),
            *self.write(cell(word, badge), pen),
            *self.write(rest, plain or "dim"),
        ]

    def _badge(self, row: PresetRow, width: int) -> tuple[str, str]:
        """The badge's words and its pen."""
        if row.preset.error is not None:
            return f"{self.glyphs.bad} broken", "bad"
        if row.verdict is not None:
            mark = mark_of(row.verdict, self.glyphs)
            words = f"{mark} {row.said if width > _BADGE else row.verdict}"
            return words, PENS[row.verdict]
        if row.pending:
            return "...", "dim"
        return f"? {row.said}" if width > _BADGE else "?", "dim"

    def _room(self, height: int) -> int:
        """Rows that are seen at once: one line is for the titles."""
        return max(0, min(len(self.rows), height - 1 if height > 1 else height))

    # Moving

    def _moved(self) -> None:
        self.changed()
        row = self.highlighted
        if row != self._told:
            self._told = row
            self.post_message(self.Highlighted(row))

    def action_move(self, rows: int) -> None:
        self.cursor = max(0, min(self.cursor + rows, len(self.rows) - 1))
        self._moved()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.content_size.height - 2))

    def action_move_to(self, place: int) -> None:
        self.cursor = max(0, place if place >= 0 else len(self.rows) + place)
        self._moved()

    def on_focus(self) -> None:
        self.changed()

    def on_blur(self) -> None:
        self.changed()

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset_capture(self)
        at = self.first + place.y - (1 if self.content_size.height > 1 else 0)
        seen = range(self.first, min(self.first + self._room(self.content_size.height), len(self.rows)))
        if place.y < 0 or at not in seen:
            return
        if at == self.cursor:
            self.post_message(self.Chosen())
        self.cursor = at
        self._moved()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-1)


class PresetAbout(Panel, can_focus=False):
    """What the preset under the cursor is for, where it lies, and what is wrong with it."""

    TITLE = "About"

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self.row: PresetRow | None = None

    def show(self, row: PresetRow | None) -> None:
        if row != self.row:
            self.row = row
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return () if self.row is None else (self.row.preset.name,)

    def lines(self, width: int, height: int) -> list[Line]:
        row = self.row
        if row is None:
            return []
        preset = row.preset
        lines: list[Line] = []
        if preset.error is not None:
            for problem in preset.error.splitlines():
                lines += [self.write(line, "bad") for line in self._wrapped(problem, width)]
        else:
            lines += [self.write(line) for line in self._wrapped(preset.description or preset.name, width)]
        if row.verdict is None and row.said:
            lines += [self.write(line, "dim") for line in self._wrapped(row.said, width)]
        if row.plan is not None:
            offload = row.plan.config.offload
            count = f"{row.parameters:,} parameters" if row.parameters is not None else ""
            placed = (
                f"{count}, weights on {offload.weights}, state on {offload.state} ({offload.state_format})"
            )
            lines += [self.write(line, "dim") for line in self._wrapped(placed, width)]
        where = "comes with workbench" if preset.origin == "shipped" else str(preset.path)
        return [*lines, *(self.write(line, "dim") for line in self._wrapped(where, width))]

    def _wrapped(self, text: str, width: int) -> list[str]:
        return wrap(clean(text, self.glyphs), max(1, width))


def _parameters(row: PresetRow) -> str:
    return short(row.parameters) if row.parameters is not None else "..." if row.pending else "-"
