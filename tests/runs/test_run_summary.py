"""The rows of a list of runs: every folder told as what it is, and nothing read twice."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from workbench.runs import MetricsWriter, RunDirectory, Status, summary, write_status
from workbench.runs.finding import _NEWEST_RUNS, newest_trainer
from workbench.runs.status import process_started
from workbench.runs.summary import RunSummaries, RunSummary, summarize

GONE = 2**22 + 1
"""No process has this number: it is above the largest that Linux gives."""


def new_run(root: Path, preset: str = "p", status: Status | None = None) -> RunDirectory:
    run = RunDirectory.create(root, preset)
    run.config.write_text("description = ''\n")
    if status is not None:
        write_status(run, status, durable=False)
    return run


def row_of(root: Path, name: str) -> RunSummary:
    [row] = [row for row in RunSummaries(root).read() if row.name == name]
    return row


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (Status(phase="training"), "running"),
        (Status(phase="paused"), "paused"),
        (Status(phase="finished"), "finished"),
        (Status(phase="stopped"), "stopped"),
        (Status(phase="failed"), "failed"),
        (Status(phase="diverged"), "failed"),
        (Status(phase="training", pid=GONE, pid_started=1.0), "died"),
        (None, "unknown"),
    ],
)
def test_a_run_is_told_in_its_state(tmp_path: Path, status: Status | None, state: str) -> None:
    run = new_run(tmp_path, status=status)
    assert row_of(tmp_path, run.name).state == summarize(run).state == state


def test_a_trainer_that_fell_silent_is_stale_without_a_change_of_any_file(tmp_path: Path) -> None:
    run = new_run(tmp_path, status=Status(phase="training"))
    summaries = RunSummaries(tmp_path)
    assert [row.state for row in summaries.read(time.time())] == ["running"]
    assert [row.state for row in summaries.read(time.time() + 1000)] == ["stale"]
    assert summaries.read_folders == 1
    assert summarize(run, time.time() + 1000).active


def test_a_row_has_what_status_and_metrics_hold(tmp_path: Path) -> None:
    run = new_run(
        tmp_path,
        "gpt2-10b",
        Status(
            phase="stopped",
            step=2,
            total_steps=9,
            loss=2.5,
            validation_loss=2.75,
            tokens_per_s=10.0,
            elapsed_s=61.0,
            exit_code=143,
            message="stopped",
        ),
    )
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1, tokens_total=100)
        writer.append(step=2, tokens_total=200)
    row = summarize(run)
    assert (row.preset, row.step, row.total_steps, row.loss, row.validation_loss) == (
        "gpt2-10b",
        2,
        9,
        2.5,
        2.75,
    )
    assert (row.tokens, row.duration_s, row.exit_code, row.message) == (200, 61.0, 143, "stopped")
    assert row.problem == "" and row.started is not None
    assert abs(row.started - time.time()) < 60


def test_the_newest_run_comes_first_and_what_is_no_run_last(tmp_path: Path) -> None:
    for name in ("20260102-000000-b-aaaaaa", "20260103-000000-a-000000", "zebra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").touch()
    (tmp_path / "zzz-notes").mkdir()
    names = [row.name for row in RunSummaries(tmp_path).read()]
    assert names == ["20260103-000000-a-000000", "20260102-000000-b-aaaaaa", "zebra", "zzz-notes"]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("status.json", None, "status.json is missing"),
        ("status.json", "", "status.json is damaged"),
        ("status.json", '{"phase": "trai', "status.json is damaged"),
        ("status.json", '{"version": 99, "phase": "finished", "step": 3}', "status.json has version 99"),
        ("metrics.bin", "WBMET", "metrics.bin is not a metrics file"),
        ("metrics.bin", "WBMETRIC\x63\0\0\0\2\0\0\0{}", "metrics.bin has version 99"),
        ("metrics.bin", "WBMETRIC\1\0\0\0\x63\0\0\0{}", "metrics.bin has a damaged header"),
    ],
)
def test_a_folder_that_is_half_written_damaged_or_newer_is_told_as_such(
    tmp_path: Path, file: str, content: str | None, problem: str
) -> None:
    run = new_run(tmp_path, status=Status(phase="finished", step=3))
    path = run.path / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content, encoding="latin-1")
    row = summarize(run)
    assert problem in row.problem
    assert str(tmp_path) not in row.problem
    if "99" in problem:
        assert (row.state, row.step) == ("finished", 3)


def test_a_torn_last_record_is_told_once_no_trainer_can_finish_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, status=Status(phase="training"))
    with MetricsWriter(run.metrics) as writer:
        writer.append(step=1, tokens_total=100)
        writer.append(step=2, tokens_total=200)
    os.truncate(run.metrics, run.metrics.stat().st_size - 3)
    assert (summarize(run).tokens, summarize(run).problem) == (100, "")
    write_status(run, Status(phase="failed"))
    assert summarize(run).problem == "metrics.bin ends in the middle of a record"


def test_a_folder_that_is_no_run_is_told_and_hidden_ones_and_links_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "latest").symlink_to("empty")
    (tmp_path / "file").touch()
    [row] = RunSummaries(tmp_path).read()
    assert (row.name, row.state) == ("empty", "foreign")
    assert "not a run" in row.problem


def test_files_that_have_not_changed_are_not_read_again(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, status=Status(phase="finished", step=number)) for number in range(5)]
    summaries = RunSummaries(tmp_path)
    before = summaries.read()
    assert summaries.read_folders == 5
    again = summaries.read()
    assert summaries.read_folders == 5
    assert all(old is new for old, new in zip(before, again, strict=True))
    write_status(runs[2], Status(phase="finished", step=77))
    changed = {row.run: row.step for row in summaries.read()}
    assert (summaries.read_folders, changed[runs[2]]) == (6, 77)
    new_run(tmp_path, status=Status(phase="finished"))
    assert len(summaries.read()) == 6
    assert summaries.read_folders == 7


def test_a_run_that_is_deleted_while_it_is_looked_at_is_no_folder_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path, status=Status(phase="finished"))
    real = summary._stamps

    def deleted_meanwhile(folder: str) -> tuple[object, ...]:
        run.path.rename(tmp_path / ".gone")
        return real(folder)

    monkeypatch.setattr(summary, "_stamps", deleted_meanwhile)
    assert RunSummaries(tmp_path).read() == ()


def numbered(root: Path, number: int, **changes: object) -> RunDirectory:
    """A run that this very process trains, unless `changes` say otherwise; the higher the number, the newer."""
    run = RunDirectory(root / f"20260101-{number:06d}-p-0a1b2c")
    run.path.mkdir(parents=True)
    known = {"phase": "training", "pid": os.getpid(), "pid_started": process_started(os.getpid())}
    write_status(run, Status(**{**known, "host": socket.gethostname(), **changes}), durable=False)  # type: ignore[arg-type]
    return run


def test_the_newest_trainer_is_the_newest_one_on_this_machine(tmp_path: Path) -> None:
    assert newest_trainer(tmp_path / "none") is None
    numbered(tmp_path, 1)
    assert newest_trainer(tmp_path) == os.getpid()
    numbered(tmp_path, 2, host="elsewhere", pid=1)
    numbered(tmp_path, 3, phase="finished", exit_code=0, pid=1)
    assert newest_trainer(tmp_path) == os.getpid()


def test_a_folder_of_thousands_is_not_read_for_the_newest_trainer(tmp_path: Path) -> None:
    numbered(tmp_path, 0)
    for number in range(1, _NEWEST_RUNS + 1):
        numbered(tmp_path, number, phase="finished", exit_code=0)
    assert newest_trainer(tmp_path) is None
