"""Prepare a run before memory is taken: the model's shape, the text, the device, and the plan that must fit.

Whatever a user can have wrong about model, data or machine is found here, before a run directory exists. Invariants: a
token without an output never reaches the model; every field of the configuration that the engine knows is handed on to
it as it stands, and nothing is added that the configuration does not say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.config import DataConfig, RunConfig
from workbench.config.rules import rounded_up, scratch_rate, short_run, vocabulary_warning, without_effect
from workbench.config.tokenizers import made_size
from workbench.data.prepare import TokenData, prepare, with_evaluation
from workbench.data.tokenizers import load_tokenizer
from workbench.engine import AdamW, LossScaling
from workbench.engine.devices.device import Device, open_device
from workbench.engine.precision import compute_dtypes, dtype_name, working_precision
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.formatting import MIB, duration
from workbench.model.build import check_positions
from workbench.model.freezing import check_patterns, check_something_trains, freeze
from workbench.optimizer import missing_extension
from workbench.optimizer.schedules import LearningRateSchedule
from workbench.plan.planner import Plan
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import newest_checkpoint
from workbench.system.folders import expanded
from workbench.training.batches import check_batches, sequences_per_step, training_sampler, with_steps
from workbench.training.fitting import (
    check_disk_folder,
    disk_folder,
    disk_warning,
    fit,
    free_bytes,
)
from workbench.training.ranks import local_ranks, ranks_of
from workbench.training.starting_model import Materialize, StartingModel, give_token_ids, starting_model
from workbench.training.trackers import check_trackers

_PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True)
class Prepared:
    """A run that can start. `config` has a placement where "auto" was asked for; `model` is on the meta device."""

    config: RunConfig
    model: nn.Module
    data: TokenData
    device: Device
    plan: Plan
    weights: Materialize
    """Gives each unit of `model` its first values."""


def prepare_run(
    config: RunConfig,
    root: Path,
    report: Callable[[str], None],
    directory: RunDirectory | None = None,
    check_stop: Callable[[], None] | None = None,
) -> Prepared:
    """Check and prepare `config` for this machine; its run will lie under `root`, or is there as `directory`.

    `check_stop` is called while the text is prepared, and may raise to end the preparation.

    Raises:
        ConfigurationError: model, data, device or disk folder cannot be had as configured.
        DoesNotFitError: a tier has too little; the message holds the table.
    """
    _quiet_transformers()
    check_trackers(config)
    start = starting_model(config, directory, report)
    check_positions(start.shape, config.data.sequence_length)
    check_extension(config)
    device = _device(config)
    start = start.with_adapter(config.adapter, stored_precision(config, device)[0], report)
    for field, patterns in (
        ("model.freeze", config.model.freeze),
        ("optimizer.no_decay", config.optimizer.no_decay),
        ("optimizer.learning_rate_scales", list(config.optimizer.learning_rate_scales)),
    ):
        check_patterns(start.model, field, patterns)
    freeze(start.model, config.model.freeze)
    check_something_trains(start.model)
    outputs = start.shape.get_text_config().vocab_size
    _warn(
        report,
        *without_effect(config, shared_memory=device.shared_memory),
        vocabulary_warning(config, outputs, made_size(config.data.tokenizer)),
    )
    folder = disk_folder(config)
    if folder is not None:
        check_disk_folder(folder)
    data = None
    if config.train.epochs:
        # Only the tokens decide how long the run is, which the plan shows.
        data = _tokens(config, start, directory, report, check_stop)
        epochs = config.train.epochs
        config = with_steps(config, data)
        report(f"train.epochs = {epochs:g}: {config.train.steps:,} steps")
    _warn(report, *short_run(config), *scratch_rate(config))
    free = free_bytes(config, device, root, directory)
    ranks = ranks_of(config)
    plan = fit(
        config,
        start.model,
        device,
        free,
        report,
        start.table(config),
        ranks=ranks,
        local_ranks=local_ranks(ranks),
    )
    if folder is not None and "disk" in (plan.config.offload.weights, plan.config.offload.state):
        _warn(report, disk_warning(folder))
    seed = config.train.seed
    weights = start.weights(seed, report) if start.is_here else None
    if data is None:
        data = _tokens(config, start, directory, report, check_stop)
    sequences = config.train.steps * sequences_per_step(config)
    epochs = sequences / training_sampler(config, data).sequences_per_epoch()
    report(f"{config.train.steps:,} steps are {epochs:,.3g} epochs of the data")
    give_token_ids(start, data.tokenizer.end_of_text)
    if weights is None:
        # Only now: a long download is for a run that can start.
        weights = start.weights(seed, report)
    return Prepared(plan.config, start.model, data, device, plan, weights)


def check_extension(config: RunConfig) -> None:
    """Raise ConfigurationError where the state format needs the native optimizer and that is not there."""
    missing = missing_extension()
    if missing is not None and config.offload.state_format != "exact":
        raise ConfigurationError(
            f'offload.state_format = "{config.offload.state_format}": {missing}, or use "exact"'
        )


def stored_precision(config: RunConfig, device: Device) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes in which working weights are stored and computed on `device`.

    Raises:
        ConfigurationError: it needs activation checkpointing there, which is off.
    """
    wanted = config.train.precision
    storage = working_precision(wanted, device)
    computed_in = compute_dtypes("auto", device)
    if storage in computed_in and not config.train.activation_checkpointing:
        raise ConfigurationError(
            f'train.precision = "{wanted}": {device.torch_device} has no such arithmetic, so that weights stored in 16 '
            f"bits are computed in {dtype_name(computed_in[storage])} block by block, which needs "
            'train.activation_checkpointing = true; or use "fp32"'
        )
    return storage, computed_in.get(storage, storage)


def check_vocabulary(config: RunConfig, shape: Any, data: TokenData) -> Iterator[str]:
    """Yield warnings about how tokenizer and model go together. `shape`: the model's configuration.

    A tokenizer may have tokens without an output of the model, as long as no text of the run has one.

    Raises:
        ConfigurationError: a token of the text, of the sample's prompt, or the end of a text has no output.
    """
    outputs: int = shape.get_text_config().vocab_size
    tokens = data.tokenizer.vocabulary_size
    if made_size(config.data.tokenizer) is None:  # else it was reported before there were tokens
        yield vocabulary_warning(config, outputs, tokens)
    if tokens <= outputs:
        return
    largest = _largest_id(config, data)
    if largest < outputs:
        yield (
            f"the tokenizer has {tokens:,} tokens and the model {outputs:,} outputs; none of the others is in the text"
        )
        return
    used = f", and id {largest:,} occurs" if largest < tokens - 1 else ""
    way_out = (
        "choose its own in data.tokenizer"
        if config.model.pretrained
        else f"give the model at least as many, such as {rounded_up(tokens)}, or choose another data.tokenizer"
    )
    raise ConfigurationError(
        f"model.config.vocab_size = {outputs}: the tokenizer has {tokens} tokens{used}; {way_out}"
    )


def engine_options(config: RunConfig, *, device: Device | str, **changes: Any) -> dict[str, Any]:
    """Return the keyword arguments of `OffloadEngine` for `config`, all but `materialize`.

    `changes` replace arguments that the configuration gives (a tier chosen for "auto", another overlap to compare
    with).

    Raises:
        ConfigurationError: a tier is "auto": the placement has to be chosen first.
    """
    offload, train, optimizer, scale = config.offload, config.train, config.optimizer, config.loss_scale
    options: dict[str, Any] = {
        "optimizer": AdamW(
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            coupled_decay=optimizer.type == "adam",
            no_decay=tuple(optimizer.no_decay),
            learning_rate_scales=tuple(optimizer.learning_rate_scales.items()),
        ),
        "weights": offload.weights,
        "state": offload.state,
        "device_fraction": offload.device_fraction,
        "state_format": offload.state_format,
        "gradient_accumulation": train.gradient_accumulation,
        "gradient_sums": "host" if offload.gradient_sums == "auto" else offload.gradient_sums,
        "gradient_clipping": train.gradient_clipping,
        "overlap": offload.overlap,
        "delay_warmup": offload.delay_warmup,
        "precision": train.precision,
        "loss_scale": LossScaling(
            fixed=scale.fixed,
            initial=2.0**scale.initial_power,
            window=scale.window,
            hysteresis=scale.hysteresis,
            minimum=scale.minimum,
        ),
        "activation_checkpointing": train.activation_checkpointing,
        "activations": offload.activations,
        "disk_path": expanded(offload.disk_path, "offload.disk_path") if offload.disk_path else None,
        "chunk_bytes": offload.chunk_mib * MIB,
        "threads": offload.threads,
        "device": device,
        **changes,
    }
    for tier in ("weights", "state"):
        if options[tier] == "auto":
            raise ConfigurationError(f'offload.{tier} = "auto": the placement has to be chosen first')
    return options


def learning_rate_schedule(config: RunConfig) -> LearningRateSchedule:
    """Return the learning rates of a run of `config`."""
    schedule = config.schedule
    total_steps = schedule.total_steps or config.train.steps
    return LearningRateSchedule(
        kind=schedule.type,
        learning_rate=config.optimizer.learning_rate,
        warmup_steps=schedule.warmup_steps or math.ceil(schedule.warmup_fraction * total_steps),
        total_steps=total_steps,
        min_ratio=schedule.min_ratio,
        warmup_type=schedule.warmup_type,
        warmup_ratio=schedule.warmup_ratio,
        decay_fraction=schedule.decay_fraction,
    )


class TextProgress:
    """Reports how far the preparation of the text is, every five seconds; a quick one reports nothing.

    Called with what is being done, the bytes done and the bytes in all. `check` is called each time, and may raise.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        check: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._check = check
        self._clock = clock
        self._what = ""
        self._began = self._reported = clock()
        self._first = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._check is not None:
            self._check()
        now = self._clock()
        if what != self._what:
            self._what, self._began, self._first = what, now, done
        elif now - self._reported >= _PROGRESS_EVERY_S:
            self._reported = now
            line = f"{what}: {done / max(1, total):.0%}, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
            rate = (done - self._first) / (now - self._began) if now > self._began else 0.0
            if done < total and rate > 0:
                line += f", {rate / 1e6:.1f} MB/s, {duration((total - done) / rate)} left"
            self._report(line)


def _tokens(
    config: RunConfig,
    start: StartingModel,
    directory: RunDirectory | None,
    report: Callable[[str], None],
    check_stop: Callable[[], None] | None,
) -> TokenData:
    """Return the tokens of the run, each of which has an output of the model."""
    report("preparing the text")
    table = config.data if directory is None else _with_tokenizer(config, directory, report)
    if config.evaluate.source:
        table = table.model_copy(update={"validation_fraction": 0.0})
    data = prepare(
        table,
        revision=config.model.revision if config.data.tokenizer == config.model.pretrained else "",
        trust_remote_code=config.model.trust_remote_code,
        progress=TextProgress(report, check_stop),
    )
    data = with_evaluation(data, table, config.evaluate)
    _warn(report, *data.warnings, *check_batches(config, data), *check_vocabulary(config, start.shape, data))
    return data


def _with_tokenizer(config: RunConfig, directory: RunDirectory, report: Callable[[str], None]) -> DataConfig:
    """Return the data table of a resumed run: with its checkpoint's tokenizer where its own cannot be had any more."""
    spec = config.data.tokenizer
    if spec == "bytes" or spec.startswith("bpe:"):
        return config.data
    try:
        revision = config.model.revision if spec == config.model.pretrained else ""
        load_tokenizer(spec, revision=revision, trust_remote_code=config.model.trust_remote_code)
    except WorkbenchError as error:
        saved = newest_checkpoint(directory.checkpoints)
        if saved is None or not any(name.startswith("tokenizer") for name in saved.manifest.model_files):
            raise
        report(f"warning: {error}; the run continues with the tokenizer of its checkpoint {saved.path.name}")
        return config.data.model_copy(update={"tokenizer": str(saved.path)})
    return config.data


def _largest_id(config: RunConfig, data: TokenData) -> int:
    """Return the largest id that the model is given in training, evaluation and samples."""
    prompt = data.tokenizer.encode(config.sample.prompt) if config.sample.tokens else []
    all_sides = (data.train, data.validation, *(other.validation for other in data.others.values()))
    sides = [side.numpy() for side in all_sides if len(side)]
    return max(data.tokenizer.end_of_text, *prompt, *(int(side.max()) for side in sides))


def _device(config: RunConfig) -> Device:
    try:
        return open_device(config.train.device)
    except ValueError as error:
        raise ConfigurationError(f"train.device = {config.train.device!r}: {error}") from error


def _warn(report: Callable[[str], None], *sentences: str) -> None:
    for sentence in filter(None, sentences):
        report(f"warning: {sentence}")


def _quiet_transformers() -> None:
    """Keep transformers' remarks and progress bars out of this program's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
