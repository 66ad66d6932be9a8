"""A disk that fills up ends a run with exit 1; its last checkpoint stands, and with room it goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trainers import MODEL, Trainers, at_step, losses, wait_for

from workbench.errors import WorkbenchError
from workbench.runs import RunDirectory, liveness, read_status
from workbench.runs.checkpoints import Progress, find_checkpoints

MIB = 1 << 20
CHANGES = ("train.steps=24", "train.gradient_accumulation=2", "checkpoint.every=4")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system of its own can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fill the disk until `leave` bytes are free, never fewer on the way; gives the file that does."""
    hog = disk / "hog"
    with hog.open("wb") as file:
        for _ in range(1000):
            room = os.statvfs(disk)
            too_much = room.f_bavail * room.f_frsize - leave
            if too_much < room.f_frsize:
                break
            size = os.fstat(file.fileno()).st_size
            # Another process writes here too: it may take the room first.
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), size, too_much)
    return hog


def steps(run: RunDirectory) -> list[int]:
    return [saved.step for saved in find_checkpoints(run.checkpoints, lambda message: None)]


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (4 * MIB, "no room for the checkpoint"),
        pytest.param(0, "No space left on device|the disk is full|no room", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_ends_with_1_and_leaves_what_can_be_resumed(
    trainers: Trainers, small_disk: Path, monkeypatch: pytest.MonkeyPatch, leave: int, words: str
) -> None:
    monkeypatch.setitem(trainers.environment, "WORKBENCH_RUNS", str(small_disk / "runs"))
    path = trainers.preset("full")
    sets = [word for change in CHANGES for word in ("--set", change)]
    process = trainers.start("run", path, *sets)

    def run() -> RunDirectory | None:
        runs = RunDirectory.list(small_disk / "runs")
        return runs[0] if runs else None

    directory = wait_for(run, "a run")
    wait_for(at_step(directory, 6), "a checkpoint")
    hog = fill(small_disk, leave)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert f"\nnext:\n  workbench resume {directory.name}  # make room first: " in out and "attach" not in out
    assert any(part in err for part in words.split("|")), err
    assert "Traceback" not in err and "bug in workbench" not in err
    assert err.partition("epochs of the data")[2].count("workbench: ") <= 2
    assert steps(directory) and not list(directory.checkpoints.glob(".step-*"))
    assert liveness(read_status(directory)) in ("failed", "died")

    hog.unlink()
    resumed = trainers.call("run", "--resume", directory.path)
    assert resumed.returncode == 0, resumed.stderr
    assert list(losses(directory)) == list(range(1, 25))
    assert read_status(directory).phase == "finished"


@pytest.mark.parametrize("kib", [4, 40, 150, 200, 400, 600])
def test_a_save_that_fills_the_disk_anywhere_is_an_error_of_one_kind(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, kib: int
) -> None:
    from workbench.data.tokenizers import ByteTokenizer
    from workbench.engine import OffloadEngine
    from workbench.model.build import UnitInitializer, build_on_meta, model_config
    from workbench.training.checkpoints import save as checkpoint

    model = build_on_meta(model_config("gpt2", dict(MODEL)))
    monkeypatch.setattr(checkpoint, "_check_room", lambda *_: None)
    engine = OffloadEngine(model, device="cpu", threads=1, materialize=UnitInitializer(model, 1))
    with engine:
        root = small_disk / "checkpoints"
        save: Callable[[int], Path] = lambda step: checkpoint.save_checkpoint(  # noqa: E731
            root,
            step,
            engine=engine,
            model=model,
            tokenizer=ByteTokenizer(),
            progress=Progress(),
            removal=checkpoint.Removal(),
            keep=2,
        )
        save(1)
        fill(small_disk, kib << 10)
        with pytest.raises(WorkbenchError, match="the checkpoint of step 2 could not be written") as error:
            save(2)
    assert error.value.exit_code == 1
    assert "untouched" in str(error.value)
    assert [path.name for path in root.iterdir()] == ["step-00000001"]
    assert [saved.step for saved in find_checkpoints(root, pytest.fail)] == [1]
