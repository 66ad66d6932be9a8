"""Everything before memory is taken: the model's shape, the text, the device, and whether it all fits.

Whatever a user can have wrong about model, data or machine is found here, before a run directory exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from workbench.config import RunConfig
from workbench.config.no_effect import without_effect
from workbench.data.prepare import TokenData, prepare
from workbench.engine.device import Device, open_device
from workbench.engine.discovery import dtype_name
from workbench.engine.precision import compute_dtypes, working_precision
from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta, check_fits_data, model_config
from workbench.optimizer.extension import missing_extension
from workbench.plan.planner import Plan
from workbench.runs import RunDirectory
from workbench.training.disk_folder import check_disk_folder, disk_folder, doubts
from workbench.training.fitting import StoredPrecision, fit, free_bytes, tiers


@dataclass(frozen=True)
class Prepared:
    """A run that can start. `config` has a placement where "auto" was asked for; `model` is on the meta device."""

    config: RunConfig
    model: nn.Module
    data: TokenData
    device: Device
    plan: Plan


def prepare_run(
    config: RunConfig, root: Path, tell: Callable[[str], None], directory: RunDirectory | None = None
) -> Prepared:
    """Check and prepare `config` for this machine; its run will lie under `root`, or is there as `directory`.

    Raises:
        ConfigurationError: model, data, device or disk folder cannot be had as configured.
        DoesNotFitError: a tier has too little; the message holds the table.
    """
    _quiet_transformers()
    settings = dict(config.model.config)
    shape = model_config(config.model.architecture, settings)
    missing = missing_extension()
    if missing is not None and config.offload.state_format != "exact":
        raise ConfigurationError(
            f'offload.state_format = "{config.offload.state_format}": {missing}, or use "exact"'
        )
    device = _device(config)
    stored_precision(config, device)
    for sentence in without_effect(config, shared_memory=device.shared_memory):
        tell(f"warning: {sentence}")
    folder = disk_folder(config)
    if folder is not None:
        check_disk_folder(folder)
    model = build_on_meta(shape)
    free = free_bytes(config, device, root, directory)
    plan = fit(config, model, device, free, tell)
    resolved = plan.config
    doubt = doubts(folder) if folder is not None and "disk" in tiers(resolved) else None
    if doubt is not None:
        tell(f"warning: {doubt}")
    tell("preparing the text")
    data = prepare(
        config.data.source,
        config.data.tokenizer,
        config.data.validation_fraction,
        config.data.sequence_length,
    )
    for warning in data.warnings:
        tell(f"warning: {warning}")
    check_fits_data(shape, data.tokenizer.vocabulary_size, config.data.sequence_length)
    for key in ("bos_token_id", "eos_token_id"):
        if key not in settings:
            setattr(model.config, key, data.tokenizer.end_of_text)
            if getattr(model, "generation_config", None) is not None:
                setattr(model.generation_config, key, data.tokenizer.end_of_text)
    return Prepared(resolved, model, data, device, plan)


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
