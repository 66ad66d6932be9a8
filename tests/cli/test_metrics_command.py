"""`workbench metrics`: the records that stand, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from workbench.commands.results import metrics
from workbench.errors import ConfigurationError
from workbench.runs import METRIC_COLUMNS, MetricsWriter, RunDirectory, record_resume


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "p")
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 2502):
            writer.append(step=step, loss=0.1 * step, tokens_total=10 * step)
        record_resume(run, writer, from_step=2500)
        writer.append(step=2500, loss=math.inf, tokens_total=25_000)
        writer.append(step=2501, loss=1e-7, tokens_total=25_010)
    return run


def test_csv_has_a_line_a_step_that_stands_and_gives_every_number_back(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert metrics(run=run.name, runs=run.path.parent, as_json=False) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == [column.name for column in METRIC_COLUMNS]
    assert [int(row["step"]) for row in rows] == list(range(1, 2502))
    assert float(rows[2]["loss"]) == 0.1 * 3 and rows[2]["tokens_total"] == "30"
    assert (rows[2499]["loss"], rows[2500]["loss"], rows[0]["mfu"]) == ("", "1e-07", "")


def test_json_is_one_object_with_units_and_null_for_what_was_not_given(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert metrics(run=None, runs=run.path.parent, as_json=True) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["run"] == run.name
    assert told["columns"] == [{"name": column.name, "unit": column.unit} for column in METRIC_COLUMNS]
    assert len(told["records"]) == 2501
    assert told["records"][2500][:3] == [2501, None, 1e-7] and told["records"][2499][2] is None


def test_a_run_without_steps_gives_no_lines_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path, "p")
    for as_json in (False, True):
        assert metrics(run=run.name, runs=tmp_path, as_json=as_json) == 0
        out = capsys.readouterr()
        assert "no step yet" in out.err
        assert json.loads(out.out)["records"] == [] if as_json else out.out == ""


def test_a_damaged_file_is_an_error_and_a_missing_run_too(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.metrics.write_bytes(b"nonsense")
    assert metrics(run=run.name, runs=run.path.parent, as_json=False) == 1
    out = capsys.readouterr()
    assert out.out == "" and "is not a metrics file" in out.err
    with pytest.raises(ConfigurationError, match="nope"):
        metrics(run="nope", runs=run.path.parent, as_json=False)
