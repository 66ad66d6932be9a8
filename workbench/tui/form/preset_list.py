"""The list of presets, and what there is to say of the one under the cursor; drawn by hand.

Both show what they are given and read nothing. Invariant: whether a preset fits is a word beside its mark, so that
colour is never needed.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from workbench.tui.charts.short_figures import short
from workbench.tui.form.meter import PENS, mark_of
from workbench.tui.form.preset_forecast import PresetRow
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, cut
from workbench.tui.panels.panel import Panel
from workbench.tui.panels.row_list import RowList

_MARK, _PARAMETERS, _BADGE, _ORIGIN = 2, 7, 8, 7
_LEAST_NAME, _LEAST_DESCRIPTION = 12, 20
_LONG_BADGE = 36


class PresetList(RowList[PresetRow]):
    """One row a preset, with what fits."""

    TITLE = "Presets"
    HELP = """\
Presets that come with workbench, your own and the project's; the ones used last come first.

- **fits**: every tier has room; **tight**: less than 5 % of a tier is left; **no**: what is missing
- **broken**: the file has errors; open it to see them at their fields
"""

    def identity(self, row: PresetRow) -> Path:
        return row.preset.path

    # Drawing

    def heading(self) -> tuple[str, ...]:
        return (str(len(self.rows)),) if self.rows else ()  # none before they are read

    def titles(self, width: int) -> str:
        name, badge, origin, description = self._cells(width)
        titles = f"{'':{_MARK}}{'NAME':<{name}} {'PARAMS':>{_PARAMETERS}}  {'FIT':<{badge}}"
        titles += f"  {'FROM':<{origin}}" if origin else ""
        return titles + ("  DESCRIPTION" if description else "")

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

    def row_line(self, place: int, width: int) -> Line:
        row = self.rows[place]
        name, badge, origin, description = self._cells(width)
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
