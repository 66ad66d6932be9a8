"""How long a run of epochs is, and that there is something to learn from, is known before memory is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workbench.config import RunConfig, parse_config
from workbench.data.prepare import TokenData
from workbench.data.tokenizers import ByteTokenizer
from workbench.errors import ConfigurationError
from workbench.training import batches
from workbench.training.batches import check_batches, training_sampler, with_steps
from workbench.training.prepare import prepare_run


def configured(*changes: str) -> RunConfig:
    text = (
        '[model]\narchitecture = "gpt2"\n[data]\nsequence_length = 8\n'
        "[train]\nmicro_batch_size = 2\ngradient_accumulation = 3\nepochs = 1"
    )
    return parse_config(text, "preset.toml", changes)


def tokens(count: int, documents: Sequence[int] = (0,), marks: Sequence[int] | None = None) -> TokenData:
    ids = torch.arange(count, dtype=torch.int32).to(torch.uint16)
    starts = torch.tensor(documents).view(torch.uint64)
    counted = None if marks is None else torch.tensor(marks, dtype=torch.uint8)
    return TokenData(
        train=ids,
        validation=ids,
        tokenizer=ByteTokenizer(),
        fingerprint="",
        documents=len(documents),
        train_documents=starts,
        validation_documents=starts,
        train_loss_mask=counted,
        validation_loss_mask=counted,
    )


@pytest.mark.parametrize(("epochs", "steps"), [(1, 17), (0.001, 1), (1.5, 25)])
def test_epochs_come_to_as_many_steps_as_their_sequences_fill(epochs: float, steps: int) -> None:
    # 100 windows, 6 a step.
    assert with_steps(configured(f"train.epochs={epochs}"), tokens(800)).train.steps == steps


def test_an_epoch_of_answers_has_as_many_sequences_as_packing_gives() -> None:
    data = tokens(40 * 6, range(0, 240, 6), [0, 0, 1, 1, 1, 1] * 40)
    config = with_steps(configured(), data)
    assert config.train.steps == 7  # 40 rows of a document each, 6 a step
    sampler = training_sampler(config, data)
    batches = [sampler.next() for _ in range(20)]
    assert torch.cat([batch.input_ids[:, :6] for batch in batches]).unique().numel() == 240
    assert sum(batch.loss_tokens for batch in batches) == 160


def test_too_many_epochs_are_refused_with_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_STEPS", 100)
    with pytest.raises(ConfigurationError, match=r"train.epochs = 7: an epoch has 100 sequences.*117 steps"):
        with_steps(configured("train.epochs=7"), tokens(800))


def test_data_without_an_answer_on_either_side_is_refused() -> None:
    good = tokens(40, range(0, 40, 5), [0, 0, 1, 1, 1] * 8)
    assert check_batches(configured(), good) == ()
    (told,) = check_batches(configured(), tokens(40, range(0, 40, 5), [0] * 15 + [0, 0, 1, 1, 1] * 5))
    assert told.startswith("3 of 8 documents to train on have no tokens in the loss")
    none = torch.zeros(40, dtype=torch.uint8)
    for side in ("train_loss_mask", "validation_loss_mask"):
        with pytest.raises(ConfigurationError, match="no tokens in the loss"):
            check_batches(configured(), replace(good, **{side: none}))


def test_documents_that_are_cut_are_told_with_the_length_that_would_hold_them() -> None:
    data = tokens(40, [0, 5, 14, 30], [0, 0, 1, 1, 1] * 8)
    (told,) = check_batches(configured(), data)
    assert told.startswith("data.sequence_length = 8 cuts 3 of 4 documents to train on into pieces")
    assert told.endswith("the longest has 16 tokens")
    assert check_batches(configured("data.sequence_length=16"), data) == ()
    assert check_batches(configured(), tokens(40, [0, 5, 14, 30])) == (), "plain text is read in windows"


def test_more_tokens_to_evaluate_than_are_held_out_are_told_where_they_were_asked_for() -> None:
    assert (
        check_batches(configured("evaluate.tokens=40"), tokens(40))
        == check_batches(configured(), tokens(40))
        == ()
    )
    (told,) = check_batches(configured("evaluate.tokens=4096"), tokens(40))
    assert told.startswith("evaluate.tokens = 4096: only 40 tokens are held out")


def test_a_run_of_epochs_is_prepared_with_its_steps(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("some words " * 1000)
    preset = (
        '[model]\narchitecture = "gpt2"\n[model.config]\nn_layer = 1\nn_embd = 16\nn_head = 2\nn_positions = 32\n'
        f'vocab_size = 257\n[data]\nsource = "{text}"\nsequence_length = 32\nvalidation_fraction = 0.1\n'
        '[train]\ndevice = "cpu"\nepochs = 2\nmicro_batch_size = 3\n[schedule]\nwarmup_steps = 0'
    )
    said: list[str] = []
    prepared = prepare_run(parse_config(preset, "preset.toml"), tmp_path, said.append)
    sequences = len(prepared.data.train) // 32
    steps = -(-2 * sequences // 3)
    assert prepared.config.train.steps == prepared.plan.config.train.steps == steps
    # What is written down has the steps alone: a run that goes on does not count its epochs anew.
    assert prepared.config.train.epochs == 0
    assert f"train.epochs = 2: {steps} steps" in said
