"""Measure a run: a token's work and its share of the device's peak (MFU), the time left, the peak of host memory.

Peaks are from the vendors' datasheets: dense (without structured sparsity), with sums in fp32, of the part as it is
sold, not as it is clocked. Invariant: a device that is not known has no peak; none is guessed.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from collections import deque
from collections.abc import Iterable
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from workbench.engine import OffloadEngine
from workbench.engine.precision import dtype_name

SKIPPED_FIRST_STEPS = 10
WINDOW_STEPS = 50
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""The names that configurations have for the number of experts in a block."""


def flops_per_token(
    parameters: int, layers: int, hidden_size: int, sequence_length: int, *, frozen: int = 0
) -> float:
    """Return the FLOP of one token, forward and backward: 6N + 12·L·H·T (Chowdhery et al., PaLM, 2022, appendix B).

    `parameters` are those that a token meets (of experts, the chosen ones), `frozen` among them get no gradient, which
    leaves two thirds of the work on them. `hidden_size`: of all attention heads together.
    """
    return 6.0 * parameters - 2.0 * frozen + 12.0 * layers * hidden_size * sequence_length


def met_parameters(shapes: Iterable[tuple[int, ...]], experts: int, chosen: int) -> int:
    """Return how many parameters a token meets: of tensors that hold `experts` matrices, the share of the `chosen`."""
    total = 0
    for shape in shapes:
        size = prod(shape)
        total += size * chosen // experts if len(shape) == 3 and shape[0] == experts > chosen > 0 else size
    return total


def model_flops_per_token(model: Any, engine: OffloadEngine, sequence_length: int) -> float:
    """Return the FLOP of one token of the engine's model, forward and backward; 0 where it is not transformers'."""
    if not hasattr(model, "config"):
        return 0.0
    text = model.config.get_text_config()
    experts = next((n for key in EXPERTS if isinstance(n := getattr(text, key, None), int)), 0)
    chosen = getattr(text, "num_experts_per_tok", None)
    chosen = chosen if isinstance(chosen, int) else experts
    units = engine.layout.units
    trained = met_parameters((s.shape for unit in units for s in unit.segments), experts, chosen)
    frozen = met_parameters((s.shape for unit in units for s in unit.frozen), experts, chosen)
    heads, head_dim = getattr(text, "num_attention_heads", None), getattr(text, "head_dim", None)
    width = text.hidden_size
    if isinstance(heads, int) and isinstance(head_dim, int):
        width = heads * head_dim
    return flops_per_token(trained + frozen, text.num_hidden_layers, width, sequence_length, frozen=frozen)


def device_peak(engine: OffloadEngine) -> float | None:
    """Return the FLOP/s of the device in the precision that it computes in; None where that is not known."""
    device = engine.device.torch_device
    if device.type != "cuda":
        return None
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return peak_flops(torch.cuda.get_device_name(device), dtype_name(engine.dtype), tf32=tf32)


class RemainingTime:
    """Estimates the time to the last step from recent steps, the slow first ones after a start left out."""

    def __init__(self) -> None:
        self._seen = 0
        self._recent: deque[float] = deque(maxlen=WINDOW_STEPS)

    def add(self, step_s: float) -> None:
        self._seen += 1
        if self._seen == SKIPPED_FIRST_STEPS + 1:
            self._recent.clear()
        self._recent.append(step_s)

    def seconds(self, steps_left: int) -> float | None:
        """Return the estimate; None before the first step."""
        return mean(self._recent) * steps_left if self._recent else None


class Peak(NamedTuple):
    """TFLOP/s. `sixteen_bit`: fp16, and bf16 where the device has it. `tf32`: fp32 rounded to TF32; 0 without it."""

    sixteen_bit: float
    tf32: float
    fp32: float
    bf16: bool = True


PEAKS = {
    "GB300": Peak(2500, 1250, 80),
    "GB200": Peak(2500, 1250, 80),
    "B300": Peak(2250, 1125, 75),
    "B200": Peak(2250, 1125, 75),
    "B100": Peak(1750, 875, 60),
    "GH200": Peak(989, 494, 67),
    "H200 NVL": Peak(835, 417, 60),
    "H200": Peak(989, 494, 67),
    "H100 PCIe": Peak(756, 378, 51),
    "H100 NVL": Peak(835, 417, 60),
    "H100": Peak(989, 494, 67),
    "H800 PCIe": Peak(756, 378, 51),
    "H800": Peak(989, 494, 67),
    "H20": Peak(148, 74, 44),
    "A100": Peak(312, 156, 19.5),
    "A800": Peak(312, 156, 19.5),
    "A40": Peak(150, 75, 37.4),
    "A30": Peak(165, 82, 10.3),
    "A10G": Peak(70, 35, 35),
    "A10": Peak(125, 62.5, 31.2),
    "A2": Peak(18, 9, 4.5),
    "L40S": Peak(362, 183, 91.6),
    "L40": Peak(181, 90.5, 90.5),
    "L4": Peak(121, 60, 30.3),
    "V100-PCIE": Peak(112, 0, 14, bf16=False),
    "V100": Peak(125, 0, 15.7, bf16=False),
    "T4": Peak(65, 0, 8.1, bf16=False),
    "RTX 6000 Ada": Peak(364, 182, 91.1),
    "RTX 5000 Ada": Peak(261, 131, 65.3),
    "RTX A6000": Peak(155, 77.4, 38.7),
    "RTX A5000": Peak(111, 55.6, 27.8),
    "RTX A4000": Peak(76.7, 38.4, 19.2),
    "RTX 5090": Peak(210, 105, 105),
    "RTX 5080": Peak(113, 56.3, 56.3),
    "RTX 5070 Ti": Peak(87.9, 43.9, 43.9),
    "RTX 5070": Peak(61.7, 30.9, 30.9),
    "RTX 4090": Peak(165, 82.6, 82.6),
    "RTX 4080 SUPER": Peak(104, 52.2, 52.2),
    "RTX 4080": Peak(97.5, 48.7, 48.7),
    "RTX 4070 Ti": Peak(80.2, 40.1, 40.1),
    "RTX 4070": Peak(58.3, 29.1, 29.1),
    "RTX 3090 Ti": Peak(80, 40, 40),
    "RTX 3090": Peak(71, 35.6, 35.6),
    "RTX 3080": Peak(59.5, 29.8, 29.8),
    "RTX 3070": Peak(40.6, 20.3, 20.3),
    "MI300X": Peak(1307, 654, 163),
    "MI250X": Peak(192, 0, 47.9),  # one of its two dies, which is what one device is
}
"""By a part of the device's name, whole words; of names that contain each other the longer comes first. GeForce
parts do sums in fp32 at half the rate of sums in fp16, which their datasheets give first."""


def peak_flops(device_name: str, dtype: str, *, tf32: bool = False) -> float | None:
    """Return the FLOP/s of products in `dtype` ("bfloat16", "float16" or "float32"); None where it is not known.

    `tf32`: fp32 products may be rounded to TF32.
    """
    # Parts for laptops have the names of others, and less power.
    if re.search(r"\blaptop\b|max-q", device_name, re.IGNORECASE):
        return None
    for name, peak in PEAKS.items():
        if not re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", device_name, re.IGNORECASE):
            continue
        if dtype in ("float16", "bfloat16"):
            return peak.sixteen_bit * 1e12 if peak.bf16 or dtype == "float16" else None
        return (peak.tf32 if tf32 and peak.tf32 else peak.fp32) * 1e12 if dtype == "float32" else None
    return None


def peak_host_bytes() -> int:
    """Return the highest resident size of this process since `forget_peak`, bytes: VmHWM, or else that of getrusage."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * (int(found.group(1)) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def forget_peak() -> None:
    """Count the peak again, where the system allows it; the C library gives its unused memory back first.

    A plan is about training: the peak of reading and preparing the text before it does not count.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # the highest resident size is the present one (proc(5))
