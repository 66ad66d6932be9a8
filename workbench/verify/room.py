"""Whether a model and the plain trainings beside it fit in memory, before any is built."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workbench.config import RunConfig
from workbench.engine.devices.device import Device
from workbench.errors import DoesNotFitError
from workbench.formatting import GIB
from workbench.system.free_space import free_host_bytes

KEPT_BYTES = 36
"""Of the host, per parameter: the first weights, what one training by the engine and one by torch came to."""
AT_WORK_BYTES = 76
"""Per parameter: one more training by the engine, or what it came to beside plain torch in float64."""
ACTIVATIONS = 40
"""float64 numbers per token, block and unit of width that a block keeps for its backward, attention apart."""


def check_room(config: RunConfig, shape: Any, model: nn.Module, device: Device) -> None:
    """Refuse to verify `model` (on any device, meta among them) where host or device have too little for it.

    Raises:
        DoesNotFitError: with the bytes needed and free.
    """
    parameters = sum(p.numel() for p in model.parameters())
    activations = _activation_bytes(config, shape)
    own = device.torch_device.type == "cuda"
    needs = {"host": (KEPT_BYTES + AT_WORK_BYTES) * parameters + (0 if own else activations)}
    free = {"host": free_host_bytes()}
    if own:
        needs["device"] = AT_WORK_BYTES * parameters + activations
        free["device"] = torch.cuda.mem_get_info(device.torch_device)[0]
    for tier, needed in needs.items():
        if needed > free[tier]:
            raise DoesNotFitError(
                f"--full: {parameters / 1e6:,.0f} million parameters do not fit on the {tier} beside the plain torch "
                f"training, in fp32 and in float64, that they are verified by: that takes about "
                f"{needed / GIB:,.1f} GiB and {free[tier] / GIB:,.1f} GiB are free. "
                "Without --full a smaller model of the same configuration is verified"
            )


def _activation_bytes(config: RunConfig, shape: Any) -> int:
    text = shape.get_text_config()
    tokens = config.train.micro_batch_size * config.data.sequence_length
    heads = getattr(text, "num_attention_heads", 1)
    attention = 2 * heads * config.data.sequence_length
    blocks = text.num_hidden_layers * (ACTIVATIONS * text.hidden_size + attention)
    return int(8 * tokens * (blocks + 3 * text.vocab_size))
