"""Runs on shared axes: their losses overlaid, and beneath how they came out and how their configurations differ.

A run keeps its letter and its colour as long as the screen stands, whatever is shown of it. Invariant: it only reads;
of runs that go on, only what is new.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen, Screen

from workbench.runs import RunDirectory
from workbench.runs.comparing import CurveReader, Curves, Differences, config_differences
from workbench.runs.summary import RunSummary, summarize
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.curves import Curve
from workbench.tui.charts.series import Series, given_rows
from workbench.tui.context import AppContext
from workbench.tui.panels.key_line import KeyLine
from workbench.tui.screens.difference_table import DifferenceTable, letter

SMOOTHING = 0.9
"""Share that the drawn average of the losses keeps of itself at each step; the losses themselves are dots behind it."""


class ComparisonRead(Message):
    """What is new of the runs, in their order."""

    def __init__(
        self,
        curves: list[tuple[Curves, bool]],
        rows: list[RunSummary],
        differences: Differences | None,
    ) -> None:
        super().__init__()
        self.curves = curves
        self.rows = rows
        self.differences = differences
        """None: as before."""


@dataclass
class _Drawn:
    """What the chart draws of one run."""

    loss: Series
    validation: Series

    @classmethod
    def empty(cls) -> _Drawn:
        return cls(Series(smoothing=SMOOTHING), Series())

    def add(self, curves: Curves) -> None:
        columns = (curves.step, curves.tokens, curves.seconds, curves.loss, curves.validation_loss)
        step, token, second, loss, validation = (array("d", column.tobytes()) for column in columns)
        self.loss.positions.extend(step, token, second)
        self.loss.extend(loss)
        values, steps, tokens, seconds = given_rows(validation, step, token, second)
        self.validation.positions.extend(steps, tokens, seconds)
        self.validation.extend(values)


class CompareScreen(Screen[None]):
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
        super().__init__()
        self.context = context
        self.runs = tuple(runs)
        self.validation = False
        """Whether the validation losses are shown instead of the training losses."""
        self._readers = [CurveReader(run) for run in self.runs]
        self._drawn = [_Drawn.empty() for _ in self.runs]
        self._differences: Differences | None = None
        self._reading = False

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
        self.set_interval(self.context.interval_s, self._tick)
        self._look()

    # Reading.

    def _tick(self) -> None:
        # Beneath a dialog it goes on; beneath another screen nobody sees it, and what it drew would redraw that one.
        seen = self.is_active or (self.is_current and isinstance(self.app.screen, ModalScreen))
        if seen and not self._reading:
            self._look()

    def _look(self) -> None:
        self._reading = True
        self._read()

    @work(thread=True, group="look", exit_on_error=False)
    def _read(self) -> None:
        now = self.context.clock()
        curves = [reader.read() for reader in self._readers]
        rows = [summarize(run, now) for run in self.runs]
        # A configuration changes only with a resumption.
        anew = any(whole for _, whole in curves)
        self.post_message(ComparisonRead(curves, rows, config_differences(self.runs) if anew else None))

    def on_comparison_read(self, event: ComparisonRead) -> None:
        self._reading = False
        self._differences = event.differences or self._differences
        if self._differences is not None:
            self.query_one("#table", DifferenceTable).show(event.rows, self._differences)
        anew = False
        for place, (curves, whole) in enumerate(event.curves):
            if whole and (len(curves) or len(self._drawn[place].loss)):
                self._drawn[place] = _Drawn.empty()
                anew = True
            self._drawn[place].add(curves)
        if anew:
            self._show_curves()
        elif any(len(curves) for curves, _ in event.curves):
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
