"""Rules about fields that are right one by one: contradictions, options without effect, and warnings.

Tables of data. A configuration with a contradiction is refused with a sentence; an option that does nothing, or a value
that is probably a mistake, gets a warning and is never refused. Nothing is ignored in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from workbench.config.schema import TABLES, RunConfig
from workbench.config.tokenizers import BPE, LARGEST, SMALLEST, bpe_size, is_made_here, made_size
from workbench.config.toml_text import KeyPath, toml_value

MULTIPLE = 64
"""Matrix products are fastest with a vocabulary of a multiple of it."""
SPARE = 1.1
"""Outputs of a model for each token of its tokenizer without a warning, where nobody named a vocabulary."""


class Problem(NamedTuple):
    """Something wrong at `path`, in two half sentences."""

    path: KeyPath
    wrong: str
    right: str


def nearest(wrong: str, right: Iterable[str]) -> str | None:
    """Return the one of `right` that `wrong` was probably meant to be, if any."""
    near = difflib.get_close_matches(wrong.lower(), list(right), n=1)
    return near[0] if near else None


class Contradiction(NamedTuple):
    """Fields that must agree, or one of which more than its type is asked.

    Reported at the first of them, and only when all of them are well formed.
    """

    fields: tuple[str, ...]
    broken: Callable[[RunConfig], bool]
    wrong: str
    right: str


CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction(
        ("model.architecture", "model.pretrained"),
        lambda run: not run.model.architecture and not run.model.pretrained,
        "no model is named",
        'name one, for example architecture = "gpt2"',
    ),
    Contradiction(
        ("model.config", "model.architecture"),
        lambda run: bool(run.model.config) and not run.model.architecture,
        "sizes are given without an architecture",
        "name the architecture, or leave [model.config] out",
    ),
    Contradiction(
        ("model.revision", "model.pretrained"),
        lambda run: bool(run.model.revision) and not run.model.pretrained,
        "a revision is given without a hub id",
        "name the hub id in model.pretrained, or leave it out",
    ),
    Contradiction(
        ("data.tokenizer",),
        lambda run: run.data.tokenizer.startswith(BPE) and bpe_size(run.data.tokenizer) is None,
        "no BPE of such a size can be trained",
        f'must be "{BPE}SIZE" with a whole number from {SMALLEST} (all bytes, and the end of a text) to {LARGEST:,}',
    ),
    Contradiction(
        ("train.activation_checkpointing", "offload.weights"),
        lambda run: run.offload.weights in ("host", "disk") and not run.train.activation_checkpointing,
        "weights that leave the device cannot be trained without activation checkpointing",
        'set it to true, or offload.weights = "device"',
    ),
    Contradiction(
        ("offload.disk_path", "offload.weights", "offload.state"),
        lambda run: "disk" in (run.offload.weights, run.offload.state) and not run.offload.disk_path,
        "the disk tier has no folder",
        "name a folder on a fast disk",
    ),
    Contradiction(
        ("offload.state", "offload.weights"),
        lambda run: run.offload.weights in ("host", "disk") and run.offload.state == "device",
        "the state cannot stay on the device when the weights leave it",
        'must be "host" or "disk"',
    ),
    Contradiction(
        ("offload.state", "offload.weights"),
        lambda run: run.offload.weights == "disk" and run.offload.state == "host",
        "the weights are on disk, and the state is larger than they are",
        'must be "disk" as well',
    ),
    Contradiction(
        ("offload.state_format", "offload.state"),
        lambda run: run.offload.state_format != "exact" and run.offload.state == "device",
        "on the device the state is kept exact",
        'must be "exact", or offload.state = "host"',
    ),
    Contradiction(
        ("offload.device_fraction", "offload.state"),
        lambda run: run.offload.device_fraction > 0 and run.offload.state == "device",
        "all of the state is on the device already",
        'must be 0, or offload.state = "host"',
    ),
    Contradiction(
        ("offload.overlap", "offload.weights"),
        lambda run: run.offload.overlap == "delayed" and run.offload.weights == "disk",
        "a delayed update keeps the weights twice, and the disk would be read and written twice for it",
        'must be "exact" or "serial", or offload.weights = "host"',
    ),
    Contradiction(
        ("offload.activations", "train.activation_checkpointing"),
        lambda run: run.offload.activations == "host" and not run.train.activation_checkpointing,
        "only activations that checkpointing keeps can move to the host",
        'must be "device", or train.activation_checkpointing = true',
    ),
    Contradiction(
        ("parallel.gpus", "train.device"),
        lambda run: run.parallel.gpus != 1 and run.train.device.startswith("cuda:"),
        "train.device names one GPU",
        'must be 1, or train.device = "cuda"',
    ),
    Contradiction(
        ("schedule.warmup_fraction", "schedule.warmup_steps"),
        lambda run: run.schedule.warmup_fraction > 0 and run.schedule.warmup_steps > 0,
        "the length of the warm-up is given twice",
        "must be 0, or schedule.warmup_steps = 0",
    ),
    Contradiction(
        ("loss_scale.minimum", "loss_scale.initial_power"),
        lambda run: run.loss_scale.minimum > 2.0**run.loss_scale.initial_power,
        "the scale would start below its minimum",
        "must be at most 2 to that power",
    ),
)


def broken_rules(config: RunConfig, ill_formed: Collection[str] = ()) -> Iterator[Problem]:
    """Yield a problem for every rule that `config` breaks, but for those about a field that is `ill_formed`."""
    for rule in CONTRADICTIONS:
        if not set(ill_formed) & set(rule.fields) and rule.broken(config):
            first, *others = rule.fields
            values = ", ".join(f"{other} = {toml_value(_value(config, other))}" for other in others)
            wrong = f"{rule.wrong} ({values})" if others else rule.wrong
            yield Problem(tuple(first.split(".")), wrong, rule.right)


def _value(config: RunConfig, field: str) -> Any:
    value: Any = config
    for name in field.split("."):
        value = getattr(value, name)
    return value


# Options without effect


class NoEffect(NamedTuple):
    """Options (dotted names) that do nothing where `idle(run, shared_memory)`, and why."""

    fields: tuple[str, ...]
    idle: Callable[[RunConfig, bool], bool]
    because: str


_SEARCH = tuple(f"loss_scale.{key}" for key in ("initial_power", "window", "hysteresis", "minimum"))
_SHARED = "the device computes in the host's memory"

NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        ("model.trust_remote_code",),
        lambda run, shared: not run.model.pretrained and is_made_here(run.data.tokenizer),
        "no pretrained model or tokenizer is used",
    ),
    NoEffect(
        ("data.subset", "data.split"),
        lambda run, shared: not any(source.startswith("hub:") for source in run.data.sources),
        "data.source names no dataset of the hub",
    ),
    NoEffect(
        ("train.steps",),
        lambda run, shared: run.train.epochs > 0,
        "train.epochs decides how many steps there are; leave one of the two out",
    ),
    NoEffect(
        ("loss_scale.fixed", *_SEARCH),
        lambda run, shared: run.train.precision != "fp16",
        'train.precision is not "fp16", and nothing else is scaled',
    ),
    NoEffect(
        ("train.tf32",),
        lambda run, shared: shared or run.train.precision != "fp32",
        'it is for train.precision = "fp32" on a GPU',
    ),
    NoEffect(
        _SEARCH,
        lambda run, shared: run.train.precision == "fp16" and run.loss_scale.fixed > 0,
        "loss_scale.fixed never changes",
    ),
    NoEffect(
        ("schedule.warmup_type", "schedule.warmup_ratio"),
        lambda run, shared: not run.schedule.warmup_steps and not run.schedule.warmup_fraction,
        "schedule.warmup_steps and schedule.warmup_fraction are 0",
    ),
    NoEffect(
        ("schedule.min_ratio",),
        lambda run, shared: run.schedule.type == "constant",
        "a constant learning rate does not fall",
    ),
    NoEffect(
        ("schedule.decay_fraction",),
        lambda run, shared: run.schedule.type != "wsd",
        'schedule.type is not "wsd"',
    ),
    NoEffect(
        ("offload.delay_warmup",),
        lambda run, shared: run.offload.overlap != "delayed",
        'offload.overlap is not "delayed"',
    ),
    NoEffect(
        ("offload.disk_path",),
        lambda run, shared: not {"disk", "auto"} & {run.offload.weights, run.offload.state},
        "neither weights nor state are on disk",
    ),
    NoEffect(("offload.activations",), lambda run, shared: shared, _SHARED),
    NoEffect(
        ("offload.gradient_sums",),
        lambda run, shared: shared or run.train.gradient_accumulation == 1 or run.offload.state == "disk",
        "it is for a state on the host of a device, and several micro-batches",
    ),
    NoEffect(("offload.weights",), lambda run, shared: shared and run.offload.weights == "host", _SHARED),
    NoEffect(
        ("offload.device_fraction",), lambda run, shared: shared and run.offload.state != "disk", _SHARED
    ),
    NoEffect(
        ("data.validation_fraction",),
        lambda run, shared: bool(run.evaluate.source),
        "the run evaluates on evaluate.source and trains on all of data.source",
    ),
    NoEffect(
        ("evaluate.patience",),
        lambda run, shared: run.evaluate.every == 0,
        "evaluate.every = 0 evaluates only at the end",
    ),
    NoEffect(
        ("sample.every", "sample.prompt"),
        lambda run, shared: run.sample.tokens == 0,
        "sample.tokens = 0 turns samples off",
    ),
)


def idle_options(config: RunConfig, *, shared_memory: bool) -> Iterator[tuple[str, str]]:
    """Yield each option that does nothing, and why. `shared_memory`: the device computes in the host's memory."""
    for row in NO_EFFECT:
        if row.idle(config, shared_memory):
            yield from ((field, row.because) for field in row.fields if _is_changed(config, field))


def without_effect(config: RunConfig, *, shared_memory: bool) -> Iterator[str]:
    """Yield a sentence for the options that do nothing, one for each reason; see `idle_options`."""
    for because, idle in groupby(idle_options(config, shared_memory=shared_memory), itemgetter(1)):
        written = [f"{field} = {toml_value(_value(config, field))}" for field, _ in idle]
        yield f"{', '.join(written)} {'has' if len(written) == 1 else 'have'} no effect: {because}"


def _is_changed(config: RunConfig, field: str) -> bool:
    """Return True for another value than the default; steps were written, or not: all their values could be."""
    if field == "train.steps":
        return "steps" in config.train.model_fields_set
    table, _, key = field.partition(".")
    return bool(_value(config, field) != TABLES[table].model_fields[key].default)


# Warnings


class FieldWarning(NamedTuple):
    """A value that is probably a mistake. `words`: beside the field on the screen; `sentence`: anywhere else."""

    field: str
    words: str
    sentence: str


def warnings(config: RunConfig) -> Iterator[str]:
    """Yield the sentences of `config check` and `plan`; a run warns as it comes to know more."""
    yield from without_effect(config, shared_memory=False)
    yield from (each.sentence for each in field_warnings(config))


def field_warnings(config: RunConfig) -> Iterator[FieldWarning]:
    """Yield `warnings` without the options that do nothing, which a plan knows better."""
    if not config.train.epochs:
        yield from _short_run(config)
    yield from _scratch_rate(config)
    sentence = vocabulary_warning(config, named_size(config, "vocab_size"), made_size(config.data.tokenizer))
    if sentence:
        yield FieldWarning("model.config", sentence, sentence)


def scratch_rate(config: RunConfig) -> Iterator[str]:
    """Yield a sentence where pretrained weights would get the rate of a training from scratch, which nobody wrote."""
    yield from (each.sentence for each in _scratch_rate(config))


def _scratch_rate(config: RunConfig) -> Iterator[FieldWarning]:
    field = "optimizer.learning_rate"
    if (
        config.model.pretrained
        and not config.adapter
        and "learning_rate" not in config.optimizer.model_fields_set
    ):
        words = "the default is for training from scratch; fine-tuning takes 1e-5 to 5e-5"
        yield FieldWarning(field, words, f"{field} = {config.optimizer.learning_rate:g}: {words}")


def short_run(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each phase that a run of so few steps never reaches."""
    yield from (each.sentence for each in _short_run(config))


def _short_run(config: RunConfig) -> Iterator[FieldWarning]:
    steps, schedule, offload = config.train.steps, config.schedule, config.offload
    if schedule.warmup_steps > steps:
        words = (
            f"the run ends at step {steps:,}, before its learning rate has risen to "
            f"optimizer.learning_rate = {config.optimizer.learning_rate:g}"
        )
        field = "schedule.warmup_steps"
        yield FieldWarning(field, words, f"{field} = {schedule.warmup_steps:,}: {words}")
    if offload.overlap == "delayed" and offload.delay_warmup >= steps:
        words = f'the run ends at step {steps:,}, before offload.overlap = "delayed" begins'
        field = "offload.delay_warmup"
        yield FieldWarning(field, words, f"{field} = {offload.delay_warmup:,}: {words}")


def named_size(config: RunConfig, *names: str) -> int | None:
    """Return the first of these whole numbers in [model.config]; None where none is written there."""
    sizes = (config.model.config.get(name) for name in names)
    return next((size for size in sizes if isinstance(size, int) and not isinstance(size, bool)), None)


def vocabulary_warning(config: RunConfig, outputs: int | None, tokens: int | None) -> str:
    """Return a warning where a new model's `outputs` do not suit a tokenizer of `tokens`; else an empty text."""
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
    """Return `tokens` rounded up to a multiple of `MULTIPLE`."""
    return -(-tokens // MULTIPLE) * MULTIPLE
