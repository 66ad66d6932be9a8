"""The series of a run: grown by records, cut by a resumption, validation losses among their own steps."""

from __future__ import annotations

import math
from array import array

from workbench.tui.run.curves import RunCurves
from workbench.tui.run.standing import MetricRows


def rows(keep: int, steps: range, *, every: int = 5, mfu: float = math.nan) -> MetricRows:
    column = array("d", steps)
    return MetricRows(
        keep,
        step=column,
        tokens=array("d", (100 * step for step in steps)),
        seconds=array("d", (step / 2 for step in steps)),
        loss=array("d", (10 / step for step in steps)),
        validation_loss=array("d", (11 / step if step % every == 0 else math.nan for step in steps)),
        grad_norm=column,
        learning_rate=column,
        tokens_per_s=column,
        mfu=array("d", [mfu]) * len(steps),
    )


def test_all_series_grow_together_and_validation_losses_lie_at_their_steps() -> None:
    curves = RunCurves()
    curves.add(rows(0, range(1, 13)))
    curves.add(rows(12, range(13, 21)))
    assert len(curves) == 20
    assert all(len(getattr(curves, name)) == 20 for name in RunCurves.NAMES)
    assert list(curves.validation.positions.along("step")) == [5, 10, 15, 20]
    assert list(curves.validation.positions.along("time")) == [2.5, 5, 7.5, 10]
    assert curves.best_validation == (11 / 20, 20)


def test_a_resumption_cuts_every_series_back() -> None:
    curves = RunCurves()
    curves.add(rows(0, range(1, 21)))
    curves.add(rows(12, range(13, 16), every=7))
    assert list(curves.positions.along("step")) == list(range(1, 16))
    assert all(len(getattr(curves, name)) == 15 for name in RunCurves.NAMES)
    assert list(curves.validation.positions.along("step")) == [5, 10, 14]
    assert list(curves.validation.values) == [11 / 5, 11 / 10, 11 / 14]


def test_mfu_counts_as_known_from_its_first_value_on() -> None:
    curves = RunCurves()
    curves.add(rows(0, range(1, 3)))
    assert not curves.has_mfu
    curves.add(rows(2, range(3, 5), mfu=0.4))
    assert curves.has_mfu


def test_without_an_evaluation_there_is_no_best_validation_loss() -> None:
    curves = RunCurves()
    assert curves.best_validation is None
    curves.add(rows(0, range(1, 5)))
    assert curves.best_validation is None
