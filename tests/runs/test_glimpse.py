"""A glimpse of a long run: records that stand, spread over all of it, the newest without a gap; else nothing."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from workbench.runs import (
    METRIC_COLUMNS,
    MetricsWriter,
    RunDirectory,
    read_metrics,
    read_run_metrics,
    record_resume,
)
from workbench.runs.glimpse import NEWEST, STRETCH, STRETCHES, glimpse

SHORTEST = 9_000


def written(root: Path, *sessions: tuple[int, int]) -> RunDirectory:
    """A run whose trainings did these steps, from the first to the last."""
    run = RunDirectory.create(root, "p")
    for number, (first, last) in enumerate(sessions):
        with MetricsWriter(run.metrics) as writer:
            if number:
                record_resume(run, writer, first)
            for step in range(first, last + 1):
                writer.append(step=step, loss=step + 0.5 * number, step_s=0.5)
    return run


@pytest.mark.parametrize(
    "sessions", [[(1, 10_000)], [(1, 3_000), (2_001, 9_000), (8_500, 12_000)]], ids=["one", "resumed twice"]
)
def test_every_record_seen_stands_where_the_whole_run_has_it(
    tmp_path: Path, sessions: list[tuple[int, int]]
) -> None:
    run = written(tmp_path, *sessions)
    whole = read_run_metrics(run)
    seen = glimpse(run, SHORTEST)
    assert seen is not None and seen.total == len(whole)
    for name in ("step", "loss"):
        column = whole.column(name)
        assert seen.metrics.column(name) == array("d", [column[place] for place in seen.places])
    places = list(seen.places)
    assert places == sorted(set(places)) and len(places) == STRETCHES * STRETCH + NEWEST
    assert places[0] == 0 and places[-NEWEST:] == list(range(len(whole) - NEWEST, len(whole)))
    gaps = [after - before for before, after in pairwise(places)]
    assert max(gaps) <= len(whole) // STRETCHES + 1


def test_a_short_run_one_that_is_damaged_and_none_at_all_have_no_glimpse(tmp_path: Path) -> None:
    run = written(tmp_path, (1, 9_100))
    assert glimpse(run, 9_101) is None and glimpse(run) is None
    assert glimpse(run, SHORTEST) is not None
    with run.metrics.open("r+b") as file:
        file.write(b"something else")
    assert glimpse(run, SHORTEST) is None
    run.metrics.unlink()
    assert glimpse(run, SHORTEST) is None


def test_a_run_of_which_little_stands_has_no_glimpse(tmp_path: Path) -> None:
    assert glimpse(written(tmp_path, (1, 9_000), (10, 500)), SHORTEST) is None


def test_pieces_of_a_file_are_the_whole_file(tmp_path: Path) -> None:
    run = written(tmp_path, (1, 200))
    whole, source = read_metrics(run.metrics), random.Random(4)
    losses, left, start = array("d"), [], 0
    while start < 200:
        piece = read_metrics(run.metrics, start, source.randrange(1, 60))
        losses += piece.column("loss")
        start = piece.next_record
        left.append(piece.records_left)
    assert losses == whole.column("loss") and left[-1] == 0 == whole.records_left
    assert left == sorted(left, reverse=True) and len(METRIC_COLUMNS) == len(whole.columns)
