"""`workbench compare`: outcomes, losses and configurations side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.commands.results import compare, shared_steps
from workbench.errors import ConfigurationError
from workbench.runs import MetricsWriter, RunDirectory, Status, write_status
from workbench.runs.comparing import read_curves


def run_of(root: Path, name: str, *, steps: int, seed: int, loss: float) -> RunDirectory:
    run = RunDirectory.create(root, name)
    run.config.write_text(f"[train]\nsteps = 9\nseed = {seed}\n")
    write_status(run, Status(phase="stopped", step=steps, total_steps=9, loss=loss, elapsed_s=61))
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, steps + 1):
            writer.append(step=step, loss=loss + step, tokens_total=10 * step, step_s=1.0)
    return run


def test_the_table_shows_outcomes_losses_at_shared_steps_and_the_differing_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(tmp_path, "one", steps=3, seed=1, loss=2.0)
    run_of(tmp_path, "two", steps=5, seed=2, loss=1.0)
    assert compare(run=["one", "two"], runs=tmp_path, as_json=False) == 0
    out = capsys.readouterr()
    rows = {line[:15].strip(): line[15:].split() for line in out.out.splitlines()}
    assert rows["step"] == ["3/9", "5/9"]
    assert rows["loss at step 3"] == ["5.0000", "4.0000"] and "loss at step 4" not in rows
    assert rows["duration"] == ["1m01s", "1m01s"]
    assert "train.seed  1  2" in out.out and "train.steps" not in out.out
    assert out.err == ""


def test_json_holds_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = run_of(tmp_path, "one", steps=3, seed=1, loss=2.0)
    run_of(tmp_path, "two", steps=5, seed=2, loss=1.0)
    assert compare(run=["one", "two"], runs=tmp_path, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["differences"] == [{"field": "train.seed", "values": ["1", "2"]}]
    assert told["losses"][-1] == {"step": 3, "values": [5.0, 4.0]}
    assert (told["runs"][0]["name"], told["runs"][0]["tokens"]) == (one.name, 30)


def test_runs_with_nothing_in_common_are_compared_as_far_as_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(tmp_path, "one", steps=3, seed=1, loss=2.0)
    empty = RunDirectory.create(tmp_path, "empty")
    assert compare(run=["one", "empty"], runs=tmp_path, as_json=False) == 0
    out = capsys.readouterr()
    assert "loss at step" not in out.out and "cannot be compared" in out.out
    assert f"run {empty.name}: config.toml is missing" in out.err


def test_fewer_than_two_different_runs_are_refused(tmp_path: Path) -> None:
    run_of(tmp_path, "one", steps=3, seed=1, loss=2.0)
    with pytest.raises(ConfigurationError, match="two or more"):
        compare(run=["one", "one"], runs=tmp_path, as_json=False)
    with pytest.raises(ConfigurationError, match="nope"):
        compare(run=["one", "nope"], runs=tmp_path, as_json=False)


def test_losses_are_told_at_few_steps_however_many_there_are(tmp_path: Path) -> None:
    curves = [read_curves(run_of(tmp_path, "p", steps=steps, seed=1, loss=1.0)) for steps in (40, 35)]
    steps = shared_steps(curves)
    assert (len(steps), steps[0], steps[-1]) == (10, 1, 35)
    assert shared_steps(curves, points=100) == list(range(1, 36))
