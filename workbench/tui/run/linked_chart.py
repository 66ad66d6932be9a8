"""Charts of one run that share their horizontal axis: what is zoomed, panned or pointed at in one is so in all.

Invariant: a chart that is not seen works nothing out; it does so when it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Container

from workbench.tui.canvas import CachedLines
from workbench.tui.charts.chart import Chart
from workbench.tui.charts.curves import Curve
from workbench.tui.charts.view import View
from workbench.tui.glyphs import Glyphs
from workbench.tui.run.curves import RunCurves
from workbench.tui.run.standing import MetricRows

LEAST_WIDTH, LEAST_HEIGHT = 30, 7
_NAMES = {
    "loss": "training",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "tokens_per_s": "tokens a second",
    "mfu": "MFU",
}
_EASY_HEIGHT = 9
_FEW = 600
"""One point in so many moves a curve by a quarter of a column of dots or less."""
_LONGEST_WAIT = 4
"""Looks, of which there are two a second."""


def _bindings() -> list[BindingType]:
    """The chart's, but `S` for leaving out the start: `s` stops the run."""
    out: list[BindingType] = []
    for binding in Chart.BINDINGS:
        if isinstance(binding, Binding) and binding.key == "s":
            binding = Binding("S", binding.action, binding.description, show=False, id=binding.id)
        elif isinstance(binding, Binding):
            binding = Binding(
                binding.key,
                binding.action,
                binding.description,
                show=False,
                key_display=binding.key_display,
                id=binding.id,
            )
        out.append(binding)
    return out


class LinkedChart(Chart, inherit_bindings=False):
    """A chart among others with the same view and the same cursor."""

    HELP = """\
### Charts

Dots are the values, the line their average, signs in the loss the validation losses. `^` at the top marks values that
the axis has no room for, a cross at the foot values that are not finite.

`x` goes by step, by tokens, by time; `+` and `-` zoom, left and right pan, `end` goes to the newest, `0` shows all.
`c` puts a cursor, `,` and `.` move it. `G` is a logarithmic horizontal axis, `S` leaves out the first steps: all
this holds for all charts together. `g` is a logarithmic vertical axis and `o` makes room for spikes, of this chart
alone. `v` goes to the next chart, `m` shows one alone.
"""
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    def __init__(
        self, title: str, curves: Sequence[Curve], view: View, *, glyphs: Glyphs, unit: str, id: str
    ) -> None:
        self.others: tuple[LinkedChart, ...] = ()
        """Those that share the view."""
        super().__init__(title, curves, glyphs=glyphs, unit=unit, id=id)
        self.view = view

    def view_changed(self) -> None:
        super().view_changed()
        for other in self.others:
            other.cursor = self.cursor
            other.changed()


class ChartGroup(CachedLines, Container):
    """Loss, gradient norm, learning rate, tokens a second, and MFU where it is known."""

    DEFAULT_CSS = """
    ChartGroup { layout: grid; }
    ChartGroup > LinkedChart { height: 100%; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        self.curves = RunCurves()
        view = View()

        def chart(title: str, unit: str, id: str) -> LinkedChart:
            return LinkedChart(title, (), view, glyphs=glyphs, unit=unit, id=id)

        self.loss = chart("Loss", "", "chart-loss")
        self.grad_norm = chart("Gradient norm", "", "chart-grad-norm")
        self.learning_rate = chart("Learning rate", "e", "chart-learning-rate")
        self.tokens_per_s = chart("Speed", "tok/s", "chart-tokens-per-s")
        self.mfu = chart("MFU", "%", "chart-mfu")
        self.charts = (self.loss, self.grad_norm, self.learning_rate, self.tokens_per_s, self.mfu)
        for each in self.charts:
            each.others = tuple(other for other in self.charts if other is not each)
        self.selected = self.loss
        """The one that is seen where there is no room for all."""
        super().__init__(*self.charts, id=id)
        self._waiting = self._looks_waited = 0
        """The newest points that are still to be drawn, and for how many looks they have been."""
        self._chart_of = dict(zip(RunCurves.NAMES, self.charts, strict=True))
        self.show(self.curves)

    def show(self, curves: RunCurves, names: Sequence[str] = RunCurves.NAMES) -> None:
        """Draw these series from now on, as far as they are named."""
        self.curves = curves
        for name in names:
            chart = self._chart_of[name]
            drawn = [Curve(_NAMES[name], getattr(curves, name))]
            if chart is self.loss:
                drawn.append(Curve("validation", curves.validation, "marks", 1))
            chart.remark = f"{len(curves):,} of {curves.of:,} steps, the others are read" if curves.of else ""
            chart.set_curves(drawn)
        self.lay_out()

    def add(self, rows: MetricRows) -> None:
        """Let the series grow, or be cut, and draw them. Few new points among many wait for others, at most 2 s."""
        before, had_mfu = len(self.curves), self.curves.has_mfu
        self.curves.add(rows)
        if self.curves.has_mfu != had_mfu:
            self.lay_out()
        cut = rows.keep < before
        self._waiting += len(rows) + cut
        self.settle(now=cut or self._waiting > len(self.curves) / _FEW)

    def settle(self, *, now: bool = False) -> None:
        """Draw what waits, where it has waited for long enough, or `now`."""
        self._looks_waited += self._waiting > 0
        if self._waiting and (now or self._looks_waited >= _LONGEST_WAIT):
            self._draw()

    def _draw(self) -> None:
        self._waiting = self._looks_waited = 0
        for chart in self.charts:
            chart.changed()

    @property
    def available(self) -> tuple[LinkedChart, ...]:
        return self.charts if self.curves.has_mfu else self.charts[:-1]

    def on_resize(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """As many charts as there is room for: all, else the selected one."""
        width, height = self.size
        shown = self.available
        columns = chart_columns(width, height, len(shown))
        if columns is None:
            shown, columns = (self.selected,), 1
        self.styles.grid_size_columns = columns
        self.styles.grid_size_rows = -(-len(shown) // columns)
        for index, chart in enumerate(shown):
            last = index == len(shown) - 1
            chart.styles.column_span = columns - index % columns if last else 1
        for chart in self.charts:
            chart.display = chart in shown

    def next_chart(self) -> None:
        """Select and focus the next chart."""
        shown = self.available
        current = next((chart for chart in shown if chart.has_focus), self.selected)
        self.selected = shown[(shown.index(current) + 1) % len(shown)] if current in shown else shown[0]
        # Shown and focused first: a widget that is hidden while it has the focus hands it on to whatever comes next.
        self.selected.display = True
        self.selected.focus()
        self.lay_out()


def chart_columns(width: int, height: int, count: int) -> int | None:
    """How many charts stand beside each other so that all are seen; None: there is no room for all."""
    fitting = []
    for columns in (1, 2, 3):
        each = width // columns, height // -(-count // columns)
        if columns == 1 or each[0] >= LEAST_WIDTH:
            fitting.append((columns, each[1]))
    easy = next((columns for columns, high in fitting if high >= _EASY_HEIGHT), None)
    return easy or next((columns for columns, high in fitting if high >= LEAST_HEIGHT), None)
