"""What a chart shows of the horizontal axis: zoom, pan, follow, skip."""

from __future__ import annotations

import random

import pytest

from workbench.tui.charts.scale import View, bounds_of
from workbench.tui.charts.series import AXES, Series


def run_of(count: int, first: int = 0) -> Series:
    series = Series()
    series.positions.extend(
        range(first, first + count), [10 * at for at in range(count)], [1e9 + at for at in range(count)]
    )
    series.extend([1.0] * count)
    return series


def shown(view: View, bounds: tuple[float, float]) -> tuple[float, float]:
    scale = view.scale(bounds)
    return scale.low, scale.high


def test_zooming_keeps_the_place_under_the_pointer() -> None:
    view = View()
    view.zoom(0.5, 0.25, (0, 1_000))
    assert shown(view, (0, 1_000)) == pytest.approx((125, 625))
    assert view.scale((0, 1_000)).value(0.25) == pytest.approx(250)


def test_zooming_out_ends_at_the_whole() -> None:
    view = View()
    view.zoom(0.5, 0.5, (0, 1_000))
    view.zoom(4, 0.5, (0, 1_000))
    assert view.part is None
    assert shown(view, (0, 1_000)) == (0, 1_000)


def test_panning_stops_at_the_ends_of_the_data() -> None:
    view = View()
    view.pan(1, (0, 1_000))
    assert view.part is None
    view.zoom(0.2, 0.5, (0, 1_000))
    view.pan(0.5, (0, 1_000))
    assert shown(view, (0, 1_000)) == pytest.approx((500, 700))
    view.pan(100, (0, 1_000))
    assert shown(view, (0, 1_000)) == pytest.approx((800, 1_000))
    view.pan(-100, (0, 1_000))
    assert shown(view, (0, 1_000)) == pytest.approx((0, 200))


def test_a_view_at_the_newest_point_follows_and_another_stays() -> None:
    view = View()
    assert shown(view, (0, 2_000)) == (0, 2_000)
    view.zoom(0.1, 1.0, (0, 1_000))
    assert shown(view, (0, 1_500)) == pytest.approx((1_400, 1_500))
    view.pan(-1, (0, 1_500))
    assert shown(view, (0, 9_000)) == pytest.approx((1_300, 1_400))


def test_one_cannot_zoom_in_without_end() -> None:
    view = View()
    for _ in range(200):
        view.zoom(0.5, 0.3, (0, 1_000))
    low, high = shown(view, (0, 1_000))
    assert 0 < high - low < 0.01


@pytest.mark.parametrize("axis", AXES)
def test_bounds_lie_along_the_axis_and_leave_out_what_is_skipped(axis: str) -> None:
    series = run_of(1_000, first=1)
    per_step = {"step": 1, "tokens": 10, "time": 1}[axis]
    start = 1 if axis == "step" else 0
    view = View(axis)  # type: ignore[arg-type]
    assert bounds_of([series], view) == (start, start + 999 * per_step)
    view.skip = 100
    assert bounds_of([series], view) == (start + 100 * per_step, start + 999 * per_step)
    view.skip = 5_000
    assert bounds_of([series], view) == (start, start + 999 * per_step)


def test_bounds_span_all_series_and_are_none_without_points() -> None:
    assert bounds_of([], View()) is None
    assert bounds_of([Series()], View()) is None
    assert bounds_of([run_of(10), run_of(5, first=20), Series()], View()) == (0, 24)


def test_a_logarithmic_axis_begins_above_zero() -> None:
    assert bounds_of([run_of(1_000)], View(log=True)) == (1, 999)
    assert bounds_of([run_of(1)], View(log=True)) == (0.0, 0.0)
    view = View(log=True)
    view.zoom(0.5, 1.0, (1, 10_000))
    assert shown(view, (1, 10_000)) == pytest.approx((100, 10_000))


def test_any_sequence_of_moves_stays_within_the_data() -> None:
    chance = random.Random(13)
    for _ in range(300):
        view = View(log=chance.random() < 0.3)
        low = chance.choice([0.0, 1.0, 1e9])
        bounds = (low, low + chance.choice([0.0, 1.0, 1e3, 1e12]))
        for _ in range(30):
            move = chance.randrange(5)
            if move == 0:
                view.zoom(chance.choice([0.01, 0.5, 2.0, 100.0]), chance.random(), bounds)
            elif move == 1:
                view.pan(chance.uniform(-3, 3), bounds)
            elif move == 2:
                bounds = (bounds[0], bounds[1] + chance.random() * 100)
            elif move == 3:
                view.log = not view.log
            else:
                view.reset()
            scale, whole = view.scale(bounds), View(log=view.log).scale(bounds)
            assert scale.low < scale.high
            assert whole.share(scale.low) > -1e-6
            assert whole.share(scale.high) < 1 + 1e-6
