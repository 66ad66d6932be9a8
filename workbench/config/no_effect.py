"""Options that are right in themselves and do nothing in this configuration or on this machine: told, never refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from workbench.config.problems import toml_value
from workbench.config.schema import TABLES, RunConfig
from workbench.config.tokenizers import is_made_here


class NoEffect(NamedTuple):
    """`idle(run, shared_memory)`: whether `field` (its dotted name), which was changed, does nothing; `because` says
    why."""

    field: str
    idle: Callable[[RunConfig, bool], bool]
    because: str


def _has_no_hub_dataset(run: RunConfig, shared: bool) -> bool:
    return not any(source.startswith("hub:") for source in run.data.sources)


def _takes_no_samples(run: RunConfig, shared: bool) -> bool:
    return run.sample.tokens == 0


def _does_not_warm_up(run: RunConfig, shared: bool) -> bool:
    return run.schedule.warmup_steps == 0


def _is_not_fp16(run: RunConfig, shared: bool) -> bool:
    return run.train.precision != "fp16"


def _has_a_fixed_scale(run: RunConfig, shared: bool) -> bool:
    return not _is_not_fp16(run, shared) and run.loss_scale.fixed > 0


_SEARCH = tuple(f"loss_scale.{key}" for key in ("initial_power", "window", "hysteresis", "minimum"))

NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        "model.trust_remote_code",
        lambda run, shared: not run.model.pretrained and is_made_here(run.data.tokenizer),
        "nothing here comes with code",
    ),
    *(
        NoEffect(field, _has_no_hub_dataset, "data.source names no dataset of the hub")
        for field in ("data.subset", "data.split")
    ),
    NoEffect(
        "train.steps",
        lambda run, shared: run.train.epochs > 0,
        "train.epochs decides how many steps there are; leave one of the two out",
    ),
    *(
        NoEffect(field, _is_not_fp16, 'train.precision is not "fp16", and nothing else is scaled')
        for field in ("loss_scale.fixed", *_SEARCH)
    ),
    *(NoEffect(field, _has_a_fixed_scale, "loss_scale.fixed never moves") for field in _SEARCH),
    *(
        NoEffect(field, _does_not_warm_up, "schedule.warmup_steps is 0")
        for field in ("schedule.warmup_type", "schedule.warmup_ratio")
    ),
    NoEffect(
        "schedule.min_ratio",
        lambda run, shared: run.schedule.type == "constant",
        "a constant learning rate does not fall",
    ),
    NoEffect(
        "schedule.decay_fraction",
        lambda run, shared: run.schedule.type != "wsd",
        'schedule.type is not "wsd"',
    ),
    NoEffect(
        "offload.delay_warmup",
        lambda run, shared: run.offload.overlap != "delayed",
        'offload.overlap is not "delayed"',
    ),
    NoEffect(
        "offload.disk_path",
        lambda run, shared: not {"disk", "auto"} & {run.offload.weights, run.offload.state},
        "neither weights nor state are on disk",
    ),
    NoEffect(
        "offload.activations",
        lambda run, shared: shared,
        "the device computes in the host's memory",
    ),
    NoEffect(
        "offload.weights",
        lambda run, shared: run.offload.weights == "host" and shared,
        "the device computes in the host's memory",
    ),
    NoEffect(
        "offload.device_fraction",
        lambda run, shared: shared and run.offload.state != "disk",
        "the device computes in the host's memory",
    ),
    *(
        NoEffect(field, _takes_no_samples, "sample.tokens = 0 turns samples off")
        for field in ("sample.every", "sample.prompt")
    ),
)


def idle_options(config: RunConfig, *, shared_memory: bool) -> Iterator[NoEffect]:
    """The options that do nothing. `shared_memory`: the device computes in the host's memory."""
    for row in NO_EFFECT:
        if _is_changed(config, row.field) and row.idle(config, shared_memory):
            yield row


def without_effect(config: RunConfig, *, shared_memory: bool) -> Iterator[str]:
    """A sentence for the options that do nothing, for each reason one; see `idle_options`."""
    for because, rows in groupby(idle_options(config, shared_memory=shared_memory), lambda row: row.because):
        written = [f"{row.field} = {toml_value(_value(config, row.field))}" for row in rows]
        yield f"{', '.join(written)} {'has' if len(written) == 1 else 'have'} no effect: {because}"


def _is_changed(config: RunConfig, field: str) -> bool:
    """Whether it is not the default; of steps whether they were written, which all their values could be."""
    if field == "train.steps":
        return "steps" in config.train.model_fields_set
    table, _, key = field.partition(".")
    return bool(_value(config, field) != TABLES[table].model_fields[key].default)


def _value(config: RunConfig, field: str) -> Any:
    table, _, key = field.partition(".")
    return getattr(getattr(config, table), key)
