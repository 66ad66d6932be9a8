"""Learning rates over a run. No torch: the planner and the screen draw them too.

Steps count from 0. With W = `warmup_steps`, N = `total_steps`, r = `min_ratio`, L = `learning_rate`:

- step < W: `L * (step + 1) / W`, so that the first step already learns and step W - 1 has L;
- later: `L * f(t)`, where t rises linearly from 0 at the end of the warm-up (step 0 without one) to 1 at the
  last step, N - 1, and stays there:

  - `constant`: f = 1
  - `linear`: f = 1 - (1 - r) t
  - `cosine`: f = r + (1 - r) (1 + cos(pi t)) / 2   (Loshchilov and Hutter, 2017, without restarts)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """A run's learning rates. `constant` has its warm-up too, and no use for `min_ratio`.

    `warmup_steps` may exceed `total_steps`: such a run ends while it warms up. Raises `ValueError` naming the
    field.
    """

    kind: ScheduleKind
    learning_rate: float
    warmup_steps: int
    total_steps: int
    min_ratio: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScheduleKind):
            raise ValueError(f"kind must be one of {', '.join(get_args(ScheduleKind))}, not {self.kind!r}")
        if not 0.0 <= self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be finite and at least 0, not {self.learning_rate!r}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, not {self.warmup_steps!r}")
        if self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, not {self.total_steps!r}")
        if not 0.0 <= self.min_ratio <= 1.0:
            raise ValueError(f"min_ratio must be from 0 to 1, not {self.min_ratio!r}")

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 0; beyond the last step, the last one's."""
        if step < 0:
            raise ValueError(f"step must be at least 0, not {step}")
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        return self.learning_rate * self._factor(self._progress(step))

    def _progress(self, step: int) -> float:
        """From 0 where the warm-up ends to 1 at the last step."""
        peak = max(self.warmup_steps - 1, 0)
        last = self.total_steps - 1
        if step <= peak:
            return 0.0
        return 1.0 if step >= last else (step - peak) / (last - peak)

    def _factor(self, progress: float) -> float:
        if self.kind == "constant":
            return 1.0
        falling = 1.0 - progress if self.kind == "linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
        return self.min_ratio + (1.0 - self.min_ratio) * falling
