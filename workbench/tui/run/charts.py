"""The charts of one run, and the series that they draw on shared positions.

Invariant: a series belongs to one thread at a time. Those of a whole run are made in the reader's thread and handed
over; from then on they grow in the thread that draws. A chart that is not seen works nothing out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from textual.binding import Binding, BindingType
from textual.containers import Container

from workbench.runs import Metrics
from workbench.runs.metrics import DownsampledMetrics
from workbench.tui.canvas import CachedLines
from workbench.tui.charts.chart import Chart, place_of
from workbench.tui.charts.plot import Curve
from workbench.tui.charts.scale import View
from workbench.tui.charts.series import Floats, Positions, Series
from workbench.tui.glyphs import Glyphs

_VALIDATION_COLOUR = 1
_PART_COLOURS = (0, 1, 3, 2)
"""Of compute, update, other lanes and the rest among a chart's colours; those of the lanes' panel are alike."""
SMOOTHING = 0.9
"""Share that the drawn averages keep of themselves at each step; the values themselves are dots behind them."""
LEAST_WIDTH, LEAST_HEIGHT = 30, 7
_EASY_HEIGHT = 9
_LABELS = ("training", "gradient norm", "learning rate", "tokens a second", "MFU")
STEP_PARTS = ("compute", "update", "lanes", "rest")
"""The parts of a step's seconds, one upon the other: of lanes those that are exposed."""
_FEW = 600
"""One point in so many moves a curve by a quarter of a column of dots or less."""
_LONGEST_WAIT = 4
"""Looks, of which there are two a second."""


def step_parts(metrics: Metrics) -> dict[str, Floats]:
    """Return the seconds at which each part of a step ends where they are stacked; the last one's are the step's."""
    step, compute = metrics.column("step_s"), metrics.column("compute_s")
    update, exposed = metrics.column("update_exposed_s"), metrics.column("exposed_s")
    ends = (compute, compute + update, compute + np.maximum(exposed, update), step)
    # Lanes are waited for in the next step's forward too: what is beyond the step is left out.
    return dict(zip(STEP_PARTS, (np.minimum(end, step) for end in ends), strict=True))


class RunCurves:
    """The series named by NAMES share `positions`; `validation` has its own."""

    NAMES = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "mfu")
    """Columns of the metrics, and attributes of this object."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.loss = Series(self.positions, smoothing=SMOOTHING, find_spikes=True)
        self.grad_norm = Series(self.positions, smoothing=SMOOTHING, find_spikes=True)
        self.learning_rate = Series(self.positions)
        self.tokens_per_s = Series(self.positions, smoothing=SMOOTHING)
        self.mfu = Series(self.positions)
        self.parts = {name: Series(self.positions) for name in STEP_PARTS}
        self.validation = Series()
        self.has_mfu = False
        """A step has a known share of the device's arithmetic."""
        self.of = 0
        """The number of the run's steps where these are only some of them; 0: all are here."""
        self._seconds = 0.0

    @classmethod
    def downsampled(cls, sample: DownsampledMetrics) -> RunCurves:
        """Return curves of some of the steps; those between two of them count as long as the second."""
        curves = cls()
        curves.add(sample.metrics, np.diff(sample.places, prepend=-1))
        curves.of = sample.total
        return curves

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, metrics: Metrics, weights: float | NDArray[np.int64] = 1.0) -> None:
        """Append records. `weights`: for how many steps each counts in the time of training."""
        steps, tokens = metrics.column("step"), metrics.column("tokens_total")
        seconds = self._seconds + np.nancumsum(metrics.column("step_s") * weights)
        self._seconds = float(seconds[-1]) if len(seconds) else self._seconds
        self.positions.extend(steps, tokens, seconds)
        for name in self.NAMES:
            getattr(self, name).extend(metrics.column(name))
        for name, values in step_parts(metrics).items():
            self.parts[name].extend(values)
        losses = metrics.column("validation_loss")
        given = ~np.isnan(losses)
        self.validation.positions.extend(steps[given], tokens[given], seconds[given])
        self.validation.extend(losses[given])
        self.has_mfu = self.has_mfu or bool(np.isfinite(metrics.column("mfu")).any())

    def newest(self, count: int) -> tuple[Floats, ...]:
        """Return the steps, losses and gradient norms of the last `count` steps."""
        columns = (self.positions.along("step"), self.loss.values, self.grad_norm.values)
        return tuple(column[-count:] for column in columns)

    def work_out(self) -> None:
        """Compute what the first drawing needs: averages and spikes."""
        for name in self.NAMES:
            getattr(self, name).spikes  # noqa: B018 - works them out

    @property
    def best_validation(self) -> tuple[float, int] | None:
        """The least validation loss, nats a token, and its step; None before the first and until all is read."""
        best = None if self.of else self.validation.lowest()
        if best is None:
            return None
        return float(self.validation.values[best]), int(self.validation.positions.along("step")[best])


class LinkedChart(Chart, inherit_bindings=False):
    """A chart among others with the same view and the same cursor."""

    HELP = """\
### Charts

Dots are the values, the line their average; marks in the loss chart are validation losses. *Step* stacks the seconds
of a step: compute, what was exposed of updates and of other lanes, and the rest. `^` at the top marks values above
the axis, a cross at the bottom values that are not finite.

`x` goes by step, by tokens, by time; `+` and `-` zoom, left and right pan, `end` goes to the newest, `0` shows all.
`c` puts a cursor, `,` and `.` move it. `G` is a logarithmic horizontal axis, `S` leaves out the first steps: all
this holds for all charts together. `g` is a logarithmic vertical axis and `o` makes room for spikes, of this chart
alone. `v` goes to the next chart, `m` shows one alone.
"""
    # `s` stops the run, so that leaving out the start has another key.
    BINDINGS: ClassVar[list[BindingType]] = [
        replace(each, key="S" if each.key == "s" else each.key, show=False)
        for each in Chart.BINDINGS
        if isinstance(each, Binding)
    ]

    def __init__(self, title: str, view: View, *, glyphs: Glyphs, unit: str, id: str) -> None:
        self.others: tuple[LinkedChart, ...] = ()
        """Those that share the view."""
        super().__init__(title, (), glyphs=glyphs, unit=unit, id=id)
        self.view = view

    def view_changed(self) -> None:
        super().view_changed()
        for other in self.others:
            other.cursor = self.cursor
            other.changed()


class ChartGroup(Container, CachedLines):
    """Loss, a step's seconds by parts, gradient norm, learning rate, tokens a second, and MFU where it is known."""

    DEFAULT_CSS = """
    ChartGroup { layout: grid; }
    ChartGroup > LinkedChart { height: 100%; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        view = View()

        def chart(title: str, unit: str, name: str) -> LinkedChart:
            return LinkedChart(title, view, glyphs=glyphs, unit=unit, id=f"chart-{name}")

        self.loss = chart("Loss", "", "loss")
        self.grad_norm = chart("Gradient norm", "", "grad-norm")
        self.learning_rate = chart("Learning rate", "e", "learning-rate")
        self.tokens_per_s = chart("Speed", "tok/s", "tokens-per-s")
        self.mfu = chart("MFU", "%", "mfu")
        self.step_s = chart("Step", "s", "step-s")
        self.charts = (
            self.loss,
            self.step_s,
            self.grad_norm,
            self.learning_rate,
            self.tokens_per_s,
            self.mfu,
        )
        for each in self.charts:
            each.others = tuple(other for other in self.charts if other is not each)
        self.selected = self.loss
        """The one that is seen where there is no room for all."""
        super().__init__(*self.charts, id=id)
        self._undrawn = self._looks_waited = 0
        """The newest points that are still to be drawn, and for how many looks they have been."""
        self.show(RunCurves())

    def show(self, curves: RunCurves) -> None:
        """Draw these series from now on."""
        self.curves = curves
        self._undrawn = self._looks_waited = 0
        simple = [chart for chart in self.charts if chart is not self.step_s]
        drawn_by = {
            chart: [Curve(label, getattr(curves, name), colour=place)]
            for place, (chart, name, label) in enumerate(zip(simple, RunCurves.NAMES, _LABELS, strict=True))
        }
        drawn_by[self.loss].append(Curve("validation", curves.validation, "marks", _VALIDATION_COLOUR))
        drawn_by[self.step_s] = [
            Curve(name, series, "area", colour)
            for (name, series), colour in zip(curves.parts.items(), _PART_COLOURS, strict=True)
        ]
        for chart, drawn in drawn_by.items():
            chart.remark = f"{len(curves):,} of {curves.of:,} steps, reading the others" if curves.of else ""
            chart.set_curves(drawn)
        self.lay_out()

    def add(self, metrics: Metrics) -> None:
        """Let the series grow, and draw them. Few new points among many wait for others, at most 2 s."""
        had_mfu = self.curves.has_mfu
        self.curves.add(metrics)
        if self.curves.has_mfu != had_mfu:
            self.lay_out()
        self._undrawn += len(metrics)
        self.draw_waiting(now=self._undrawn > len(self.curves) / _FEW)

    def draw_waiting(self, *, now: bool = False) -> None:
        """Draw the points that have waited for long enough, or all of them `now`."""
        self._looks_waited += self._undrawn > 0
        if self._undrawn and (now or self._looks_waited >= _LONGEST_WAIT):
            self._undrawn = self._looks_waited = 0
            for chart in self.charts:
                chart.changed()

    def on_resize(self) -> None:
        self.lay_out()

    @property
    def available(self) -> tuple[LinkedChart, ...]:
        return self.charts if self.curves.has_mfu else self.charts[:-1]

    def lay_out(self) -> None:
        """Show as many charts as there is room for: all, else the selected one."""
        width, height = self.size
        shown = self.available
        columns = chart_columns(width, height, len(shown))
        if columns is None:
            shown, columns = (self.selected,), 1
        self.styles.grid_size_columns = columns
        self.styles.grid_size_rows = -(-len(shown) // columns)
        for place, chart in enumerate(shown):
            chart.styles.column_span = columns - place % columns if place == len(shown) - 1 else 1
        for chart in self.charts:
            chart.display = chart in shown

    def read_out(self, point: int | None) -> None:
        """Put the cursor of all charts on this point of the run; None: take it away."""
        first = self.loss
        place = None if point is None else place_of(self.curves.loss, point, first.view.axis)
        first.cursor = place
        first.view_changed()

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
    """Return how many charts stand beside each other so that all are seen; None: there is no room for all."""
    heights = {
        columns: height // -(-count // columns)
        for columns in (1, 2, 3)
        if columns == 1 or width // columns >= LEAST_WIDTH
    }
    for least in (_EASY_HEIGHT, LEAST_HEIGHT):
        if found := [columns for columns, each in heights.items() if each >= least]:
            return found[0]
    return None
