"""`python -m benchmarks.state_formats` trains, compares and draws; whether formats agree is for a reader to judge."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.falling import mean_exp_avg_sq
from benchmarks.state_formats.report import curve_table, falling_table

ROOT = Path(__file__).parents[2]


def test_a_few_steps_give_tables_and_a_chart_and_are_not_made_twice(tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    command = [
        *(sys.executable, "-m", "benchmarks.state_formats", "--runs", str(tmp_path / "runs")),
        *(
            "--steps",
            "3",
            "--seeds",
            "1",
            "--models",
            "0.84 M",
            "--falling-steps",
            "400",
            "--chart",
            str(chart),
        ),
    ]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert first.stderr.count("training 0.84 M in ") == 3
    table = [line for line in first.stdout.splitlines() if line.startswith("| 0.84 M, 3 steps")]
    assert [line.split(" | ")[1] for line in table] == ["exact", "half", "compact"]
    drawn = ElementTree.parse(chart).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 3 + 5
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "training" not in again.stderr
    assert again.stdout == first.stdout


def test_differences_are_taken_at_the_same_seed() -> None:
    losses = {("exact", 1): 2.0, ("exact", 2): 2.5, ("half", 1): 2.1, ("half", 2): 2.4}
    curves = [Curve("m", f, seed, (loss,) * 3, loss) for (f, seed), loss in losses.items()]  # type: ignore[arg-type]
    exact, half = curve_table(curves).splitlines()[2:]
    assert exact.endswith("| exact | 2.0000, 2.5000 | +0.0000 | +0.0000 | +0.0000 | 0.5000 |")
    assert "| half | 2.1000, 2.4000 | -0.0000 |" in half or "| half | 2.1000, 2.4000 | +0.0000 |" in half


def test_rounding_to_the_nearest_stands_still_where_the_formats_follow() -> None:
    means = mean_exp_avg_sq(1500)
    ratios = {name: values[-1] / means["float64"][-1] for name, values in means.items()}
    assert ratios["half"] == pytest.approx(1, abs=0.03)
    assert ratios["compact"] == pytest.approx(1, abs=0.1)
    assert "| compact |" in falling_table(means)
