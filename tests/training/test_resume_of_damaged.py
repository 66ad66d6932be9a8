"""What only reading finds damaged is found by the trainer, and told as what is found before it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_training import build_engine, train

from workbench.data.tokenizers import ByteTokenizer
from workbench.engine import OffloadEngine
from workbench.runs import MetricsWriter, RunDirectory
from workbench.runs.checkpoints import NotResumableError, check_resumable
from workbench.training import session
from workbench.training.checkpoints.checkpoint import save_checkpoint

PROGRESS = {"step": 3, "settings": {}}


def saved_twice(run: RunDirectory) -> None:
    model, engine = build_engine()
    with engine:
        train(model, engine, 1)
        for step in (3, 6):
            save_checkpoint(
                run.checkpoints,
                step,
                engine=engine,
                model=model,
                tokenizer=ByteTokenizer(),
                progress=PROGRESS,
                keep=2,
            )


def flip(checkpoint: Path) -> str:
    """Turn one bit of a state file, and give its name."""
    target = min((checkpoint / "state").glob("*exp_avg"))
    data = bytearray(target.read_bytes())
    data[-1] ^= 1
    target.write_bytes(data)
    return target.name


def resume(run: RunDirectory) -> list[str]:
    """What is warned of."""
    warned: list[str] = []
    trainer: Any = SimpleNamespace(restore=lambda progress: None, settings=dict)
    with_metrics = MetricsWriter(run.metrics)
    journal: Any = SimpleNamespace(warn=warned.append, phase=lambda name: None, metrics=with_metrics)
    engine: OffloadEngine
    _, engine = build_engine(seed=9)
    with engine:
        session._resume(run, engine, trainer, journal)
    return warned


def test_a_flipped_bit_is_warned_of_where_another_checkpoint_stands(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "tiny")
    saved_twice(run)
    name = flip(run.checkpoints / "step-00000006")
    [warning] = resume(run)
    assert f"step-00000006: state/{name} is damaged: its checksum" in warning


def test_where_none_stands_each_has_its_line_and_the_model_can_be_had(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "tiny")
    saved_twice(run)
    names = [flip(run.checkpoints / f"step-{step:08}") for step in (6, 3)]
    check_resumable(run)  # it takes reading
    with pytest.raises(NotResumableError) as refused:
        resume(run)
    _, six, three, *ways = str(refused.value).splitlines()
    assert f"step-00000006: state/{names[0]} is damaged" in six
    assert f"step-00000003: state/{names[1]} is damaged" in three
    assert any(f"export {run.path} DIR --step 6" in way for way in ways)
