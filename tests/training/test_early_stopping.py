"""A run ends where its validation loss no longer falls, and goes on as if it had never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.runs import RunDirectory, read_events, read_status
from workbench.runs.checkpoints import newest_checkpoint
from workbench.training import trainer
from workbench.training.command import run as train

TINY = [
    "model.config.n_layer=1",
    "model.config.n_embd=16",
    "model.config.n_head=2",
    "model.config.n_positions=16",
    "train.device=cpu",
    "train.micro_batch_size=1",
    "data.sequence_length=16",
    "data.tokenizer=bytes",
    "evaluate.every=2",
    "evaluate.tokens=16",
    "evaluate.patience=2",
    "checkpoint.every=2",
    "checkpoint.keep=9",
    "sample.every=2",
    "sample.tokens=1",
]
LOSSES = {2: 5.0, 4: 3.0, 6: 3.0, 8: 4.0, 10: 2.0, 12: 2.5, 14: 2.5, 16: 1.0}


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the evaluations in turn the losses of this list, whatever the model."""
    left = list(LOSSES.values())
    monkeypatch.setattr(trainer, "validation_loss", lambda *_, **__: left.pop(0))
    return left


def trained(folder: Path, text: Path, steps: int, *options: str, resume: str | None = None) -> RunDirectory:
    words = [*TINY, f"data.source={text}", f"train.steps={steps}", *options]
    assert train(preset=None if resume else "quickstart", overrides=words, runs=folder, resume=resume) == 0
    return RunDirectory.list(folder)[-1]


def test_a_run_ends_when_its_patience_is_at_an_end(
    tmp_path: Path, text_file: Path, losses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, text_file, 20)
    assert (read_status(run).step, read_status(run).phase) == (8, "finished")
    told = "ended after step 8: no lower validation loss in 2 evaluations (evaluate.patience)"
    assert told in capsys.readouterr().out
    assert "ended after step 8 of 20" in read_status(run).message
    kinds = [event.kind for event in read_events(run).events]
    assert (kinds.count("evaluation"), kinds.count("sample"), kinds.count("checkpoint")) == (4, 4, 4)
    # Begun again it has all its patience; it ends at 14, where two evaluations were no lower than that of 10.
    trained(tmp_path, text_file, 20, resume=run.name)
    assert read_status(run).step == 14


def test_a_run_that_was_stopped_ends_where_it_would_have_ended(
    tmp_path: Path, text_file: Path, losses: list[float]
) -> None:
    run = trained(tmp_path, text_file, 6)
    saved = newest_checkpoint(run.checkpoints)
    assert saved is not None
    progress = saved.manifest.progress
    assert (progress.lowest_validation_loss, progress.evaluations_without_gain) == (3.0, 1)
    trained(tmp_path, text_file, 20, resume=run.name)
    assert read_status(run).step == 8


def test_without_patience_a_run_does_all_its_steps(
    tmp_path: Path, text_file: Path, losses: list[float]
) -> None:
    assert read_status(trained(tmp_path, text_file, 16, "evaluate.patience=0")).step == 16
