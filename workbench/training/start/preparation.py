"""Everything before memory is taken: the model's shape, the text, the device, and whether it all fits.

Whatever a user can have wrong about model, data or machine is found here, before a run directory exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from workbench.config import DataConfig, RunConfig
from workbench.config.rules import short_run, vocabulary_warning, without_effect
from workbench.config.tokenizers import made_size
from workbench.data.prepare import TokenData, prepare
from workbench.data.tokenizers import load_tokenizer
from workbench.engine.devices.device import Device, open_device
from workbench.engine.precision import compute_dtypes, dtype_name, working_precision
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.model.build import check_positions
from workbench.optimizer.extension import missing_extension
from workbench.plan.planner import Plan
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import find_checkpoints
from workbench.training.batches.rows import check_rows, with_steps
from workbench.training.records.tensorboard import check_tensorboard
from workbench.training.start.disk_folder import check_disk_folder, disk_folder, doubts
from workbench.training.start.fitting import StoredPrecision, fit, free_bytes, tiers
from workbench.training.start.starting_model import Materialize, StartingModel, give_token_ids, starting_model
from workbench.training.start.text_progress import TextProgress
from workbench.training.start.vocabulary import check_vocabulary


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
    tell: Callable[[str], None],
    directory: RunDirectory | None = None,
    check_stop: Callable[[], None] | None = None,
) -> Prepared:
    """Check and prepare `config` for this machine; its run will lie under `root`, or is there as `directory`.

    `check_stop` is called while the text is prepared, and may raise to break off.

    Raises:
        ConfigurationError: model, data, device or disk folder cannot be had as configured.
        DoesNotFitError: a tier has too little; the message holds the table.
    """
    _quiet_transformers()
    check_tensorboard(config)
    start = starting_model(config, directory, tell)
    model = start.model
    check_positions(start.shape, config.data.sequence_length)
    missing = missing_extension()
    if missing is not None and config.offload.state_format != "exact":
        raise ConfigurationError(
            f'offload.state_format = "{config.offload.state_format}": {missing}, or use "exact"'
        )
    device = _device(config)
    start = start.with_adapter(config.adapter, stored_precision(config, device).storage, tell)
    outputs = start.shape.get_text_config().vocab_size
    for sentence in (
        *without_effect(config, shared_memory=device.shared_memory),
        vocabulary_warning(config, outputs, made_size(config.data.tokenizer)),
    ):
        if sentence:
            tell(f"warning: {sentence}")
    folder = disk_folder(config)
    if folder is not None:
        check_disk_folder(folder)
    data = None
    if config.train.epochs:
        # Only the tokens tell how long the run is, which the plan says.
        data = _data(config, start, directory, tell, check_stop)
        epochs = config.train.epochs
        config = with_steps(config, data)
        tell(f"train.epochs = {epochs:g}: {config.train.steps:,} steps")
    for sentence in short_run(config):
        tell(f"warning: {sentence}")
    free = free_bytes(config, device, root, directory)
    plan = fit(config, model, device, free, tell, start.table(config))
    resolved = plan.config
    doubt = doubts(folder) if folder is not None and "disk" in tiers(resolved) else None
    if doubt is not None:
        tell(f"warning: {doubt}")
    seed = config.train.seed
    weights = start.weights(seed, tell) if start.is_here else None
    if data is None:
        data = _data(config, start, directory, tell, check_stop)
    give_token_ids(start, data.tokenizer.end_of_text)
    if weights is None:
        # Only now: a long download is for a run that can start.
        weights = start.weights(seed, tell)
    return Prepared(resolved, model, data, device, plan, weights)


def _data(
    config: RunConfig,
    start: StartingModel,
    directory: RunDirectory | None,
    tell: Callable[[str], None],
    check_stop: Callable[[], None] | None,
) -> TokenData:
    """The tokens of the run, which the model can take."""
    tell("preparing the text")
    data = prepare(
        config.data if directory is None else _with_tokenizer(config, directory, tell),
        revision=config.model.revision if config.data.tokenizer == config.model.pretrained else "",
        trust_remote_code=config.model.trust_remote_code,
        progress=TextProgress(tell, check_stop),
    )
    for warning in (*data.warnings, *check_rows(config, data)):
        tell(f"warning: {warning}")
    for sentence in filter(None, check_vocabulary(config, start.shape, data)):
        tell(f"warning: {sentence}")
    return data


def _with_tokenizer(config: RunConfig, directory: RunDirectory, tell: Callable[[str], None]) -> DataConfig:
    """The data table of a run that goes on: where its tokenizer cannot be had any more, with its checkpoint's."""
    spec = config.data.tokenizer
    if spec == "bytes" or spec.startswith("bpe:"):
        return config.data
    try:
        revision = config.model.revision if spec == config.model.pretrained else ""
        load_tokenizer(spec, revision=revision, trust_remote_code=config.model.trust_remote_code)
    except WorkbenchError as error:
        saved = next(find_checkpoints(directory.checkpoints, lambda _: None), None)
        if saved is None or not any(name.startswith("tokenizer") for name in saved.manifest["model_files"]):
            raise
        tell(f"warning: {error}; the run goes on with the tokenizer of its checkpoint {saved.path.name}")
        return config.data.model_copy(update={"tokenizer": str(saved.path)})
    return config.data


def _device(config: RunConfig) -> Device:
    try:
        return open_device(config.train.device)
    except ValueError as error:
        raise ConfigurationError(f"train.device = {config.train.device!r}: {error}") from error


def stored_precision(config: RunConfig, device: Device) -> StoredPrecision:
    """What the configuration's precision means on `device`.

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
    return StoredPrecision(storage, computed_in)


def _quiet_transformers() -> None:
    """transformers' remarks and progress bars are not this program's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
