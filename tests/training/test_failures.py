"""What the machine refuses, or numbers that are not finite, end a run in one line: what happened, what still stands."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import build_engine, save, train

from workbench.config import parse_config
from workbench.engine import LaneError, NonFiniteGradientsError
from workbench.engine.disk_files import DiskError, RecordFile
from workbench.errors import EXIT_DIVERGED, EXIT_ERROR
from workbench.training.failures import EngineFailedError, RecentSteps, diverged, explain

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
        save(checkpoints, 1, model, engine)

        def refuse(file: RecordFile, record: int, buffer: object) -> None:
            raise DiskError(f"{file.name}: record {record} could not be written (No space left on device)")

        monkeypatch.setattr(RecordFile, "write", refuse)
        train(model, engine, 2)
    said = message(error.value, tmp_path)
    assert said.startswith("the disk tier failed: ") and "No space left on device" in said
    assert said.endswith("--resume continues from the checkpoint of step 1")
    assert not list(folder.iterdir())


def test_a_lane_that_fails_for_another_reason_is_named(tmp_path: Path) -> None:
    said = message(
        caused(LaneError("lane update: update of unit 3 failed: boom"), ValueError("boom")), tmp_path
    )
    assert said.startswith("lane update: update of unit 3 failed: boom. ")


MODEL = '[model]\narchitecture = "gpt2"\n'


def divergence(
    root: Path, *overrides: str, precision: str = "float32", recent: RecentSteps | None = None
) -> str:
    error = diverged("why", recent or RecentSteps(), parse_config(MODEL, "p", overrides), root, precision)
    assert error.exit_code == EXIT_DIVERGED
    assert "\n" not in str(error)
    return str(error)


def save_poisoned(root: Path, step: int, poison: float | None, precision: str) -> None:
    model, engine = build_engine(precision=precision)
    with engine:
        if poison is not None:
            kind = "master" if precision == "fp32" else "high"
            tensor: Any = next(t for name, t in reversed(dict(engine.state()).items()) if name.endswith(kind))
            tensor[3] = poison
        save(root, step, model, engine)


def test_the_last_steps_are_told_with_losses_and_norms(tmp_path: Path) -> None:
    recent = RecentSteps()
    for step in range(1, 11):
        recent.add(step, 10.0 * step, 1.5 if step < 10 else math.nan)
    told = divergence(tmp_path, recent=recent)
    assert (
        "why. Before it, steps 5 to 10 had losses 50, 60, 70, 80, 90, 100 and gradient norms 1.5, 1.5" in told
    )
    assert "1.5, nan. No good checkpoint was saved." in told


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_whose_weights_are_not_finite_is_set_aside_and_the_one_before_is_named(
    tmp_path: Path, precision: str, poison: float
) -> None:
    save_poisoned(tmp_path, 3, None, precision)
    save_poisoned(tmp_path, 6, poison, precision)
    told = divergence(tmp_path)
    assert "--resume continues from the last good checkpoint, step 3 (diverged-step-00000006" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diverged-step-00000006", "step-00000003"]
    assert "checkpoint, step 3. What" in divergence(tmp_path)


def test_what_may_help_is_what_the_configuration_has_not_tried(tmp_path: Path) -> None:
    careful = divergence(
        tmp_path, "schedule.warmup_steps=10", "train.gradient_clipping=1", "optimizer.learning_rate=0.01"
    )
    assert careful.endswith("What may help: a lower optimizer.learning_rate (it is 0.01)")
    bold = divergence(
        tmp_path,
        *("train.gradient_clipping=0", "loss_scale.fixed=8", "offload.overlap=delayed"),
        *("optimizer.learning_rate=1", "optimizer.weight_decay=10"),
        precision="float16",
    )
    for said in (
        "warmup_steps is 0",
        "gradient_clipping = 1.0",
        '"bf16"',
        "fixed = 0",
        "weight_decay",
        "lag",
    ):
        assert said in bold


def test_gradients_that_are_not_finite_name_the_first_unit_and_parameter_and_where_backward_met_them() -> (
    None
):
    model, engine = build_engine(gradient_clipping=1.0)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.nan

    with engine:
        # What leaves block 1 backwards is spoilt: its own gradients are good, those before it are not.
        model.transformer.h[1].register_full_backward_hook(
            lambda module, before, after: tuple(None if g is None else spoil(g) for g in before)
        )
        with pytest.raises(NonFiniteGradientsError) as caught:
            train(model, engine, 3)
    error = caught.value
    assert error.step == 3 and error.where is not None
    assert (error.where.parameter, error.where.unit) == (
        "transformer.wte.weight",
        engine.layout.units[0].name,
    )
    assert error.where.met_in == "transformer.h.0" and error.where.units == 2
    assert "2 of 4 units have such gradients, and backward met them first in transformer.h.0" in str(error)
    assert "in 3 steps in a row" in str(error)
