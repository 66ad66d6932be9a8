"""What a run exported is whole, loads, and never takes the place of anything."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from stored_checkpoints import store_checkpoint

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.export.export import export
from workbench.runs import RunDirectory

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100}


def checkpoint(run: RunDirectory, step: int, mark: bytes = b"") -> Path:
    return store_checkpoint(run, step, {name: content + mark for name, content in FILES.items()})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "runs", "tiny")
    checkpoint(made, 5, b"old")
    checkpoint(made, 10, b"new")
    return made


def test_the_newest_checkpoints_model_is_exported_without_its_state(
    run: RunDirectory, tmp_path: Path
) -> None:
    exported = export(run, tmp_path / "out" / "model")
    assert exported.step == 10
    assert {path.name: path.read_bytes() for path in exported.path.iterdir()} == {
        name: content + b"new" for name, content in FILES.items()
    }
    assert exported.bytes == sum(path.stat().st_size for path in exported.path.iterdir())
    assert not list((tmp_path / "out").glob(".*"))


def test_a_step_can_be_named_and_one_that_is_not_there_is_told_with_those_that_are(
    run: RunDirectory, tmp_path: Path
) -> None:
    assert export(run, tmp_path / "five", step=5).step == 5
    with pytest.raises(ConfigurationError, match="no checkpoint of step 7; there are those of step 10, 5"):
        export(run, tmp_path / "seven", step=7)


def test_nothing_that_is_there_is_touched(run: RunDirectory, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    assert export(run, target).path == target, "an empty folder may be filled"
    with pytest.raises(ConfigurationError, match="is there already"):
        export(run, target, step=5)
    assert (target / "config.json").read_bytes().endswith(b"new")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="is there already"):
        export(run, tmp_path / "file")


def test_a_write_that_fails_leaves_nothing(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(WorkbenchError, match="could not be written: No space left on device"):
        export(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
