"""`python -m benchmarks.state_formats` trains, compares and draws; whether formats agree is for a reader to judge."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.state_formats.__main__ import main
from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.falling import mean_exp_avg_sq
from benchmarks.state_formats.noise import compare
from benchmarks.state_formats.report import falling_table, noise_table

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_few_steps_give_tables_and_a_chart_and_are_not_made_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart, records = tmp_path / "chart.svg", tmp_path / "records.json"
    words = [
        *("--steps", "3", "--seeds", "1", "--models", "0.84 M", "--falling-steps", "100"),
        *("--runs", str(tmp_path / "runs"), "--chart", str(chart), "--out", str(records)),
    ]
    command = [sys.executable, "-m", "benchmarks.state_formats", *words]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert first.stderr.count("training 0.84 M in ") == 3
    table = [line for line in first.stdout.splitlines() if line.startswith("| 0.84 M, 3 steps")]
    assert [line.split(" | ")[1] for line in table] == ["exact", "half", "compact"]
    drawn = ElementTree.parse(chart).getroot()
    assert (
        len(drawn.findall("{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}polyline")) == 3 + 5 + 2
    )
    written = json.loads(records.read_text())
    assert [(run["state_format"], len(run["losses"])) for run in written["runs"]] == [
        *(("exact", 3), ("half", 3), ("compact", 3))
    ]
    assert all(run["validation"] == [[3, run["validation_loss"]]] for run in written["runs"])
    assert len(written["falling"]["mean_exp_avg_sq"]["half"]) == 100 // written["falling"]["every_steps"]
    main(words)
    again = capsys.readouterr()
    assert "training" not in again.err
    assert again.out == first.stdout


def test_a_difference_counts_as_noise_up_to_the_deviation_between_seeds_of_exact() -> None:
    exact = [2.0, 2.1, 2.2]  # a standard deviation of 0.1
    losses = {"exact": exact, "half": [2.01, 2.12, 2.24], "compact": [2.11, 2.21, 2.31]}
    curves = [
        Curve("m", state_format, seed, (0.0,) * 30, loss)  # type: ignore[arg-type]
        for state_format, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    half, compact = (c for c in compare(curves) if c.measure == "validation")
    assert half.mean_difference == pytest.approx(0.07 / 3)
    assert half.standard_error == pytest.approx((0.0007 / 3 / 2 * 2 / 3) ** 0.5)
    assert half.seed_noise == compact.seed_noise == pytest.approx(0.1)
    assert (half.within_noise, compact.within_noise) == (True, False)
    assert "| m | validation | compact | +0.11000 ± 0.00000 | 0.10000 | no |" in noise_table([half, compact])


def test_rounding_to_the_nearest_stands_still_where_the_formats_follow() -> None:
    means = mean_exp_avg_sq(1500)
    ratios = {name: values[-1] / means["float64"][-1] for name, values in means.items()}
    assert ratios["half"] == pytest.approx(1, abs=0.03)
    assert ratios["compact"] == pytest.approx(1, abs=0.1)
    assert "| compact |" in falling_table(means)
