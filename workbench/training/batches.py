"""The batches of a run's configuration: for training, for evaluation, and how many steps an epoch has.

Invariant: the run trains on the sampler that was counted here.
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
from workbench.training.ranks import ranks_of

MOST_STEPS = 1_000_000_000


def training_sampler(config: RunConfig, data: TokenData) -> Sampler:
    """Return endless micro-batches. Raises ConfigurationError where there is nothing to learn from."""
    return open_sampler(
        training_stream(data),
        config.data.sequence_length,
        config.train.micro_batch_size,
        config.train.seed,
        separate=config.data.separate_documents,
        padding=data.tokenizer.end_of_text,
    )


def validation_batches(config: RunConfig, data: TokenData) -> Iterator[Batch]:
    """Yield the batches to evaluate on. Raises ConfigurationError, at the first, where no token is in the loss mask."""
    return evaluation_batches(
        validation_stream(data),
        config.data.sequence_length,
        config.train.micro_batch_size,
        config.evaluate.tokens,
        separate=config.data.separate_documents,
        padding=data.tokenizer.end_of_text,
    )


def check_batches(config: RunConfig, data: TokenData) -> tuple[str, ...]:
    """Return warnings about the batches, a sentence each.

    Raises ConfigurationError unless there is something to learn from in training and in evaluation.
    """
    sampler = training_sampler(config, data)
    sampler.next()
    next(validation_batches(config, data))
    warnings = []
    held, wanted = len(data.validation), config.evaluate.tokens
    # Nobody has asked for the default.
    if wanted > held and wanted != EvaluateConfig().tokens:
        warnings.append(
            f"evaluate.tokens = {wanted}: only {held:,} tokens are held out, and each evaluation reads them all; raise "
            f"data.validation_fraction = {config.data.validation_fraction:g} for more"
        )
    if not isinstance(sampler, DocumentSampler):
        return tuple(warnings)
    stream, length = training_stream(data), config.data.sequence_length
    lengths = np.diff(stream.starts, append=len(stream))
    if sampler.left_out:
        warnings.append(
            f"{sampler.left_out:,} of {len(lengths):,} documents to train on have no tokens in the loss (prompts and "
            "chats without an answer); they are left out"
        )
    cut = int(np.count_nonzero(lengths > length))
    if cut:
        warnings.append(
            f"data.sequence_length = {length} cuts {cut:,} of {len(lengths):,} documents to train on into pieces, each "
            f"trained without its preceding text; the longest has {int(lengths.max()):,} tokens"
        )
    return tuple(warnings)


def sequences_per_step(config: RunConfig) -> int:
    """Return the sequences of a step, those of all ranks."""
    return config.train.micro_batch_size * config.train.gradient_accumulation * ranks_of(config)


def with_steps(config: RunConfig, data: TokenData) -> RunConfig:
    """Return `config` with steps in the place of `train.epochs`; the last step may begin one epoch more.

    Raises:
        ConfigurationError: they are more than a run may have.
    """
    train = config.train
    sequences = training_sampler(config, data).sequences_per_epoch()
    steps = math.ceil(train.epochs * sequences / sequences_per_step(config))
    if steps > MOST_STEPS:
        raise ConfigurationError(
            f"train.epochs = {train.epochs:g}: an epoch has {sequences:,} sequences, which makes {steps:,} steps; "
            f"expected {MOST_STEPS:,} at most"
        )
    return config.model_copy(
        update={"train": train.model_copy(update={"steps": max(1, steps), "epochs": 0.0})}
    )
