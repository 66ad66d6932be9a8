"""Where the configurations of runs differ and how they came out, a column for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from workbench.formatting import NOT_KNOWN, duration
from workbench.runs.comparing import Differences
from workbench.runs.summary import RunSummary
from workbench.tui.charts.short_figures import short
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.drawing import Line, clean, cut
from workbench.tui.panels.panel import Panel

_LEAST_VALUE = 8
_GAP = "  "


def letter(place: int) -> str:
    """What a run is called in chart and table by its place: A, B, ..., Z, and A again."""
    return chr(ord("A") + place % 26)


class DifferenceTable(Panel):
    """Runs as columns; the fields that differ, then outcomes, as rows."""

    TITLE = "Differences"
    HELP: ClassVar[str | None] = """\
Every field of the runs' configurations that is not the same in all of them (`-`: the run has no such field); beneath,
how they came out and what they are called.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id, classes="-ascii" if glyphs.ascii else None)
        self._summaries: tuple[RunSummary, ...] = ()
        self._differences: Differences | None = None

    def show(self, rows: Sequence[RunSummary], differences: Differences) -> None:
        if (tuple(rows), differences) != (self._summaries, self._differences):
            self._summaries, self._differences = tuple(rows), differences
            self.changed()

    def heading(self) -> tuple[str, ...]:
        if self._differences is None:
            return ()
        found, compared = len(self._differences.fields), self._differences.compared
        return (f"{found} of {compared} fields", str(found))

    def lines(self, width: int, height: int) -> list[Line]:
        if self._differences is None:
            return self.note("Reading the runs ...", width)
        lines: list[Line] = []
        for problem in self._differences.problems:
            lines += self._warning(problem, width)
        for row in self._summaries:
            if row.problem:
                lines += self._warning(f"run {row.name}: {row.problem}", width)
        lines += self._table(
            [
                ("", *(letter(place) for place in range(len(self._summaries)))),
                *(
                    (each.name, *("-" if value is None else value for value in each.values))
                    for each in self._differences.fields
                ),
                *self._outcomes(),
            ],
            width,
        )
        if not self._differences.fields and not self._differences.problems:
            lines += self.note("Their configurations are the same in every field.", width)
        for place, row in enumerate(self._summaries):
            name = clean(row.name, self.glyphs)
            lines.append([*self.write(f"{letter(place)} ", "mark"), *self.write(name, "strong")])
        return lines

    def _warning(self, text: str, width: int) -> list[Line]:
        noted = self.note(f"{self.glyphs.warning} {clean(text, self.glyphs)}", width)
        return [self.write("".join(segment.text for segment in line), "warning") for line in noted]

    def _outcomes(self) -> list[tuple[str, ...]]:
        rows = self._summaries
        return [
            ("state", *(row.state for row in rows)),
            ("step", *(f"{row.step}/{row.total_steps}" for row in rows)),
            ("loss", *(_number(row.loss) for row in rows)),
            ("validation loss", *(_number(row.validation_loss) for row in rows)),
            ("tokens", *(NOT_KNOWN if row.tokens is None else short(row.tokens) for row in rows)),
            (
                "tokens/s",
                *(NOT_KNOWN if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}" for row in rows),
            ),
            ("duration", *(duration(row.duration_s) for row in rows)),
        ]

    def _table(self, table: Sequence[Sequence[str]], width: int) -> list[Line]:
        """Columns as wide as they need; where there is no room for all, values are cut to equal widths."""
        texts = [[clean(cell, self.glyphs) for cell in row] for row in table]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
            widths[0] = min(widths[0], max(_LEAST_VALUE, width // 3))
            left = width - widths[0] - len(_GAP) * (len(widths) - 1)
            equal = max(1, left // max(1, len(widths) - 1))
            widths[1:] = [min(cells, max(equal, 1)) for cells in widths[1:]]
        lines: list[Line] = []
        for number, row in enumerate(texts):
            name, *values = [
                cut(cell, cells, self.glyphs).ljust(cells) for cell, cells in zip(row, widths, strict=True)
            ]
            pen = "mark" if number == 0 else ""
            lines.append([*self.write(name + _GAP, "dim"), *self.write(_GAP.join(values), pen)])
        return lines


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.4f}"
