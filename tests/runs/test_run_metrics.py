"""metrics.bin: whole records, an exact account of what a resumption voided, and no end of damage survived."""

import json
import math
import random
import subprocess
import sys

import pytest

from workbench.errors import WorkbenchError
from workbench.runs import (
    METRIC_COLUMNS,
    Column,
    MetricsWriter,
    RunDirectory,
    append_event,
    read_metrics,
    read_run_metrics,
    record_resume,
)


def steps(run: RunDirectory) -> list[float]:
    return read_run_metrics(run).column("step").tolist()


def test_records_come_back_column_by_column_and_nan_is_what_was_not_given(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 6):
            writer.append(step=step, loss=step / 3, tokens_total=step * 1e12, validation_loss=None)
        assert writer.records == 5
    metrics = read_metrics(run.metrics)
    assert len(metrics) == 5
    assert metrics.columns == METRIC_COLUMNS
    assert metrics.column("loss").tolist() == [step / 3 for step in range(1, 6)]
    assert metrics.column("tokens_total")[4] == 5e12
    assert all(math.isnan(value) for value in metrics.column("mfu"))
    assert all(math.isnan(value) for value in metrics.column("no such column"))
    assert metrics.last() == {"step": 5.0, "loss": 5 / 3, "tokens_total": 5e12}
    assert metrics.problem == ""


def test_the_file_explains_itself(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1)
    data = run.metrics.read_bytes()
    length = int.from_bytes(data[12:16], "little")
    header = json.loads(data[16 : 16 + length])
    assert data[:8] == b"WBMETRIC"
    assert header["record_bytes"] == 8 * len(header["columns"]) == len(data) - 16 - length
    assert (16 + length) % 8 == 0
    assert header["columns"][2] == {"name": "loss", "unit": "nats/token"}


def test_reading_goes_on_where_the_last_reading_ended(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1)
        first = read_metrics(run.metrics)
        assert len(read_metrics(run.metrics, first.next_record)) == 0
        writer.append(step=2)
        writer.append(step=3)
        then = read_metrics(run.metrics, first.next_record)
        assert then.column("step").tolist() == [2, 3]
        assert then.next_record == 3
        assert len(read_metrics(run.metrics, 99)) == 0


@pytest.mark.parametrize("torn", [1, 8, 8 * len(METRIC_COLUMNS) - 1])
def test_a_torn_record_is_not_read_and_is_cut_off_before_the_next(run: RunDirectory, torn: int) -> None:
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1, loss=1.0)
        writer.append(step=2, loss=2.0)
    with run.metrics.open("ab") as file:
        file.write(b"\x7f" * torn)
    assert steps(run) == [1, 2]
    with MetricsWriter(run.metrics) as writer:
        assert writer.records == 2
        writer.append(step=3, loss=3.0)
    assert read_metrics(run.metrics).column("loss").tolist() == [1.0, 2.0, 3.0]


FILL = """
import resource, sys
from pathlib import Path
from workbench.errors import WorkbenchError
from workbench.runs import MetricsWriter
path = Path(sys.argv[1])
writer = MetricsWriter(path)
limit = path.stat().st_size + 3 * 8 * len(writer.columns) + 20
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    for step in range(10):
        writer.append(step=step)
except WorkbenchError as error:
    print(writer.records, error)
"""


def test_a_record_that_finds_no_room_leaves_whole_records(run: RunDirectory) -> None:
    command = [sys.executable, "-c", FILL, str(run.metrics)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith("3 ")
    assert "metrics.bin" in told
    size = read_metrics(run.metrics).next_record
    assert size == 3
    before = run.metrics.stat().st_size
    with MetricsWriter(run.metrics):
        assert run.metrics.stat().st_size == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "missing"),
        (b"", "no metrics file"),
        (b"step,loss\n1,2\n", "no metrics file"),
        (b"WBMETRIC" + (9).to_bytes(4, "little") + (0).to_bytes(4, "little"), "version 9"),
        (b"WBMETRIC" + (1).to_bytes(4, "little") + (99).to_bytes(4, "little") + b"{}", "damaged header"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_is_wrong(
    run: RunDirectory, content: bytes | None, problem: str
) -> None:
    if content is not None:
        run.metrics.write_bytes(content)
    metrics = read_run_metrics(run)
    assert len(metrics) == 0
    assert metrics.last() == {}
    assert problem in metrics.problem


def test_a_file_of_something_else_is_not_written_into(run: RunDirectory) -> None:
    run.metrics.write_bytes(b"somebody's only copy")
    with pytest.raises(WorkbenchError, match="no metrics file"):
        MetricsWriter(run.metrics)
    assert run.metrics.read_bytes() == b"somebody's only copy"


def test_a_file_keeps_the_columns_it_was_begun_with(run: RunDirectory) -> None:
    old = (Column("step", "steps"), Column("loss", "nats/token"), Column("old", "1"))
    with MetricsWriter(run.metrics, old) as writer:
        writer.append(step=1, loss=1.0, old=5.0)
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=2, loss=2.0, mfu=0.3)
    metrics = read_metrics(run.metrics)
    assert metrics.columns == old
    assert metrics.column("loss").tolist() == [1.0, 2.0]


def test_a_misspelt_metric_and_a_step_out_of_order_are_refused(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        with pytest.raises(ValueError, match="lost"):
            writer.append(step=1, lost=1.0)
        writer.append(step=2)
        with pytest.raises(ValueError, match="step 2"):
            writer.append(step=2)


def test_a_resumption_voids_the_records_that_it_does_again(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 8):
            writer.append(step=step, loss=1.0)
    with MetricsWriter(run.metrics) as writer:
        record_resume(run, writer, from_step=5)
        for step in range(5, 9):
            writer.append(step=step, loss=2.0)
    metrics = read_run_metrics(run)
    assert metrics.column("step").tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert metrics.column("loss").tolist() == [1.0] * 4 + [2.0] * 4
    assert len(metrics) == 8
    assert len(read_metrics(run.metrics)) == 11


def test_a_resume_event_that_is_damaged_voids_nothing(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1)
        append_event(run, "resume", from_step="one", record=None)
    assert steps(run) == [1]


@pytest.mark.parametrize("seed", range(40))
def test_voiding_is_exact_for_any_history_of_crashes_and_lost_records(run: RunDirectory, seed: int) -> None:
    """The reference marks each record that a resumption voids; records are lost as in a power failure."""
    choose = random.Random(seed)
    record_bytes = 8 * len(METRIC_COLUMNS)
    there: list[tuple[int, float]] = []  # (step, number of the record)
    void: set[float] = set()
    number, step = 0.0, 0
    for session in range(choose.randint(1, 8)):
        with MetricsWriter(run.metrics) as writer:
            assert writer.records == len(there)
            if session:
                step = choose.randint(0, step)
                record_resume(run, writer, from_step=step + 1)
                void |= {mark for at, mark in there if at >= step + 1}
            for _ in range(choose.randint(0, 12)):
                step, number = step + choose.randint(1, 2), number + 1
                writer.append(step=step, loss=number)
                there.append((step, number))
        lost = min(len(there), choose.choice([0, 0, 1, 3, 9]))
        if lost:
            del there[len(there) - lost :]
            size = run.metrics.stat().st_size - lost * record_bytes
            with run.metrics.open("r+b") as file:
                file.truncate(size + choose.choice([0, 5]))
    assert read_run_metrics(run).column("loss").tolist() == [mark for _, mark in there if mark not in void]
