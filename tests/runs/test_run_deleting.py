"""Deleting a run: its folder and nothing else, and never one that somebody trains in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs import RunDirectory, Status, find_run, write_status
from workbench.runs.deleting import delete_run, plan_deletion

GONE = 2**22 + 1


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "runs", "p")
    write_status(run, Status(phase="stopped", step=3))
    saved = run.checkpoints / "step-00000003"
    saved.mkdir()
    (saved / "DONE").touch()
    (saved / "weights").write_bytes(bytes(range(256)) * 4096)
    return run


def test_a_run_is_deleted_whole_and_what_it_frees_was_said_before(run: RunDirectory) -> None:
    root = run.path.parent
    kept = RunDirectory.create(root, "kept")
    before = {path for path in root.rglob("*") if kept.path in (path, *path.parents)}
    planned = plan_deletion(run)
    assert run.path.is_dir()
    assert planned.bytes >= 1 << 20
    assert planned.bytes == sum(path.stat().st_blocks * 512 for path in run.path.rglob("*") if path.is_file())
    assert (planned.files, planned.checkpoints) == (4, 1)
    assert delete_run(run).checkpoints == 1
    assert not run.path.exists()
    assert set(root.rglob("*")) - {root / "latest"} == before


def test_the_latest_link_goes_with_the_run_that_it_named_only(run: RunDirectory) -> None:
    latest = run.path.parent / "latest"
    newer = RunDirectory.create(run.path.parent, "newer")
    write_status(newer, Status(phase="stopped"))
    delete_run(run)
    assert find_run(run.path.parent, "latest") == newer and os.path.lexists(latest)
    delete_run(newer)
    assert not os.path.lexists(latest)


@pytest.mark.parametrize("phase", ["training", "paused", "starting"])
def test_a_living_run_is_not_deleted(run: RunDirectory, phase: str) -> None:
    write_status(run, Status(phase=phase))
    with pytest.raises(WorkbenchError, match="stop it first"):
        delete_run(run)
    assert run.config.parent.is_dir() and run.status.exists()


def test_a_run_whose_status_cannot_be_read_is_not_deleted_while_a_trainer_holds_it(run: RunDirectory) -> None:
    run.status.write_text("garbage")
    run.acquire()
    with pytest.raises(WorkbenchError, match="is training it already"):
        delete_run(RunDirectory(run.path))
    assert run.path.is_dir()
    run.release()
    delete_run(run)
    assert not run.path.exists()


def test_a_folder_that_is_no_run_is_not_deleted(tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter").touch()
    with pytest.raises(ConfigurationError, match="not a run"):
        delete_run(RunDirectory(precious))
    with pytest.raises(ConfigurationError, match="no such folder"):
        delete_run(RunDirectory(tmp_path / "nowhere"))
    assert (precious / "chapter").exists()


def test_links_are_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "precious").touch()
    link = tmp_path / "runs" / "link"
    link.symlink_to(run.path)
    with pytest.raises(ConfigurationError, match="is a link"):
        delete_run(RunDirectory(link))
    (run.path / "big").symlink_to(outside)
    delete_run(run)
    assert (outside / "precious").exists() and not run.path.exists()


def test_what_a_crash_left_of_a_deletion_is_no_run_and_goes_with_the_next_one(run: RunDirectory) -> None:
    left = run.path.parent / ".deleting-old-00"
    left.mkdir()
    (left / "status.json").touch()
    assert RunDirectory.list(run.path.parent)[-1] == run
    delete_run(run)
    assert not left.exists()
