"""The rows that a configuration asks of the tokens: for training, for evaluation, and how many there are.

Invariant: the run trains on what was counted here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from workbench.config import RunConfig
from workbench.config.schema import EvaluateConfig
from workbench.data.batches import Batch, Sampler
from workbench.data.batches.documents import DocumentSampler
from workbench.data.batches.sampling import (
    evaluation_batches,
    open_sampler,
    training_stream,
    validation_stream,
)
from workbench.data.prepare import TokenData
from workbench.errors import ConfigurationError

MOST_STEPS = 1_000_000_000


def training_sampler(config: RunConfig, data: TokenData) -> Sampler:
    """Endless micro-batches. Raises ConfigurationError where there is nothing to learn from."""
    return open_sampler(
        training_stream(data),
        config.data.sequence_length,
        config.train.micro_batch_size,
        config.train.seed,
        separate=config.data.separate_documents,
        padding=data.tokenizer.end_of_text,
    )


def validation_batches(config: RunConfig, data: TokenData) -> Iterator[Batch]:
    """What the model is evaluated on. Raises ConfigurationError, at the first, where nothing of it is counted."""
    return evaluation_batches(
        validation_stream(data),
        config.data.sequence_length,
        config.train.micro_batch_size,
        config.evaluate.tokens,
        separate=config.data.separate_documents,
        padding=data.tokenizer.end_of_text,
    )


def check_rows(config: RunConfig, data: TokenData) -> tuple[str, ...]:
    """Raise ConfigurationError unless there is something to learn from on either side.

    What the user should know of the rows comes back, a sentence each.
    """
    sampler = training_sampler(config, data)
    sampler.next()
    next(validation_batches(config, data))
    told = []
    held, wanted = len(data.validation), config.evaluate.tokens
    # Of the default, nobody has counted on so many.
    if wanted > held and wanted != EvaluateConfig().tokens:
        told.append(
            f"evaluate.tokens = {wanted}: only {held:,} tokens are held out, and each evaluation reads them all; raise "
            f"data.validation_fraction = {config.data.validation_fraction:g} for more"
        )
    if not isinstance(sampler, DocumentSampler):
        return tuple(told)
    stream, length = training_stream(data), config.data.sequence_length
    lengths = np.diff(stream.starts, append=len(stream))
    if sampler.left_out:
        told.append(
            f"{sampler.left_out:,} of {len(lengths):,} documents to train on have nothing to learn, as prompts and "
            "chats without an answer; they are left out"
        )
    cut = int(np.count_nonzero(lengths > length))
    if cut:
        told.append(
            f"data.sequence_length = {length} cuts {cut:,} of {len(lengths):,} documents to train on into pieces, each "
            f"learnt without what stood before it; the longest has {int(lengths.max()):,} tokens"
        )
    return tuple(told)


def with_steps(config: RunConfig, data: TokenData) -> RunConfig:
    """`config` with the steps that `train.epochs` come to in their place; the last one may begin an epoch more.

    Raises:
        ConfigurationError: they are more than a run may have.
    """
    train = config.train
    sequences = training_sampler(config, data).sequences_per_epoch()
    steps = math.ceil(train.epochs * sequences / (train.micro_batch_size * train.gradient_accumulation))
    if steps > MOST_STEPS:
        raise ConfigurationError(
            f"train.epochs = {train.epochs:g}: an epoch has {sequences:,} sequences, which makes {steps:,} steps; "
            f"expected {MOST_STEPS:,} at most"
        )
    return config.model_copy(
        update={"train": train.model_copy(update={"steps": max(1, steps), "epochs": 0.0})}
    )
