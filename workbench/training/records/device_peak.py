"""The most that a GPU's matrix units can do, from the vendors' datasheets: what a run's speed is a share of.

Figures are dense (without structured sparsity), with sums in fp32, of the part as it is sold, not as it is clocked.
Invariant: a device that is not known has no peak; none is guessed.
"""

from __future__ import annotations

import re
from typing import NamedTuple


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
parts do sums in fp32 at half the rate of sums in fp16, which their datasheets tell first."""


def peak_flops(device_name: str, dtype: str, *, tf32: bool = False) -> float | None:
    """FLOP/s of products in `dtype` ("bfloat16", "float16" or "float32"); None where nobody has told.

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
