"""What a user should know of a configuration that is right, and will hardly have meant: told, never refused.

Invariant: nothing is said here that the machine decides; that is known to the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.config.architectures import settings_of
from workbench.config.no_effect import without_effect
from workbench.config.schema import RunConfig
from workbench.config.tokenizers import BPE, made_size

MULTIPLE = 64
"""Matrix products like a vocabulary of a multiple of it."""
SPARE = 1.1
"""How many times the tokenizer's tokens a model may have as outputs without a word, where nobody named a number."""


def remarks(config: RunConfig) -> Iterator[str]:
    """A sentence each: for who checks or plans `config`; a run tells them as it comes to know more."""
    yield from without_effect(config, shared_memory=False)
    if not config.train.epochs:
        yield from short_run(config)
    sentence = vocabulary_remark(config, outputs_of(config), made_size(config.data.tokenizer))
    if sentence:
        yield sentence


def short_run(config: RunConfig) -> Iterator[str]:
    """What a run of so few steps never comes to."""
    steps, schedule, offload = config.train.steps, config.schedule, config.offload
    if schedule.warmup_steps > steps:
        yield (
            f"schedule.warmup_steps = {schedule.warmup_steps:,}: the run ends at step {steps:,}, before its learning "
            f"rate has risen to optimizer.learning_rate = {config.optimizer.learning_rate:g}"
        )
    if offload.overlap == "delayed" and offload.delay_warmup >= steps:
        yield (
            f"offload.delay_warmup = {offload.delay_warmup:,}: the run ends at step {steps:,}, before "
            'offload.overlap = "delayed" begins'
        )


def outputs_of(config: RunConfig) -> int | None:
    """How many tokens the model of a [model] table tells apart; None where that is not known from the table."""
    model = config.model
    settings = settings_of(model.architecture) if model.architecture and not model.pretrained else None
    return None if settings is None else settings.number("vocab_size", model.config)


def vocabulary_remark(config: RunConfig, outputs: int | None, tokens: int | None) -> str:
    """How a model of random weights with `outputs` goes with a tokenizer of `tokens`; empty where nothing is odd."""
    model, spec = config.model, config.data.tokenizer
    if model.pretrained or outputs is None or tokens is None:
        return ""
    if outputs < tokens and spec.startswith(BPE):
        return (
            f'the model has {outputs:,} outputs and data.tokenizer = "{spec}" up to {tokens:,} tokens; '
            f"name model.config.vocab_size = {rounded_up(tokens)}"
        )
    if outputs > SPARE * rounded_up(tokens) and "vocab_size" not in model.config:
        return (
            f"the model has {outputs:,} outputs, as {model.architecture} has where model.config.vocab_size is not "
            f"named, and the tokenizer {tokens:,} tokens; name model.config.vocab_size = {rounded_up(tokens)}"
        )
    return ""


def rounded_up(tokens: int) -> int:
    """To a multiple of `MULTIPLE`."""
    return -(-tokens // MULTIPLE) * MULTIPLE
