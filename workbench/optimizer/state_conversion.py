"""What `HostAdamW` keeps for a parameter: made fresh, and converted from and to what `torch.optim.AdamW` keeps.

An entry is the dictionary of one parameter, as it stands in an optimizer's `state` and in a state dict. This module
does not update anything and knows no parameter groups.

| key | shape | dtype |
|---|---|---|
| `step` | () | float32 |
| `exp_avg`, `exp_avg_sq` | the parameter's | float32 in `exact`, bfloat16 in `half` |
| `exp_avg_code`, `exp_avg_sq_code` | the parameter's | int8 and uint8, in `compact` instead of the two above |
| `exp_avg_scale`, `exp_avg_sq_scale` | (blocks of 256,) | float32, in `compact` |
| `low` | the parameter's | int16: a bfloat16 parameter's missing half; in memory only |
| `master` | the parameter's | float32: in memory of a float16 parameter, in a state dict of both 16-bit types |

Invariant: the tensors of an entry say by their keys and dtypes what they are. Codes have keys of their own, so that
an optimizer that does not know them stops instead of taking them for moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from workbench.layout import BLOCK, MOMENTS, StateFormat

if TYPE_CHECKING:  # moments are converted where there is no extension, too
    from workbench.optimizer.host import HostOptimizer

Entry = dict[str, Any]

SCALES = ("exp_avg_scale", "exp_avg_sq_scale")
CODES = {"exp_avg": "exp_avg_code", "exp_avg_sq": "exp_avg_sq_code"}
LARGEST_CODES = {"exp_avg": 127, "exp_avg_sq": 255}
OWN_KEYS = {"step", "exp_avg", "exp_avg_sq", *CODES.values(), *SCALES, "low", "master"}


def state_key(kind: str, state_format: StateFormat) -> str:
    """The key of a tensor that `MOMENTS` lists for a format."""
    return CODES.get(kind, kind) if state_format == "compact" else kind


def fresh_entry(parameter: Tensor, state_format: StateFormat, host: HostOptimizer) -> Entry:
    """The entry before a parameter's first step: moments of zero, and the parameter's value as its master."""
    entry: Entry = {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
    for tensor in MOMENTS[state_format]:
        shape = parameter.shape if tensor.elements == 1 else (tensor.count(parameter.numel()),)
        entry[state_key(tensor.kind, state_format)] = torch.zeros(
            shape, dtype=getattr(torch, tensor.dtype), device="cpu"
        )
    return fitted_entry(parameter, entry, state_format, host)


def fitted_entry(parameter: Tensor, entry: Entry, state_format: StateFormat, host: HostOptimizer) -> Entry:
    """The entry as a parameter of this dtype needs it in this format. What already fits is not copied.

    A master is used for 16-bit parameters, and only in float32: `torch.optim.AdamW` carries it along rounded, and
    does not update it. Where there is none, the parameter's value is its master. Keys that are not an entry's own
    are kept as they are.

    Raises `ValueError` where the entry is not one of AdamW, has another shape than the parameter, or has moments
    that are not finite and must be converted to `compact`.
    """
    fitted: Entry = {key: value for key, value in entry.items() if key not in OWN_KEYS}
    if "step" not in entry:
        raise ValueError("it has no step: it is not a state of AdamW")
    fitted["step"] = torch.as_tensor(entry["step"], dtype=torch.float32, device="cpu").reshape(())
    fitted.update(fitted_moments(parameter, entry, state_format))
    master = entry.get("master")
    if not isinstance(master, Tensor) or master.dtype is not torch.float32:
        master = None
    elif master.shape != parameter.shape:
        raise ValueError(
            f"master has the shape {tuple(master.shape)}, the parameter {tuple(parameter.shape)}"
        )
    if parameter.dtype is torch.bfloat16:
        fitted["low"] = entry["low"] if "low" in entry else _low_half(parameter, master, host)
    elif parameter.dtype is torch.float16:
        fitted["master"] = (
            parameter.detach().float() if master is None else master.to(device="cpu").contiguous()
        )
    return fitted


def packed_entry(parameter: Tensor, entry: Entry, host: HostOptimizer, *, exact: bool) -> Entry:
    """The entry as it stands in a state dict; with `exact`, moments are expanded to float32.

    Moments are not copied where they are as they should be; `step` is. The master of a bfloat16 parameter is joined
    to float32, because its low half means nothing without the very parameter that it was split from.
    """
    packed: Entry = {**entry, "step": entry["step"].clone()}
    if exact:
        moments = expanded_moments(entry)
        for key in (*CODES.values(), *SCALES):
            packed.pop(key, None)
        packed.update(moments)
    low = packed.pop("low", None)
    if low is not None:
        packed["master"] = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        host.join(parameter.detach(), low, packed["master"])
    return packed


def follow_parameter(parameter: Tensor, entry: Entry) -> None:
    """Make a 16-bit parameter's master agree with it, after something else than an update may have written to it.

    A float16 parameter's elements that are not their master rounded replace it. A bfloat16 parameter is its master's
    upper half, so the master follows by itself, within the rounding; only where the lower half of a former value
    would make something else of a zero or an infinity is it dropped.
    """
    value = parameter.detach()
    if value.dtype is torch.bfloat16:
        low: Tensor = entry["low"]
        stale = ((value == 0) & (low < 0)) | value.isinf()
        low.masked_fill_(stale, 0)
    elif value.dtype is torch.float16:
        master: Tensor = entry["master"]
        torch.where(master.to(value.dtype) == value, master, value.float(), out=master)


def format_of(entry: Entry) -> StateFormat | None:
    """The format that an entry's moments are in; None for float moments of another dtype, or of two dtypes."""
    if CODES["exp_avg"] in entry:
        return "compact"
    dtypes = {entry[kind].dtype for kind in CODES if isinstance(entry.get(kind), Tensor)}
    if dtypes == {torch.float32}:
        return "exact"
    return "half" if dtypes == {torch.bfloat16} else None


def expanded_moments(entry: Entry) -> dict[str, Tensor]:
    """`exp_avg` and `exp_avg_sq` in float32, in the parameter's shape; not copied where they are that already."""
    if format_of(entry) != "compact":
        return {kind: entry[kind].to(device="cpu", dtype=torch.float32) for kind in CODES}
    expanded = {}
    for kind, scales in zip(CODES, SCALES, strict=True):
        code = entry[CODES[kind]].to(device="cpu", dtype=torch.float32)
        each_scale = entry[scales].to(device="cpu").repeat_interleave(BLOCK)[: code.numel()]
        expanded[kind] = code * code.abs() * each_scale.view(code.shape)
    return expanded


def fitted_moments(parameter: Tensor, entry: Entry, state_format: StateFormat) -> dict[str, Tensor]:
    """The moments of an entry in a format, by the keys that they have there; `parameter` only lends its shape.

    Those of another format are expanded to float32 and rounded once, to the nearest. What is in the format already is
    not copied.

    Raises `ValueError` where the entry has no moments, of this shape, or ones that are not finite for `compact`.
    """
    found = format_of(entry)
    kinds = CODES.values() if found == "compact" else CODES
    for key in kinds:
        tensor = entry.get(key)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"it has no tensor {key}: it is not a state of AdamW")
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
    """The codes nearest to a float32 moment's roots, and the scales that make each block's largest the largest code."""
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


def _low_half(parameter: Tensor, master: Tensor | None, host: HostOptimizer) -> Tensor:
    """What bfloat16 lacks of the master; without a master, the parameter is all of it."""
    low = torch.zeros(parameter.shape, dtype=torch.int16, device="cpu")
    if master is not None:
        upper = torch.empty(parameter.shape, dtype=torch.bfloat16, device="cpu")
        host.split(master.to(device="cpu").contiguous(), upper, low)
    return low
