"""Everything before memory is taken: the model's shape, the text, the device, and whether it all fits.

Whatever a user can have wrong about model, data or machine is found here, before a run directory exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.config import RunConfig
from workbench.data.prepare import TokenData, prepare
from workbench.engine.device import Device, has_bfloat16, open_device
from workbench.engine.discovery import dtype_name, find_shards, lay_out
from workbench.engine.offload import working_precision
from workbench.errors import ConfigurationError, DoesNotFitError
from workbench.model.build import build_on_meta, check_fits_data, model_config
from workbench.optimizer.extension import missing_extension
from workbench.plan.machine import free_disk_bytes, free_host_bytes
from workbench.plan.memory import MemoryPlan, ModelShape, Workload, plan_memory
from workbench.runs import RunDirectory
from workbench.training.checkpoint import checkpoint_bytes
from workbench.training.engine_options import MIB


@dataclass(frozen=True)
class Prepared:
    """A run that can start. `model` has its parameters on the meta device."""

    model: nn.Module
    data: TokenData
    device: Device
    dtype: torch.dtype
    plan: MemoryPlan


def prepare_run(
    config: RunConfig, root: Path, tell: Callable[[str], None], directory: RunDirectory | None = None
) -> Prepared:
    """Check and prepare `config` for this machine; its run will lie under `root`, or is there as `directory`.

    Raises:
        ConfigurationError: model, data or device cannot be had as configured.
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
    dtype = _precision(config, device)
    model = build_on_meta(shape)
    # New checkpoints take the place of those that are there.
    disk = free_disk_bytes(root) + (checkpoint_bytes(directory.checkpoints) if directory else 0)
    plan = _plan(config, model, shape, device, dtype, disk)
    if not plan.fits:
        raise DoesNotFitError(
            f"this does not fit on this machine:\n{plan.table()}\n"
            "Lower the model's size, train.micro_batch_size or data.sequence_length, or use a larger machine."
        )
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
    return Prepared(model, data, device, dtype, plan)


def _plan(
    config: RunConfig, model: nn.Module, shape: Any, device: Device, dtype: torch.dtype, disk_bytes: int
) -> MemoryPlan:
    layout = lay_out(find_shards(model), dtype, config.offload.chunk_mib * MIB, config.offload.state_format)
    text = shape.get_text_config()
    state = config.offload.state
    assert state in ("device", "host"), "refused by the configuration"
    free_device = None
    if device.torch_device.type == "cuda":
        free_device = torch.cuda.mem_get_info(device.torch_device)[0]
    return plan_memory(
        layout,
        ModelShape(text.hidden_size, text.num_hidden_layers, text.vocab_size),
        Workload(
            state="device" if state == "device" else "host",
            shared_memory=device.shared_memory,
            gradient_accumulation=config.train.gradient_accumulation,
            micro_batch_size=config.train.micro_batch_size,
            sequence_length=config.data.sequence_length,
            activation_checkpointing=config.train.activation_checkpointing,
            checkpoints_kept=config.checkpoint.keep,
            compute_dtype=dtype_name(dtype),
        ),
        free_host_bytes=free_host_bytes(),
        free_device_bytes=free_device,
        free_disk_bytes=disk_bytes,
    )


def _device(config: RunConfig) -> Device:
    try:
        return open_device(config.train.device)
    except ValueError as error:
        raise ConfigurationError(f"train.device = {config.train.device!r}: {error}") from error


def _precision(config: RunConfig, device: Device) -> torch.dtype:
    wanted = config.train.precision
    assert wanted != "fp16", "refused by the configuration"
    if wanted == "bf16" and not has_bfloat16(device):
        raise ConfigurationError(
            f'train.precision = "bf16": {device.torch_device} has no bf16 arithmetic, which would be hundreds of times '
            'slower than fp32; use "fp32" or "auto"'
        )
    return working_precision(wanted, device)


def _quiet_transformers() -> None:
    """transformers' remarks and progress bars are not this program's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
