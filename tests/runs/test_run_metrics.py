"""metrics.bin: whole records, cut where a resumption begins, and no end of damage survived."""

import json
import math
import random
import subprocess
import sys
from itertools import pairwise

import pytest

from workbench.errors import WorkbenchError
from workbench.runs import (
    METRIC_COLUMNS,
    Column,
    MetricsReader,
    MetricsWriter,
    RunDirectory,
    read_events,
    read_metrics,
    read_run_metrics,
    record_resume,
)
from workbench.runs.metrics import NEWEST, STRETCH, STRETCHES, read_downsampled


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
        (b"", "not a metrics file"),
        (b"step,loss\n1,2\n", "not a metrics file"),
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
    with pytest.raises(WorkbenchError, match="not a metrics file"):
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
    with MetricsWriter(run.metrics) as writer, pytest.raises(ValueError, match="step 2"):
        writer.append(step=1)


@pytest.mark.parametrize(("from_step", "kept"), [(1, 0), (5, 4), (7, 6), (8, 7), (99, 7)])
def test_resuming_truncates_to_the_step_that_it_resumes_from(
    run: RunDirectory, from_step: int, kept: int
) -> None:
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 8):
            writer.append(step=step, loss=1.0)
    with MetricsWriter(run.metrics) as writer:
        record_resume(run, writer, from_step=from_step, checkpoint="step-00000004")
        for step in range(from_step, from_step + 3):
            writer.append(step=step, loss=2.0)
    assert steps(run) == [*range(1, kept + 1), *range(from_step, from_step + 3)]
    assert read_run_metrics(run).column("loss").tolist() == [1.0] * kept + [2.0] * 3
    [event] = read_events(run).events
    assert event.fields == {"from_step": from_step, "record": kept, "checkpoint": "step-00000004"}


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_has_what_the_file_has_for_any_history_of_crashes_and_lost_records(
    run: RunDirectory, seed: int
) -> None:
    """Records are lost as in a power failure; the reader looks whenever it likes, also between two writes."""
    choose = random.Random(seed)
    there: list[tuple[int, float]] = []  # (step, a number that no other record has)
    reader, held, offset = MetricsReader(run), [], 0
    number, step = 0.0, 0

    def look() -> None:
        nonlocal offset
        events = read_events(run, offset)
        offset = events.offset
        reader.rewind(events.events)
        found = reader.read(choose.choice([None, 3]))
        if not found.problem:
            held[found.first_record :] = found.column("loss").tolist()

    for session in range(choose.randint(1, 8)):
        with MetricsWriter(run.metrics) as writer:
            assert writer.records == len(there)
            if session:
                step = choose.randint(0, step)
                record_resume(run, writer, from_step=step + 1)
                there = [record for record in there if record[0] <= step]
            for _ in range(choose.randint(0, 12)):
                step, number = step + choose.randint(1, 2), number + 1
                writer.append(step=step, loss=number)
                there.append((step, number))
                if choose.random() < 0.3:
                    look()
        lost = min(len(there), choose.choice([0, 0, 1, 3, 9]))
        if lost:
            del there[len(there) - lost :]
            size = run.metrics.stat().st_size - lost * 8 * len(METRIC_COLUMNS)
            with run.metrics.open("r+b") as file:
                file.truncate(size + choose.choice([0, 5]))
    with MetricsWriter(run.metrics) as writer:
        record_resume(run, writer, from_step=step + 1)
    for _ in range(40):
        look()
    assert held == read_run_metrics(run).column("loss").tolist() == [loss for _, loss in there]


def test_a_long_run_is_seen_in_evenly_spread_records_and_the_newest(run: RunDirectory) -> None:
    with MetricsWriter(run.metrics) as writer:
        for step in range(1, 10_001):
            writer.append(step=step, loss=step / 2)
    assert read_downsampled(run.metrics) is None
    seen = read_downsampled(run.metrics, 9_000)
    assert seen is not None and seen.total == 10_000
    places = seen.places.tolist()
    assert places == sorted(set(places)) and len(places) == STRETCHES * STRETCH + NEWEST
    assert places[0] == 0 and places[-NEWEST:] == list(range(10_000 - NEWEST, 10_000))
    assert max(after - before for before, after in pairwise(places)) <= 10_000 // STRETCHES + 1
    assert seen.metrics.column("step").tolist() == [place + 1 for place in places]
    with run.metrics.open("r+b") as file:
        file.write(b"something else")
    assert read_downsampled(run.metrics, 9_000) is None
    run.metrics.unlink()
    assert read_downsampled(run.metrics, 9_000) is None
