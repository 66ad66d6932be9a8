"""The dtypes that working weights are stored and computed in."""

from __future__ import annotations

from typing import Literal

import torch

from workbench.engine.devices.device import Device, has_bfloat16

Precision = Literal["auto", "bf16", "fp16", "fp32"]
Compute = Literal["auto", "same", "fp32"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
"""torch's dtypes by the names that a layout has."""

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that a layout has for it: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def working_precision(precision: Precision, device: Device) -> torch.dtype:
    """Return the dtype that `precision` means for working weights on `device`; auto is bf16 on a GPU that has it, fp16
    on one that has not (Volta and Turing: V100, T4), and fp32 on a CPU.

    A CPU's bf16 has to be asked for: what trains by default is then the same on every CPU.

    Raises:
        ValueError: `precision` is none of auto, bf16, fp16 and fp32.
    """
    if precision == "auto":
        if device.torch_device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if has_bfloat16(device) else torch.float16
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision = {precision!r}: expected 'auto' or {' or '.join(map(repr, PRECISIONS))}"
        )
    return PRECISIONS[precision]


def compute_dtypes(compute: Compute, device: Device) -> dict[torch.dtype, torch.dtype]:
    """Return the dtype that each stored dtype is computed in, where that differs.

    A CPU without 16-bit arithmetic computes 16-bit weights in fp32; its own 16-bit products are hundreds of times
    slower.

    Raises:
        ValueError: `compute` is unknown, or fp32 is asked of a device that is no CPU.
    """
    if compute not in ("auto", "same", "fp32"):
        raise ValueError(f"compute = {compute!r}: expected 'auto' or 'same' or 'fp32'")
    on_cpu = device.torch_device.type == "cpu"
    if compute == "fp32" and not on_cpu:
        raise ValueError("compute = 'fp32': only on the CPU; give precision = 'fp32' on a device of its own")
    if compute == "same" or not on_cpu:
        return {}
    widened = {torch.float16: torch.float32}
    if compute == "fp32" or not has_bfloat16(device):
        widened[torch.bfloat16] = torch.float32
    return widened
