"""What a case will need, estimated before it is started: so that one that cannot fit is skipped with a reason.

Rough on purpose: it decides what is worth starting, and the case itself measures what it took.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from benchmarks.engine.machine import GIB
from benchmarks.gpu.cases import Case
from workbench.layout import moment_bytes

CHUNK_BYTES = 16 << 20
CHUNKED_LOGIT_BYTES = 3 * (64 << 20)
SLACK_BYTES = GIB // 2
"""What the caching allocator holds beside what is asked of it."""
HOST_BASE_BYTES = 5 * GIB
"""Python, torch and its CUDA libraries, and one unit in fp32 while the model is built."""
BLOCK_ACTIVATIONS = 34
"""Bytes for each token and unit of width that a block keeps in 16 bits (Korthikanti et al., 2022, §4.1)."""


@dataclass(frozen=True)
class Needs:
    """Bytes at the peak, about."""

    device: int
    host: int


def needs(case: Case, micro_batch: int, sequence: int) -> Needs:
    """What `case` needs with activation checkpointing."""
    shape, tokens = case.shape, micro_batch * sequence
    count, outer = shape.parameters, shape.outer_parameters
    activations = (
        2 * shape.n_layer * tokens * shape.n_embd  # each block's input
        + BLOCK_ACTIVATIONS * tokens * shape.n_embd
        + 4 * shape.block_parameters  # one block's gradients, and those on their way
    )
    own_logits = tokens * shape.vocab_size * (2 + 4 + 4)
    if case.contender != "engine":
        device = {"torch": 8 * count, "torchao": 4 * count, "deepspeed": 4 * count}[case.contender]
        host = {"torch": 0, "torchao": 8 * count, "deepspeed": 18 * count}[case.contender]
        return Needs(device + activations + own_logits + SLACK_BYTES, host + HOST_BASE_BYTES)
    if case.state == "device":
        weights, state = 12 * count, 0  # split master and fp32 moments beside the weights
        weights += 2 * count  # gradients wait for the verdict, or are referenced
    else:
        resident = count if case.weights == "device" else outer + 3 * shape.block_parameters
        weights = 2 * resident + 4 * outer + 2 * CHUNK_BYTES  # the embedding's chunks in slots twice
        state = 4 * count + moment_bytes(case.state_format, count)
        waiting = case.clipping or case.overlap == "delayed"
        sets = 2 if case.overlap == "delayed" else 1
        state += sets * 2 * count if waiting else 4 * outer
        state += 2 * count if case.overlap == "delayed" else 0  # a published copy of the weights
    return Needs(weights + activations + CHUNKED_LOGIT_BYTES + SLACK_BYTES, state + HOST_BASE_BYTES)


def reason_to_skip(
    case: Case, micro_batch: int, sequence: int, device_bytes: int | None, host_bytes: int
) -> str | None:
    """Why `case` is not worth starting here, in words; None where it is."""
    for contender, module in (("torchao", "torchao"), ("deepspeed", "deepspeed")):
        if case.contender == contender and importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    if case.contender in ("torchao", "deepspeed") and device_bytes is None:
        return f"{case.contender} needs a CUDA device"
    estimated = needs(case, micro_batch, sequence)
    if device_bytes is not None and estimated.device > device_bytes:
        return (
            f"needs about {estimated.device / GIB:.1f} GiB on the device, which has {device_bytes / GIB:.1f}"
        )
    if estimated.host > host_bytes:
        return (
            f"needs about {estimated.host / GIB:.1f} GiB on the host, which has {host_bytes / GIB:.1f} free"
        )
    return None
