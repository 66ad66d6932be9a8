"""Metric records, read as they come: the same as a reading of the whole file, and each record once."""

from __future__ import annotations

import math
import random
from array import array
from pathlib import Path

from run_host import NAME, add_steps, new_run

from workbench.runs import (
    MetricsWriter,
    RunDirectory,
    read_events,
    read_run_metrics,
    record_resume,
)
from workbench.tui.run.standing import StandingRecords


class Follower:
    """What a screen holds of a run that it follows."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.records = StandingRecords(run)
        self.steps, self.seconds, self.losses = array("d"), array("d"), array("d")
        self._offset = 0

    def look(self) -> None:
        events = read_events(self.run, self._offset)
        self._offset = events.offset
        self.records.take_events(events.events)
        self.read()

    def read(self) -> None:
        """As `look`, but events that came meanwhile are not seen."""
        rows = self.records.read()
        if rows is not None:
            del self.steps[rows.keep :], self.seconds[rows.keep :], self.losses[rows.keep :]
            self.steps += rows.step
            self.seconds += rows.seconds
            self.losses += rows.loss


def empty_run(root: Path) -> RunDirectory:
    path = root / NAME
    path.mkdir()
    return RunDirectory(path)


def append(writer: MetricsWriter, first: int, last: int, shift: float) -> None:
    for step in range(first, last + 1):
        writer.append(step=step, loss=step + shift, step_s=0.5, tokens_total=100 * step)


def test_what_is_followed_is_what_a_reading_of_the_whole_run_gives(tmp_path: Path) -> None:
    source = random.Random(3)
    for trial in range(30):
        run = empty_run(tmp_path)
        followers = [Follower(run) for _ in range(3)]
        step = 0
        for session in range(source.randrange(1, 6)):
            with MetricsWriter(run.metrics) as writer:
                if session:
                    step = source.randrange(0, step + 1)
                    record_resume(run, writer, step + 1)
                # One sees the records before the event of a resumption.
                for follower in followers[1:2]:
                    follower.read()
                for _ in range(source.randrange(0, 4)):
                    last = step + source.randrange(0, 7)
                    append(writer, step + 1, last, 1000.0 * session)
                    step = last
                    source.choice(followers).read()
                    if source.random() < 0.5:
                        source.choice(followers).look()
        whole = read_run_metrics(run)
        for follower in followers:
            follower.look()
            follower.look()
            assert list(follower.steps) == whole.column("step").tolist(), trial
            assert list(follower.losses) == whole.column("loss").tolist(), trial
            assert list(follower.seconds) == [0.5 * (i + 1) for i in range(len(whole))], trial
            assert len(follower.records) == len(whole)
        for file in (run.metrics, run.events):
            file.unlink(missing_ok=True)
        run.path.rmdir()


def test_every_record_is_read_once(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=0)
    follower = Follower(run)
    for last in range(50, 1001, 50):
        add_steps(run, last - 49, last)
        follower.look()
        follower.look()
    assert follower.records.records_read == 1000 == len(follower.steps)


def test_nothing_new_is_no_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=5)
    records = StandingRecords(run)
    first = records.read()
    assert first is not None and len(first) == 5 and first.keep == 0
    assert records.read() is None


def test_a_torn_last_record_waits_until_it_is_whole(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=4)
    whole = run.metrics.read_bytes()
    run.metrics.write_bytes(whole[:-3])
    follower = Follower(run)
    follower.look()
    assert list(follower.steps) == [1, 2, 3]
    run.metrics.write_bytes(whole)
    follower.look()
    assert list(follower.steps) == [1, 2, 3, 4]


def test_a_file_that_is_damaged_later_leaves_what_was_read(tmp_path: Path) -> None:
    run = new_run(tmp_path, steps=4)
    follower = Follower(run)
    follower.look()
    run.metrics.write_bytes(b"no metrics at all, but something else")
    follower.look()
    assert list(follower.steps) == [1, 2, 3, 4]
    assert "no metrics file" in follower.records.problem


def test_seconds_leave_out_steps_whose_time_is_not_known(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    with MetricsWriter(run.metrics) as writer:
        for step, seconds in ((1, 1.0), (2, None), (3, 2.0)):
            writer.append(step=step, step_s=seconds)
    rows = StandingRecords(run).read()
    assert rows is not None and list(rows.seconds) == [1.0, 1.0, 3.0]
    assert all(math.isnan(value) for value in rows.loss)
