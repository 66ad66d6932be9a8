"""A run whose checkpoints are all damaged is refused before a process is started for it, with a line for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_checkpoints import store_checkpoint

from workbench.errors import WorkbenchError
from workbench.runs import RunDirectory, Status, write_status
from workbench.runs.checkpoints import NotResumableError, check_resumable

FILES = {"0000-h/exp_avg": ("float32", 4), "0000-h/low": ("int16", 2), "0000-h/code": ("uint8", 1)}
ELEMENTS = 6


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "runs", "tiny")
    write_status(run, Status(phase="stopped", step=9, total_steps=20, exit_code=143))
    return run


def checkpoint(run: RunDirectory, step: int) -> Path:
    state = {name: (dtype, ELEMENTS, bytes(size * ELEMENTS)) for name, (dtype, size) in FILES.items()}
    return store_checkpoint(run, step, {"model.safetensors": bytes(10)}, state)


def refusal(run: RunDirectory) -> list[str]:
    with pytest.raises(NotResumableError) as refused:
        check_resumable(run)
    return str(refused.value).splitlines()


def test_one_that_looks_whole_is_enough(run: RunDirectory) -> None:
    checkpoint(run, 3)
    (checkpoint(run, 6) / "DONE").unlink()
    check_resumable(run)


def test_each_damaged_checkpoint_has_a_line_that_names_the_file_within_it(run: RunDirectory) -> None:
    (checkpoint(run, 3) / "model.safetensors").unlink()
    (checkpoint(run, 6) / "state" / "0000-h.low").write_bytes(b"short")
    (checkpoint(run, 9) / "state" / "manifest.json").write_bytes(b"{}")
    first, *lines, mend, export, anew = refusal(run)
    assert first.startswith(f"run {run.name} cannot be resumed")
    assert lines == [
        "  step-00000009: state/manifest.json is damaged: its checksum does not match",
        "  step-00000006: state/0000-h.low has 5 bytes instead of 12",
        "  step-00000003: model.safetensors is missing",
    ]
    assert "backup" in mend
    assert f"workbench export {run.path} DIR --step 6`" in export
    assert f"workbench run {run.config}`" in anew


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", [-1, 1, None])
def test_a_state_file_that_is_missing_or_of_another_length_is_found_without_reading_it(
    run: RunDirectory, name: str, change: int | None
) -> None:
    target = checkpoint(run, 3) / "state" / name.replace("/", ".")
    size = target.stat().st_size
    target.unlink()
    if change is not None:
        target.write_bytes(bytes(size + change))
    said = "is missing" if change is None else f"has {size + change} bytes instead of {size}"
    assert any(f"{target.name} {said}" in line for line in refusal(run))


def test_what_a_save_that_was_cut_off_set_aside_may_be_whole(run: RunDirectory) -> None:
    (checkpoint(run, 3) / "DONE").unlink()
    checkpoint(run, 6).rename(run.checkpoints / ".step-00000006.replaced")
    check_resumable(run)


def test_a_run_without_checkpoints_begins_again_unless_it_is_done(run: RunDirectory) -> None:
    check_resumable(run)
    write_status(run, Status(phase="finished", step=20, total_steps=20, exit_code=0))
    with pytest.raises(WorkbenchError, match="no checkpoint to continue from is left"):
        check_resumable(run)
