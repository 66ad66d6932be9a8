"""Whether a configuration fits this machine, and where "auto" puts weights and state.

The arithmetic is in `workbench.plan`; here it meets the machine's free memory and the model's real layout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.config import RunConfig
from workbench.engine.device import Device
from workbench.engine.discovery import dtype_name, find_shards, lay_out
from workbench.errors import DoesNotFitError
from workbench.layout import Layout
from workbench.plan.free import free_disk_bytes, free_host_bytes, same_disk
from workbench.plan.memory import Free, MemoryPlan, plan_memory
from workbench.plan.needs import ModelShape
from workbench.plan.placement import Candidate, Wish, candidates, choose_placement
from workbench.plan.workload import Workload
from workbench.runs import RunDirectory
from workbench.training.checkpoint import checkpoint_bytes
from workbench.training.disk_folder import disk_folder
from workbench.training.engine_options import MIB


@dataclass(frozen=True)
class StoredPrecision:
    """What working weights are stored in, and what stored dtypes are computed in where that differs."""

    storage: torch.dtype
    computed_in: dict[torch.dtype, torch.dtype]


def tiers(config: RunConfig) -> tuple[str, str]:
    """Of the weights and of the state."""
    return config.offload.weights, config.offload.state


def fit(
    config: RunConfig,
    model: nn.Module,
    shape: Any,
    device: Device,
    precision: StoredPrecision,
    free: Free,
    tell: Callable[[str], None],
) -> tuple[RunConfig, MemoryPlan]:
    """The configuration with "auto" replaced by the fastest placement that fits, and its plan.

    Raises:
        DoesNotFitError: none fits, or that which the configuration fixes does not.
    """
    shards = find_shards(model)

    @functools.cache
    def layout_of(device_fraction: float) -> Layout:
        offload = config.offload
        return lay_out(
            shards, precision.storage, offload.chunk_mib * MIB, offload.state_format, device_fraction
        )

    text = shape.get_text_config()
    sizes = ModelShape(text.hidden_size, text.num_hidden_layers, text.vocab_size)

    def plan_of(candidate: Candidate) -> MemoryPlan:
        layout = layout_of(candidate.device_fraction)
        return plan_memory(layout, sizes, _workload(config, candidate, device, precision), free)

    wish = _wish(config, device)
    if wish.is_open:
        chosen, plan = choose_placement(candidates(wish), plan_of)
        tell(f"placement: {chosen}")
        fields = {name: getattr(chosen, name) for name in ("weights", "state", "device_fraction")}
        return config.model_copy(update={"offload": config.offload.model_copy(update=fields)}), plan
    assert wish.weights != "auto" and wish.state != "auto"
    plan = plan_of(Candidate(wish.weights, wish.state, wish.device_fraction))
    if not plan.fits:
        raise DoesNotFitError(
            f"this does not fit on this machine:\n{plan.table()}\n{_way_out(wish, plan_of)}"
            "Lower the model's size, train.micro_batch_size or data.sequence_length, or use a larger machine."
        )
    return config, plan


def _wish(config: RunConfig, device: Device) -> Wish:
    offload = config.offload
    return Wish(
        weights=offload.weights,
        state=offload.state,
        device_fraction=offload.device_fraction,
        state_format=offload.state_format,
        overlap=offload.overlap,
        activation_checkpointing=config.train.activation_checkpointing,
        disk=bool(offload.disk_path),
        shared_memory=device.shared_memory,
    )


def _way_out(wish: Wish, plan_of: Callable[[Candidate], MemoryPlan]) -> str:
    """The fastest placement that would fit, as a sentence; empty where there is none."""
    free = replace(wish, weights="auto", state="auto", device_fraction=0.0)
    fitting = next((c for c in candidates(free) if plan_of(c).fits), None)
    return "" if fitting is None else f"With {fitting} it would fit.\n"


def _workload(
    config: RunConfig, candidate: Candidate, device: Device, precision: StoredPrecision
) -> Workload:
    train = config.train
    return Workload(
        weights=candidate.weights,
        state=candidate.state,
        device_fraction=candidate.device_fraction,
        shared_memory=device.shared_memory,
        precision=dtype_name(precision.storage),
        compute_dtypes={dtype_name(a): dtype_name(b) for a, b in precision.computed_in.items()},
        gradient_accumulation=train.gradient_accumulation,
        gradient_clipping=train.gradient_clipping,
        overlap=config.offload.overlap,
        micro_batch_size=train.micro_batch_size,
        sequence_length=config.data.sequence_length,
        activation_checkpointing=train.activation_checkpointing,
        activations=config.offload.activations,
        checkpoints_kept=config.checkpoint.keep,
        chunk_bytes=config.offload.chunk_mib * MIB,
    )


def free_bytes(config: RunConfig, device: Device, root: Path, directory: RunDirectory | None) -> Free:
    """What this machine has for the run under `root`, leftovers of earlier ones counted as gone."""
    free_device = None
    if device.torch_device.type == "cuda":
        free_device = torch.cuda.mem_get_info(device.torch_device)[0]
    # New checkpoints take the place of those that are there.
    disk = free_disk_bytes(root) + (checkpoint_bytes(directory.checkpoints) if directory else 0)
    folder = disk_folder(config)
    apart = folder is not None and not same_disk(folder, root)
    return Free(
        host=free_host_bytes(),
        device=free_device,
        disk=disk,
        disk_tier=free_disk_bytes(folder) if folder is not None and apart else None,
    )
