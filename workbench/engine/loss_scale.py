"""Dynamic loss scaling for fp16: the scale that keeps small gradients from vanishing, searched while training.

Micikevicius et al., Mixed Precision Training, 2018, §3.2. After an overflow the step is left out; the scale is
halved when overflows have used up the hysteresis, and doubled after a window of steps without one.
"""

from __future__ import annotations

from typing import Any

INITIAL_SCALE = 2.0**16
WINDOW_STEPS = 1000
HYSTERESIS = 2
SMALLEST_SCALE = 1.0
LARGEST_SCALE = 2.0**24


class LossScale:
    """The present `value`, and what decides the next one."""

    def __init__(self) -> None:
        self.value = INITIAL_SCALE
        self._good_steps = 0
        self._patience = HYSTERESIS

    def after(self, *, finite: bool) -> None:
        """A step's gradients were, or were not, finite under the present scale."""
        if finite:
            self._good_steps += 1
            if self._good_steps % WINDOW_STEPS == 0:
                self.value = min(LARGEST_SCALE, self.value * 2)
                self._patience = HYSTERESIS
            return
        self._good_steps = 0
        self._patience -= 1
        if self._patience <= 0:
            self.value = max(SMALLEST_SCALE, self.value / 2)

    @property
    def exhausted(self) -> bool:
        """It cannot be lowered any more: the overflow is not the scale's doing."""
        return self.value <= SMALLEST_SCALE

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.value, "good_steps": self._good_steps, "patience": self._patience}

    def load(self, saved: dict[str, Any]) -> None:
        """Take up what `as_dict` gave."""
        self.value = float(saved["value"])
        self._good_steps = int(saved["good_steps"])
        self._patience = int(saved["patience"])
