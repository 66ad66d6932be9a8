"""A series answers like a search through all its values, however it grew."""

from __future__ import annotations

import math
import random
from array import array

import pytest

from workbench.tui.charts.series import AXES, Positions, Series

ODD = [math.nan, math.inf, -math.inf]


def grown(
    values: list[float], chance: random.Random, *, smoothing: float = 0.0, find_spikes: bool = False
) -> Series:
    """A series that was fed in pieces and looked at between them."""
    series = Series(smoothing=smoothing, find_spikes=find_spikes)
    at = 0
    while at < len(values):
        stop = min(len(values), at + chance.choice([1, 2, 31, 32, 33, 500]))
        places = array("d", range(at, stop))
        series.positions.extend(places, [10 * place for place in places], [100 + p for p in places])
        series.extend(values[at:stop])
        if chance.random() < 0.5:
            _ = series.spikes
        at = stop
    return series


def noise(chance: random.Random, count: int, holes: float = 0.0) -> list[float]:
    return [chance.choice(ODD) if chance.random() < holes else 3 + chance.gauss(0, 0.1) for _ in range(count)]


def reference_averages(values: list[float], smoothing: float) -> list[float]:
    """Adam's section 3, word by word, in float64."""
    mean, count, averages = 0.0, 0, []
    for value in values:
        if math.isfinite(value):
            count += 1
            mean = smoothing * mean + (1 - smoothing) * value
        averages.append(mean / (1 - smoothing**count) if count else math.nan)
    return averages


@pytest.mark.parametrize("smoothing", [0.5, 0.98])
@pytest.mark.parametrize("holes", [0.0, 0.05, 0.9])
def test_the_average_is_the_debiased_one(smoothing: float, holes: float) -> None:
    chance = random.Random(4)
    values = [math.nan, *noise(chance, 9_000, holes)]
    series = grown(values, chance, smoothing=smoothing)
    wanted = reference_averages(values, smoothing)
    assert list(series.averages_at(range(9_001))) == pytest.approx(wanted, rel=1e-12, nan_ok=True)
    assert len(series.averages_at([])) == 0
    for point in (0, 1, 30, 31, 32, 63, 4_000, 8_999, 9_000):
        assert series.average_at(point) == pytest.approx(wanted[point], rel=1e-12, nan_ok=True)


def test_the_first_average_is_the_first_value() -> None:
    series = Series(smoothing=0.98)
    series.positions.extend([1])
    series.extend([7.0])
    assert series.average_at(0) == pytest.approx(7.0)


def test_huge_values_leave_the_average_finite() -> None:
    series = Series(smoothing=0.9)
    series.positions.extend(range(100))
    series.extend([1e308, -1e308] * 50)
    assert all(math.isfinite(value) for value in series.averages_at(range(100)))


def test_values_that_are_not_finite_are_kept_as_marks() -> None:
    chance = random.Random(5)
    values = noise(chance, 1_000, 0.1)
    series = grown(values, chance)
    assert list(series.marks) == [point for point, value in enumerate(values) if not math.isfinite(value)]
    assert [str(value) for value in series.values] == [str(value) for value in values]


def test_a_spike_is_found_and_noise_and_a_new_level_are_not() -> None:
    chance = random.Random(6)
    values = [5 * math.exp(-point / 500) + 3 + chance.gauss(0, 0.05) for point in range(6_400)]
    assert list(grown(values, chance, find_spikes=True).spikes) == []
    values[3_000] += 2.0
    values[5_000] = 80.0
    assert list(grown(values, chance, find_spikes=True).spikes) == [3_000, 5_000]
    risen = [3 + chance.gauss(0, 0.05) + 4 * (point >= 1_000) for point in range(3_200)]
    assert len(grown(risen, chance, find_spikes=True).spikes) <= 2
    assert list(grown(values, chance).spikes) == []


def test_spikes_do_not_depend_on_how_the_values_arrived() -> None:
    chance = random.Random(7)
    values = noise(chance, 5_000, 0.02)
    for _ in range(20):
        values[chance.randrange(5_000)] += chance.random() * 10
    found = {tuple(grown(values, random.Random(seed), find_spikes=True).spikes) for seed in range(5)}
    assert len(found) == 1


def test_points_are_found_along_every_axis() -> None:
    series = grown([1.0] * 100, random.Random(9))
    for axis, place in zip(AXES, (40, 400, 140), strict=True):
        assert series.first_at(place, axis) == 40
        assert series.first_at(place + 0.5, axis) == 41
        assert series.first_at(1e9, axis) == 100
        assert series.first_at(-1, axis) == 0
    assert series.positions.origin("time") == 100
    assert series.positions.origin("step") == 0


def test_a_place_that_is_unknown_or_goes_back_takes_the_one_before_it() -> None:
    positions = Positions()
    positions.extend([1, 2, 3], [math.nan, 8, math.inf], [50, 40, 60])
    assert list(positions.along("tokens")) == [0, 8, 8]
    assert list(positions.along("time")) == [50, 50, 60]
    positions.extend([4], [7], [55])
    positions.extend([5])
    assert list(positions.along("tokens")) == [0, 8, 8, 8, 8]
    assert list(positions.along("time")) == [50, 50, 60, 60, 60]


def test_a_value_without_a_place_is_not_shown_yet() -> None:
    positions = Positions()
    series = Series(positions)
    series.extend([1.0, 2.0])
    positions.extend([0])
    assert len(series) == 1
    assert series.last == 1.0


def test_positions_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 positions by tokens for 3 steps"):
        Positions().extend([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="smoothing"):
        Series(smoothing=1.0)
