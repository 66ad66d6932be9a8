"""The list of runs, with a cursor that stays on its run while the list changes, and the detail of one run.

Both show what they are given and read nothing. Invariant: the state of a run is a word beside its mark, so that colour
is never needed; what there is no room for is left out by columns, the least important first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from workbench.formatting import duration
from workbench.runs import RunDirectory
from workbench.runs.summary import RunSummary
from workbench.tui.charts.scale import short
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import Line, Panel, clean, cut, keep
from workbench.tui.panels.row_list import RowList

_PENS = {
    "running": "good",
    "finished": "good",
    "paused": "warning",
    "stale": "warning",
    "failed": "bad",
    "died": "bad",
}


class _Column(NamedTuple):
    title: str
    width: int
    """Cells; 0: what is left."""
    importance: int
    """The higher, the sooner it is left out."""
    right: bool
    text: Callable[[RunSummary], str]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _steps(row: RunSummary) -> str:
    if row.state in ("unknown", "foreign"):
        return "-"
    return f"{row.step}/{row.total_steps}" if row.total_steps else f"{row.step}"


def _begun(row: RunSummary) -> str:
    return "-" if row.started is None else time.strftime("%m-%d %H:%M", time.localtime(row.started))


def _taken(row: RunSummary) -> str:
    return "-" if row.state in ("unknown", "foreign") else duration(row.duration_s)


_COLUMNS = (
    _Column("PRESET", 0, 0, False, lambda row: row.preset or row.name),
    _Column("STEP", 13, 0, True, _steps),
    _Column("LOSS", 7, 1, True, lambda row: _number(row.loss)),
    _Column("TIME", 7, 2, True, _taken),
    _Column("BEGUN", 11, 3, True, _begun),
    _Column("TOKENS", 7, 4, True, lambda row: "-" if row.tokens is None else short(row.tokens)),
    _Column("TOK/S", 9, 5, True, lambda row: "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}"),
    _Column("VALID.", 7, 6, True, lambda row: _number(row.validation_loss)),
    _Column("RUN", 44, 7, False, lambda row: row.name),
)
_MARK = 2
_STATE = 11
_LEAST_NAME = 12


class RunList(RowList[RunSummary]):
    """One row a run, with marks."""

    TITLE = "Runs"
    HELP = """\
Every folder in the runs' folder, the newest run first.

- **stale**: its process lives, but gave no sign for two minutes, or lives on another machine
- **died**: its process is gone without a word
- **unknown**: its status cannot be read; **foreign**: the folder is no run
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.marks: set[RunDirectory] = set()

    def identity(self, row: RunSummary) -> RunDirectory:
        return row.run

    @property
    def marked(self) -> tuple[RunSummary, ...]:
        """The marked rows that are shown, in their order."""
        return tuple(row for row in self.rows if row.run in self.marks)

    def mark(self) -> None:
        """Mark the run under the cursor, or unmark it, and go on to the next."""
        if (row := self.highlighted) is None:
            return
        self.marks ^= {row.run}
        self.action_move(1)

    def unmark(self, runs: set[RunDirectory] | None = None) -> None:
        """Take the marks off these runs, or off all."""
        self.marks -= self.marks if runs is None else runs
        self.changed()

    # Drawing.

    def heading(self) -> tuple[str, ...]:
        if not self.rows:
            return ()
        living = sum(row.active for row in self.rows)
        count = str(len(self.rows))
        return (f"{count}{self.separator}{living} living" if living else count,)

    def footing(self) -> str:
        parts = (f"{len(self.marks)} marked" if self.marks else "", super().footing())
        return self.separator.join(filter(None, parts))

    def titles(self, width: int) -> str:
        return f"{'':{_MARK}}{'STATE':{_STATE}}" + "  ".join(
            column.title.rjust(cells) if column.right else column.title.ljust(cells)
            for column, cells in _fitting(width)
        )

    def row_line(self, place: int, width: int) -> Line:
        row = self.rows[place]
        here = place == self.cursor
        mark = (self.glyphs.selected if here else " ") + ("*" if row.run in self.marks else " ")
        state = f"{self._sign(row)} {row.state}".ljust(_STATE)
        texts = []
        for column, cells in _fitting(width):
            text = cut(clean(column.text(row), self.glyphs), cells, self.glyphs)
            texts.append(text.rjust(cells) if column.right else text.ljust(cells))
        rest = "  ".join(texts)
        if here and self.has_focus:
            return self.write((mark + state + rest).ljust(width)[:width], "cursor")
        pen = "unfocused" if here else ""
        return [
            *self.write(mark, "mark"),
            *self.write(state, "warning" if row.problem else _PENS.get(row.state, "dim")),
            *self.write(rest, pen),
        ]

    def _sign(self, row: RunSummary) -> str:
        glyphs = self.glyphs
        if row.state == "foreign":
            return "?"
        if row.problem or row.state in ("stale", "unknown"):
            return glyphs.warning
        if row.state == "running":
            return glyphs.dot
        if row.state == "finished":
            return glyphs.good
        if row.state in ("failed", "died"):
            return glyphs.bad
        return "=" if row.state == "paused" else glyphs.separator


def _fitting(width: int) -> list[tuple[_Column, int]]:
    """The columns that have room, with their cells; the name takes what is left."""
    columns = list(_COLUMNS)
    while len(columns) > 1 and _taken_cells(columns) + _LEAST_NAME > width:
        columns.remove(max(columns, key=lambda column: (column.importance, column.width)))
    left = max(0, width - _taken_cells(columns))
    return [(column, column.width or left) for column in columns]


def _taken_cells(columns: Sequence[_Column]) -> int:
    """Cells of all but the name: mark, state, columns and the two blanks between them."""
    return _MARK + _STATE + sum(column.width + 2 for column in columns if column.width)


class RunDetail(Panel):
    """The run under the cursor: its folder, its progress, what is wrong with it, the end of its log."""

    TITLE = "Run"
    HELP: ClassVar[str | None] = """\
The run under the cursor: its folder, how far it is, what it says of itself and what is wrong with its folder. Of a run
that failed or died, the last lines of its log.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._row: RunSummary | None = None
        self._words: tuple[str, ...] = ()

    def show(self, row: RunSummary | None, exit_reason: tuple[str, ...] = ()) -> None:
        if (row, exit_reason) != (self._row, self._words):
            if self._row is None or row is None or row.run != self._row.run:
                self.first_row = 0
            self._row, self._words = row, exit_reason
            self.changed()

    def heading(self) -> tuple[str, ...]:
        return (self._row.name,) if self._row else ()

    def lines(self, width: int, height: int) -> list[Line]:
        row = self._row
        if row is None:
            return []
        facts = [
            f"{row.state}: {row.phase}" if row.active else row.state,
            row.progress,
            "" if row.exit_code is None else f"exit code {row.exit_code}",
            "" if row.eta_s is None or not row.active else f"ETA {duration(row.eta_s)}",
        ]
        written = [self.write(fact, "" if rank else "strong") for rank, fact in enumerate(facts) if fact]
        lines = [keep(width, list(enumerate(written)))]
        if row.problem:
            lines += self._sentence(row.problem, width, "warning")
        if row.message:
            lines += self._sentence(row.message, width, "bad" if row.state == "failed" else "")
        if self._words:  # the very last ones first of all
            room = max(1, height - len(lines))
            lines += [self.write(clean(line, self.glyphs)) for line in self._words[-room:]]
        if len(lines) < height:
            lines.append(self.write(clean(str(row.run.path), self.glyphs), "dim"))
        return lines

    def _sentence(self, text: str, width: int, pen: str) -> list[Line]:
        noted = self.note(clean(text, self.glyphs), width)
        return [self.write("".join(segment.text for segment in line), pen) for line in noted]
