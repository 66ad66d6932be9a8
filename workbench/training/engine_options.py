"""Translate a run's configuration into the arguments of its engine and its learning rate schedule.

Invariant: every field of the configuration that the engine knows is handed on as it stands, and nothing is added that
the configuration does not say. So two engines of one configuration differ only in their device and in how their model
gets its values.
"""

from __future__ import annotations

from typing import Any

from workbench.config import RunConfig
from workbench.engine import AdamW, LossScaling
from workbench.engine.devices.device import Device
from workbench.errors import ConfigurationError
from workbench.formatting import MIB
from workbench.optimizer.schedules import LearningRateSchedule
from workbench.system.folders import expanded


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
        ),
        "weights": offload.weights,
        "state": offload.state,
        "device_fraction": offload.device_fraction,
        "state_format": offload.state_format,
        "gradient_accumulation": train.gradient_accumulation,
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
    return LearningRateSchedule(
        kind=schedule.type,
        learning_rate=config.optimizer.learning_rate,
        warmup_steps=schedule.warmup_steps,
        total_steps=schedule.total_steps or config.train.steps,
        min_ratio=schedule.min_ratio,
        warmup_type=schedule.warmup_type,
        warmup_ratio=schedule.warmup_ratio,
        decay_fraction=schedule.decay_fraction,
    )
