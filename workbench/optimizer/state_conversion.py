"""Moments of AdamW from one state format to another, for checkpoints and for `HostAdamW`.

An entry is what an optimizer keeps for one parameter, as in `torch.optim.AdamW`'s `state`:

| key | shape | dtype |
|---|---|---|
| `exp_avg`, `exp_avg_sq` | the parameter's | float32 in `exact`, bfloat16 in `half` |
| `exp_avg_code`, `exp_avg_sq_code` | the parameter's | int8 and uint8, in `compact` instead of the two above |
| `exp_avg_scale`, `exp_avg_sq_scale` | (blocks of 256,) | float32, in `compact` |

Invariant: the tensors of an entry say by their keys and dtypes what they are. Codes have keys of their own, so that
an optimizer that does not know them stops instead of taking them for moments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workbench.layout import BLOCK, MOMENTS, StateFormat

Entry = dict[str, Any]

SCALES = ("exp_avg_scale", "exp_avg_sq_scale")
CODES = {"exp_avg": "exp_avg_code", "exp_avg_sq": "exp_avg_sq_code"}
LARGEST_CODES = {"exp_avg": 127, "exp_avg_sq": 255}


def state_key(kind: str, state_format: StateFormat) -> str:
    """Return the key of a tensor that `MOMENTS` lists for a format."""
    return CODES.get(kind, kind) if state_format == "compact" else kind


def format_of(entry: Entry) -> StateFormat | None:
    """Return the format of an entry's moments; None for float moments of another dtype, or of two dtypes."""
    if CODES["exp_avg"] in entry:
        return "compact"
    dtypes = {entry[kind].dtype for kind in CODES if isinstance(entry.get(kind), Tensor)}
    if dtypes == {torch.float32}:
        return "exact"
    return "half" if dtypes == {torch.bfloat16} else None


def expanded_moments(entry: Entry) -> dict[str, Tensor]:
    """Return `exp_avg` and `exp_avg_sq` in float32, in the parameter's shape. What is float32 is not copied."""
    if format_of(entry) != "compact":
        return {kind: entry[kind].to(device="cpu", dtype=torch.float32) for kind in CODES}
    expanded = {}
    for kind, scales in zip(CODES, SCALES, strict=True):
        code = entry[CODES[kind]].to(device="cpu", dtype=torch.float32)
        each_scale = entry[scales].to(device="cpu").repeat_interleave(BLOCK)[: code.numel()]
        expanded[kind] = code * code.abs() * each_scale.view(code.shape)
    return expanded


def fitted_moments(parameter: Tensor, entry: Entry, state_format: StateFormat) -> dict[str, Tensor]:
    """Return an entry's moments in `state_format`, by the keys that they have there; `parameter` only lends its shape.

    Those of another format are expanded to float32 and rounded once, to the nearest. Moments in the format already are
    not copied. Raises `ValueError` where they are missing, have another shape, or are not finite for `compact`.
    """
    found = format_of(entry)
    kinds = CODES.values() if found == "compact" else CODES
    for key in kinds:
        tensor = entry.get(key)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"it has no tensor {key}: it is not an AdamW state")
        if tensor.shape != parameter.shape:
            raise ValueError(
                f"{key} has the shape {tuple(tensor.shape)}, the parameter {tuple(parameter.shape)}"
            )
    if found == "compact":
        blocks = -(-parameter.numel() // BLOCK)
        for key in SCALES:
            if not isinstance(entry.get(key), Tensor) or entry[key].shape != (blocks,):
                raise ValueError(f"{key} must have {blocks} elements, one for each {BLOCK} of the parameter")
    if found == state_format:
        keys = [state_key(tensor.kind, state_format) for tensor in MOMENTS[state_format]]
        return {key: entry[key].to(device="cpu").contiguous() for key in keys}
    moments = {kind: tensor.contiguous() for kind, tensor in expanded_moments(entry).items()}
    if state_format == "exact":
        return moments
    if state_format == "half":
        return {kind: tensor.to(torch.bfloat16) for kind, tensor in moments.items()}
    compact: dict[str, Tensor] = {}
    for kind, scales in zip(CODES, SCALES, strict=True):
        compact[CODES[kind]], compact[scales] = _coded(kind, moments[kind])
    return compact


def _coded(kind: str, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes nearest to a moment's roots, and the scales that make each block's largest the largest code."""
    if not moment.isfinite().all():
        raise ValueError(f"{kind} is not finite everywhere, which compact cannot hold")
    largest = LARGEST_CODES[kind]
    flat = moment.reshape(-1)
    blocks = functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1) / largest**2 if flat.numel() else flat.new_zeros(0)
    # A block of zeros, or of numbers too small for a scale: 0/0 and x/0 come to nothing by the scale of 0.
    roots = (blocks.abs() / scales.unsqueeze(1)).sqrt_().round_().clamp_(max=largest).nan_to_num_(0)
    if kind == "exp_avg":
        codes = roots.copysign_(blocks).to(torch.int8)
    else:
        # A root of 0 in the update's denominator would make the element jump.
        codes = torch.where(scales.unsqueeze(1) > 0, roots.clamp_(min=1), 0).to(torch.uint8)
    return codes.view(-1)[: flat.numel()].reshape(moment.shape), scales
