"""The series that the charts of one run draw, on shared positions: grown by new records, cut by a resumption.

Invariant: a series belongs to one thread at a time. A whole run's are made and worked out in the reader's thread, and
handed over one by one; only then does the run grow on.
"""

from __future__ import annotations

from array import array
from math import isfinite

import numpy as np

from workbench.runs.metrics import DownsampledMetrics
from workbench.tui.charts.series import AXES, Positions, Series, given_rows
from workbench.tui.run.standing import MetricRows, glimpsed_rows

SMOOTHING = 0.9
"""Share that the drawn averages keep of themselves at each step; the values themselves are dots behind them."""


class RunCurves:
    """`loss`, `grad_norm`, `learning_rate`, `tokens_per_s` and `mfu` share `positions`; `validation` has its own."""

    NAMES = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "mfu")
    """The series on shared positions, by their attributes' names."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.loss = Series(self.positions, smoothing=SMOOTHING, find_spikes=True)
        self.grad_norm = Series(self.positions, smoothing=SMOOTHING, find_spikes=True)
        self.learning_rate = Series(self.positions)
        self.tokens_per_s = Series(self.positions, smoothing=SMOOTHING)
        self.mfu = Series(self.positions)
        self.validation = Series()
        self.has_mfu = False
        """Whether any step has a known share of the device's arithmetic."""
        self.of = 0
        """Where these are only some of the run's steps, how many it has; 0: all are here."""

    @classmethod
    def glimpsed(cls, seen: DownsampledMetrics) -> RunCurves:
        """Of some of the steps, to be drawn until all are read."""
        curves = cls()
        curves.add(glimpsed_rows(seen))
        curves.of = seen.total
        return curves

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, rows: MetricRows) -> None:
        """Take back what no longer stands, then append what is new."""
        if self.of and rows.keep == 0:
            self.of = 0
        if rows.keep < len(self):
            self._cut(rows.keep)
        self.positions.extend(rows.step, rows.tokens, rows.seconds)
        for name in self.NAMES:
            getattr(self, name).extend(getattr(rows, name))
        values, steps, tokens, seconds = given_rows(
            rows.validation_loss, rows.step, rows.tokens, rows.seconds
        )
        self.validation.positions.extend(steps, tokens, seconds)
        self.validation.extend(values)
        self.has_mfu = self.has_mfu or any(map(isfinite, rows.mfu))

    def work_out(self, name: str) -> None:
        """All that the first drawing of a series, by its attribute's name, needs: averages, extremes and spikes."""
        self.positions.along("step")
        getattr(self, name).spikes  # noqa: B018 - works them out

    def work_out_axes(self) -> None:
        """What going by tokens or by time needs."""
        for axis in AXES:
            self.positions.along(axis)

    def newest(self, count: int) -> MetricRows:
        """Steps, losses and gradient norms of the last `count` steps."""
        first = max(0, len(self) - count)
        return MetricRows(
            step=array("d", self.positions.along("step")[first:].tolist()),
            loss=array("d", self.loss.values[first:].tolist()),
            grad_norm=array("d", self.grad_norm.values[first:].tolist()),
        )

    @property
    def best_validation(self) -> tuple[float, int] | None:
        """The least validation loss, nats a token, and its step; None before the first and until all is read."""
        if self.of:
            return None
        series = self.validation
        point = series.lowest()
        if point is None:
            return None
        return float(series.values[point]), int(series.positions.along("step")[point])

    def _cut(self, keep: int) -> None:
        first_gone = self.positions.along("step")[keep]
        validated = int(np.searchsorted(self.validation.positions.along("step"), first_gone))
        self.validation.cut(validated)
        self.validation.positions.cut(validated)
        for name in self.NAMES:
            getattr(self, name).cut(keep)
        self.positions.cut(keep)
