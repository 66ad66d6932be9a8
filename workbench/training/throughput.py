"""How fast a step was: tokens a second, share of the device's peak, and when the run will end."""

from __future__ import annotations

from collections import deque
from statistics import mean

SKIPPED_FIRST_STEPS = 10
WINDOW_STEPS = 50

# Dense bf16 or fp16 matrix peaks in FLOP/s from the vendors' datasheets, by a part of the device's name; the first
# that matches counts, so longer names come first.
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A6000": 155e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 5090": 210e12,
    "RTX 4090": 165e12,
    "RTX 4080": 97e12,
    "RTX 3090": 71e12,
    "T4": 65e12,
    "V100": 125e12,
}


def peak_flops(device_name: str) -> float | None:
    """The device's peak in FLOP/s; None where it is not known."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device_name), None)


def flops_per_token(parameters: int, layers: int, hidden_size: int, sequence_length: int) -> float:
    """Forward and backward of one token: 6N + 12·L·H·T (Chowdhery et al., PaLM, 2022, appendix B)."""
    return 6.0 * parameters + 12.0 * layers * hidden_size * sequence_length


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
        """None before the first step."""
        return mean(self._recent) * steps_left if self._recent else None


def duration(seconds: float | None) -> str:
    """A time span for the step line: 45s, 12m05s, 22h10m, 3d04h."""
    if seconds is None:
        return "n/a"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
