"""Runs on shared axes: their losses overlaid, and beneath how they came out and how their configurations differ.

A run keeps its letter and its colour as long as the screen stands, whatever is shown of it. Invariant: it only reads;
of runs that go on, only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from workbench.formatting import NOT_KNOWN, duration
from workbench.runs import RunDirectory
from workbench.runs.comparing import CurveReader, Curves, Differences, config_differences
from workbench.runs.summary import RunSummary, summarize
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.plot import Curve
from workbench.tui.charts.scale import short
from workbench.tui.charts.series import Series
from workbench.tui.context import AppContext
from workbench.tui.glyphs import Glyphs
from workbench.tui.panels.panel import Line, Panel, clean, cut
from workbench.tui.panels.status_line import KeyLine
from workbench.tui.run.charts import SMOOTHING
from workbench.tui.screens.live_screen import LiveScreen, Reader

_LEAST_VALUE = 8
_GAP = "  "


def letter(place: int) -> str:
    """Return the letter of a run by its place: A, B, ..., Z, and A again."""
    return chr(ord("A") + place % 26)


class Comparison(NamedTuple):
    """The news of the runs, in their order. `differences` is None where they are as before."""

    curves: list[tuple[Curves, bool]]
    rows: list[RunSummary]
    differences: Differences | None


class _Drawn:
    """The series that the chart draws of one run."""

    def __init__(self) -> None:
        self.loss, self.validation = Series(smoothing=SMOOTHING), Series()

    def add(self, curves: Curves) -> None:
        places = (curves.step, curves.tokens, curves.seconds)
        self.loss.positions.extend(*places)
        self.loss.extend(curves.loss)
        given = ~np.isnan(curves.validation_loss)
        self.validation.positions.extend(*(each[given] for each in places))
        self.validation.extend(curves.validation_loss[given])


class CompareScreen(LiveScreen):
    """Two or more runs beside each other."""

    TITLE = "Compare"
    CSS = """
    CompareScreen {
        layout: vertical;
        & Chart { height: 1fr; }
        & DifferenceTable { height: 40%; min-height: 4; max-height: 24; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="compare.leave"),
        Binding("x", "axis", "By step/tokens/time", id="compare.axis"),
        Binding("v", "validation", "Training/validation", id="compare.validation"),
        Binding("tab", "app.focus_next", "Chart/table", id="compare.other", show=False),
    ]

    def __init__(self, context: AppContext, runs: Sequence[RunDirectory]) -> None:
        super().__init__(context)
        self.runs = tuple(runs)
        self.validation = False
        """The validation losses are shown instead of the training losses."""
        self._readers = [CurveReader(run) for run in self.runs]
        self._drawn = [_Drawn() for _ in self.runs]
        self.differences: Differences | None = None
        self._reader = Reader(self, self._read, self._show)

    def compose(self) -> ComposeResult:
        glyphs = self.context.glyphs
        yield Chart("Loss", glyphs=glyphs, id="loss")
        yield Chart("Validation loss", glyphs=glyphs, id="validation")
        yield DifferenceTable(glyphs, id="table")
        yield KeyLine(self.context.glyphs)

    @property
    def chart(self) -> Chart:
        """The one that is seen."""
        return self.query_one("#validation" if self.validation else "#loss", Chart)

    def on_mount(self) -> None:
        self.query_one("#validation").display = False
        self.chart.focus()
        self._show_curves()
        self.look()

    # Reading.

    def look(self) -> None:
        self._reader.read_if_idle(self.context.clock())

    def _read(self, now: float) -> Comparison:
        curves = [reader.read() for reader in self._readers]
        rows = [summarize(run, now) for run in self.runs]
        # A configuration changes only with a resumption.
        anew = any(whole for _, whole in curves)
        return Comparison(curves, rows, config_differences(self.runs) if anew else None)

    def _show(self, found: Comparison) -> None:
        self.differences = found.differences or self.differences
        if self.differences is not None:
            self.query_one("#table", DifferenceTable).show(found.rows, self.differences)
        anew = False
        for place, (curves, whole) in enumerate(found.curves):
            if whole and (len(curves) or len(self._drawn[place].loss)):
                self._drawn[place] = _Drawn()
                anew = True
            self._drawn[place].add(curves)
        if anew:
            self._show_curves()
        elif any(len(curves) for curves, _ in found.curves):
            for chart in self.query(Chart):
                chart.changed()

    def _show_curves(self) -> None:
        for name in ("loss", "validation"):
            self.query_one(f"#{name}", Chart).set_curves(
                [
                    Curve(self._curve_name(place), getattr(drawn, name), colour=place)
                    for place, drawn in enumerate(self._drawn)
                ]
            )

    def _curve_name(self, place: int) -> str:
        """Preset and id, behind the run's letter where the chart does not draw that itself."""
        parts = self.runs[place].name.split("-", 2)
        name = parts[2] if len(parts) == 3 and parts[0].isdecimal() else self.runs[place].name
        return f"{letter(place)} {name}" if self.context.glyphs.ascii else name

    # Actions.

    def action_leave(self) -> None:
        self.dismiss()

    def action_axis(self) -> None:
        self.chart.action_next_axis()

    def action_validation(self) -> None:
        before = self.chart
        self.validation = not self.validation
        # Focused first: a widget that is hidden while it has the focus hands it on to whatever comes next.
        self.chart.display = True
        if before.has_focus:
            self.chart.focus()
        before.display = False


class DifferenceTable(Panel):
    """Runs as columns; the fields that differ, then outcomes, as rows."""

    TITLE = "Differences"
    HELP: ClassVar[str | None] = """\
Fields of the configurations that differ between the runs (`-`: the run has no such field); below, their results and
names.
"""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
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
        """Lay cells out in columns; where there is no room for all, values are cut to equal widths."""
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
