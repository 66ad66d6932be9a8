"""Runs beside each other: what differs in their configurations, and their curves on shared axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.config import load_config, to_toml
from workbench.presets import shipped_folder
from workbench.runs import MetricsWriter, RunDirectory, record_resume
from workbench.runs.comparing import CurveReader, Difference, config_differences

PRESET = shipped_folder() / "quickstart.toml"


def run_with(root: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory.create(root, "p")
    run.config.write_text(to_toml(load_config(PRESET, overrides)))
    return run


def test_only_the_fields_that_differ_are_told_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path, "train.seed=1", "model.config.n_layer=4"),
        run_with(tmp_path, "train.seed=2", "optimizer.learning_rate=1e-4", "data.source=['a', 'b']"),
        run_with(tmp_path, "train.seed=1", "model.config.n_layer=6", "log.tracker=[]"),
    ]
    differences = config_differences(runs)
    assert differences.problems == ()
    assert differences.fields == (
        Difference("model.config.n_layer", ("4", "4", "6")),
        Difference("data.source", ('"stdlib"', '["a", "b"]', '"stdlib"')),
        Difference("train.seed", ("1", "2", "1")),
        Difference("optimizer.learning_rate", ("0.004", "0.0001", "0.004")),
    )
    assert differences.compared > 50


def test_a_field_that_one_run_does_not_have_is_a_difference(tmp_path: Path) -> None:
    one, two = RunDirectory.create(tmp_path, "p"), RunDirectory.create(tmp_path, "p")
    one.config.write_text("[a]\nx = 1\nz = 3\n[b]\ny = true\n")
    two.config.write_text("[a]\nx = 1\nnew = 1.0\nz = 4\n[b]\ny = false\n")
    names = [(field.name, field.values) for field in config_differences([one, two]).fields]
    assert names == [("a.z", ("3", "4")), ("b.y", ("true", "false")), ("a.new", (None, "1.0"))]


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "missing"), (b"a = ", "damaged"), (b"\xff\xfe", "damaged")]
)
def test_a_configuration_that_cannot_be_read_is_a_problem_and_no_difference(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    good, bad = run_with(tmp_path), RunDirectory.create(tmp_path, "p")
    if content is not None:
        bad.config.write_bytes(content)
    differences = config_differences([good, bad])
    assert differences.fields == ()
    [told] = differences.problems
    assert bad.name in told and problem in told


def test_a_growing_run_is_read_on_and_anew_after_a_resumption(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "p")
    reader = CurveReader(run)
    curves, whole = reader.read()
    assert (len(curves), whole) == (0, True) and "missing" in curves.problem
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1, loss=3.0, tokens_total=8, step_s=0.5)
        curves, whole = reader.read()
        assert (list(curves.step), list(curves.seconds), whole) == ([1], [0.5], True)
        writer.append(step=2, loss=2.0, tokens_total=16, step_s=0.25)
        writer.append(step=3, loss=1.0, tokens_total=24, step_s=1.0)
        curves, whole = reader.read()
        assert (list(curves.step), list(curves.seconds), whole) == ([2, 3], [0.75, 1.75], False)
        curves, whole = reader.read()
        assert (len(curves), whole) == (0, False)
        record_resume(run, writer, from_step=2)
        writer.append(step=2, loss=0.5, tokens_total=16, step_s=2.0)
        curves, whole = reader.read()
        assert (list(curves.loss), list(curves.seconds), whole) == ([3.0, 0.5], [0.5, 2.5], True)
        writer.append(step=3, loss=0.25, tokens_total=24, step_s=2.0)
        curves, whole = reader.read()
        assert (list(curves.loss), list(curves.seconds), whole) == ([0.25], [4.5], False)
