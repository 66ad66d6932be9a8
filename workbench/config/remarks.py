"""What a user should know of a configuration that is right, and will hardly have meant: told, never refused.

Invariant: nothing is said here that the machine decides; that is known to the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workbench.config.architectures import settings_of
from workbench.config.no_effect import without_effect
from workbench.config.schema import RunConfig
from workbench.config.tokenizers import BPE, made_size

MULTIPLE = 64
"""Matrix products like a vocabulary of a multiple of it."""
SPARE = 1.1
"""How many times the tokenizer's tokens a model may have as outputs without a word, where nobody named a number."""


class Remark(NamedTuple):
    """What is odd about `field` (its dotted name): `words` say it where the field is seen, `sentence` anywhere."""

    field: str
    words: str
    sentence: str


def remarks(config: RunConfig) -> Iterator[str]:
    """A sentence each: for who checks or plans `config`; a run tells them as it comes to know more."""
    yield from without_effect(config, shared_memory=False)
    yield from (remark.sentence for remark in remarks_at_fields(config))


def remarks_at_fields(config: RunConfig) -> Iterator[Remark]:
    """`remarks` without the options that do nothing, which a plan knows better."""
    if not config.train.epochs:
        yield from _short_run(config)
    sentence = vocabulary_remark(config, outputs_of(config), made_size(config.data.tokenizer))
    if sentence:
        yield Remark("model.config", sentence, sentence)


def short_run(config: RunConfig) -> Iterator[str]:
    """What a run of so few steps never comes to."""
    yield from (remark.sentence for remark in _short_run(config))


def _short_run(config: RunConfig) -> Iterator[Remark]:
    steps, schedule, offload = config.train.steps, config.schedule, config.offload
    if schedule.warmup_steps > steps:
        words = (
            f"the run ends at step {steps:,}, before its learning rate has risen to "
            f"optimizer.learning_rate = {config.optimizer.learning_rate:g}"
        )
        field = "schedule.warmup_steps"
        yield Remark(field, words, f"{field} = {schedule.warmup_steps:,}: {words}")
    if offload.overlap == "delayed" and offload.delay_warmup >= steps:
        words = f'the run ends at step {steps:,}, before offload.overlap = "delayed" begins'
        field = "offload.delay_warmup"
        yield Remark(field, words, f"{field} = {offload.delay_warmup:,}: {words}")


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
