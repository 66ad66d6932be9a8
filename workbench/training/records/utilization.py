"""What a share of the device's peak is made of (MFU): the peak, and the work of one token of a model."""

from __future__ import annotations

from typing import Any

import torch

from workbench.engine import OffloadEngine
from workbench.engine.precision import dtype_name
from workbench.training.records.device_peak import peak_flops
from workbench.training.records.throughput import flops_per_token, met_parameters

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What configurations call the number of experts in a block."""


def device_peak(engine: OffloadEngine) -> float | None:
    """FLOP/s of the device in the precision that it computes in; None where that is not known."""
    device = engine.device.torch_device
    if device.type != "cuda":
        return None
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return peak_flops(torch.cuda.get_device_name(device), dtype_name(engine.dtype), tf32=tf32)


def work_a_token(model: Any, engine: OffloadEngine, sequence_length: int) -> float:
    """FLOP of one token, forward and backward."""
    text = model.config.get_text_config()
    experts = next((n for key in EXPERTS if isinstance(n := getattr(text, key, None), int)), 0)
    chosen = getattr(text, "num_experts_per_tok", None)
    sizes: dict[bool, list[tuple[int, ...]]] = {True: [], False: []}
    for unit in engine.layout.units:
        sizes[True] += [segment.shape for segment in unit.segments]
        sizes[False] += [spec.shape for spec in unit.frozen]
    trained, frozen = (
        met_parameters(sizes[kind], experts, chosen if isinstance(chosen, int) else experts)
        for kind in (True, False)
    )
    heads, head_dim = getattr(text, "num_attention_heads", None), getattr(text, "head_dim", None)
    width = text.hidden_size
    if isinstance(heads, int) and isinstance(head_dim, int):
        width = heads * head_dim
    return flops_per_token(trained + frozen, text.num_hidden_layers, width, sequence_length, frozen=frozen)
