"""Axes put values in their place, and write them short and all different."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest

from workbench.tui.charts.plot import said_value
from workbench.tui.charts.scale import Scale, readout, short, short_time


def labels(low: float, high: float, count: int = 5, *, log: bool = False, unit: str = "") -> list[str]:
    return [tick.label for tick in Scale.fit(low, high, log=log).ticks(count, unit)]


def test_ticks_are_ones_twos_and_fives() -> None:
    assert labels(0, 1_000_000) == ["0", "200k", "400k", "600k", "800k", "1.0M"]
    assert labels(2.91, 2.93, 4) == ["2.910", "2.915", "2.920", "2.925", "2.930"]
    assert labels(-3, 7) == ["-2", "0", "2", "4", "6"]
    assert labels(0, 4e9) == ["0", "1G", "2G", "3G", "4G"]


def test_a_logarithmic_axis_is_labelled_at_powers_and_in_between_where_there_is_room() -> None:
    assert labels(1e-5, 0.1, log=True) == ["1e-05", "1e-04", "0.001", "0.01", "0.1"]
    assert labels(1, 100, 7, log=True) == ["1", "2", "5", "10", "20", "50", "100"]
    assert labels(1, 1e6, 4, log=True) == ["1", "100", "10k", "1M"]
    assert len(labels(3.1, 3.3, log=True)) >= 2


def test_times_are_labelled_at_whole_minutes_and_hours() -> None:
    assert labels(0, 400, unit="s") == ["0s", "2min", "4min", "6min"]
    assert labels(0, 20_000, 6, unit="s") == ["0s", "1h", "2h", "3h", "4h", "5h"]
    assert labels(0, 90_000, 5, unit="s") == ["0s", "6h", "12h", "18h", "1d"]


def test_lengths_of_time_are_written_in_the_two_units_that_matter() -> None:
    written = [short_time(seconds) for seconds in (4.25, 45, 60, 125, 3_600, 4_800, 86_400, 190_800, -90)]
    assert written == ["4.25s", "45s", "1min", "2min05", "1h", "1h20", "1d", "2d5h", "-1min30"]


def test_values_are_written_short() -> None:
    assert [short(value) for value in (0, 12_345, 999_999, 0.00123, 3.14159, 2.4e-4, 1e20)] == [
        "0",
        "12.35k",
        "1M",
        "0.00123",
        "3.142",
        "2.40e-04",
        "1e20",
    ]
    assert [readout(value) for value in (1, 12_345, 3.2145678, 1.0123e-4, 1_234.5678, 1_234_567.8, 0)] == [
        "1",
        "12,345",
        "3.21457",
        "1.01e-04",
        "1,234.57",
        "1,234,568",
        "0",
    ]
    assert short(math.nan) == short_time(math.inf) == readout(math.nan) == "N/A"


@pytest.mark.parametrize("log", [False, True])
def test_a_share_and_its_value_are_inverse(log: bool) -> None:
    scale = Scale.fit(2.0, 2e5, log=log)
    assert scale.share(2.0) == pytest.approx(0)
    assert scale.share(2e5) == pytest.approx(1)
    for share in (-0.5, 0.0, 0.3, 1.0, 1.5):
        assert scale.share(scale.value(share)) == pytest.approx(share)
    assert Scale.fit(2, 200, log=True).value(0.5) == pytest.approx(20)


def test_what_a_logarithmic_axis_cannot_show_lies_below_it() -> None:
    scale = Scale.fit(-5, 100, log=True)
    assert scale.low == pytest.approx(10)
    assert scale.share(0) == scale.share(-1) == -math.inf


def test_any_ends_make_a_scale_and_its_labels_all_differ_and_lie_on_it() -> None:
    chance = random.Random(10)
    odd = [0.0, 1.0, -1.0, 1e-300, 1e300, -1e308, 1.7e308, math.nan, math.inf, -math.inf, 5e-324]
    for _ in range(1_000):
        low, high = (chance.choice([*odd, chance.gauss(0, 1) * 10 ** chance.randint(-12, 12)]) for _ in "ab")
        if chance.random() < 0.2:
            high = low
        scale = Scale.fit(low, high, log=chance.random() < 0.5, margin=chance.choice([0.0, 0.04]))
        assert math.isfinite(scale.low)
        assert math.isfinite(scale.high)
        assert scale.low < scale.high
        ticks = scale.ticks(chance.randrange(0, 9), chance.choice(["", "s"]))
        written = [tick.label for tick in ticks]
        assert len(set(written)) == len(written)
        assert len(ticks) <= 11
        assert all(-1e-6 < scale.share(tick.value) < 1 + 1e-6 for tick in ticks)
        assert all(label.isascii() and len(label) < 20 for label in written)


def test_shares_and_rates_are_said_with_what_can_be_read() -> None:
    assert [said_value(share, "%") for share in (0.312345, 0.0)] == ["31.2 %", "0.0 %"]
    assert labels(0, 0.4, 4, unit="%") == ["0%", "10%", "20%", "30%", "40%"]
    said = [said_value(rate, "tok/s") for rate in (12_345.678, 1_234.5, 512.34, 12.345, 0.5)]
    assert said == ["12,346 tok/s", "1,234 tok/s", "512 tok/s", "12.3 tok/s", "0.5 tok/s"]
    assert said_value(1.0123e-4, "") == "1.01e-04"
    assert [said_value(rate, "e") for rate in (2.9321e-3, 1.0123e-4, 0.0)] == [
        "2.93e-03",
        "1.01e-04",
        "0.00e+00",
    ]


@pytest.mark.parametrize("heavy", ["numpy", "pydantic", "tomlkit", "psutil"])
def test_the_first_screen_is_imported_without_what_would_hold_its_picture_up(heavy: str) -> None:
    code = f"import sys, workbench.tui.app, workbench.tui.screens.presets; sys.exit('{heavy}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
