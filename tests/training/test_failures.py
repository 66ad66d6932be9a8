"""Whatever the machine refuses ends a run with one sentence: what was refused, what was held, what still stands."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import build_engine, train

from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import LaneError
from workbench.engine.disk_files import DiskError, RecordFile
from workbench.errors import EXIT_ERROR
from workbench.runs.checkpoints import Progress
from workbench.training.checkpoints.save import save_checkpoint
from workbench.training.failures import EngineFailedError, explain

HELD = {"device": {"weights": 3 << 30}, "host": {"master weights": 5 << 30, "staging": 1 << 30}, "disk": {}}


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def message(error: BaseException, tmp_path: Path, held: Any = HELD) -> str:
    failure = explain(error, held, tmp_path / "checkpoints")
    assert isinstance(failure, EngineFailedError) and failure.exit_code == EXIT_ERROR
    assert "\n" not in str(failure)
    return str(failure)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("CUDA error: out of memory"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        caused(LaneError("lane update: update of unit 3 failed"), MemoryError("3 GiB")),
        caused(
            RuntimeError("the engine stopped after an error"),
            caused(LaneError("lane upload"), torch.OutOfMemoryError("CUDA out of memory")),
        ),
    ],
    ids=lambda error: f"{type(error).__name__}-{error!s:.12}",
)
def test_memory_that_runs_out_is_told_with_all_that_held_it(error: BaseException, tmp_path: Path) -> None:
    said = message(error, tmp_path)
    assert said.startswith("out of memory: ")
    assert "device: weights 3.00 GiB; host: master weights 5.00 GiB, staging 1.00 GiB" in said
    assert "train.micro_batch_size" in said and "No checkpoint was saved yet" in said


def test_memory_that_runs_out_before_there_is_an_engine_says_so(tmp_path: Path) -> None:
    assert "while the engine was being built" in message(MemoryError(), tmp_path, None)


def test_errors_of_another_kind_are_left_as_they_are(tmp_path: Path) -> None:
    for error in (
        RuntimeError("shapes differ"),
        ValueError("x"),
        OSError(errno.ENOSPC, "full"),
        KeyError("x"),
    ):
        assert explain(error, HELD, tmp_path) is None


def test_a_disk_that_gives_up_under_a_step_names_the_file_and_the_checkpoint_that_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, checkpoints = tmp_path / "disk", tmp_path / "checkpoints"
    folder.mkdir()
    model, engine = build_engine(weights="disk", state="disk", disk_path=folder)
    with pytest.raises((DiskError, LaneError, RuntimeError)) as error, engine:
        train(model, engine, 1)
        tokenizer = ByteTokenizer()
        save_checkpoint(
            checkpoints, 1, engine=engine, model=model, tokenizer=tokenizer, progress=Progress(), keep=1
        )

        def refuse(file: RecordFile, record: int, buffer: object) -> None:
            raise DiskError(f"{file.name}: record {record} could not be written (No space left on device)")

        monkeypatch.setattr(RecordFile, "write", refuse)
        train(model, engine, 2)
    said = message(error.value, tmp_path)
    assert said.startswith("the disk tier failed: ") and "No space left on device" in said
    assert said.endswith("The checkpoint of step 1 stands: --resume goes on from it")
    assert not list(folder.iterdir())


def test_a_lane_that_fails_for_another_reason_is_named(tmp_path: Path) -> None:
    said = message(
        caused(LaneError("lane update: update of unit 3 failed: boom"), ValueError("boom")), tmp_path
    )
    assert said.startswith("lane update: update of unit 3 failed: boom. ")
