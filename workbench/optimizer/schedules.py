"""Learning rates over a run. No torch: the planner and the screen draw them too.

Steps count from 0. With W = `warmup_steps`, N = `total_steps`, w = `warmup_ratio`, r = `min_ratio` and
L = `learning_rate`:

- step < W: `L * (w + (1 - w) * u)`, where u rises to 1 at step W - 1:

  - `linear`: u = (step + 1) / W, so that the first step already learns
  - `log`: u = ln(step + 1) / ln(W), which is 0 at step 0 (and 1 where W is 1)

- later: `L * f(t)`, where t rises linearly from 0 at the end of the warm-up (step 0 without one) to 1 at the
  last step, N - 1, and stays there:

  - `constant`: f = 1
  - `linear`: f = 1 - (1 - r) t
  - `cosine`: f = r + (1 - r) (1 + cos(pi t)) / 2   (Loshchilov and Hutter, 2017, without restarts)
  - `wsd`: f = 1 - (1 - r) t as `linear`, but t rises over the last `decay_fraction` * N steps only, and f is 1 before
    (warm-up, stable, decay: Hu et al., MiniCPM, 2024, §4; with a linear decay, and over a fifth of all steps: Hägele et
    al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, 2024, §4)

The `log` warm-up is DeepSpeed's `WarmupLR`, at the number that its scheduler counts. That number is one behind: it
takes its first value when the first step is over. So DeepSpeed's steps 0 and 1 both have `L * w`, its step s has what
step s - 1 has here, and L is reached at its step W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

ScheduleKind = Literal["constant", "linear", "cosine", "wsd"]
WarmupKind = Literal["linear", "log"]


@dataclass(frozen=True)
class LearningRateSchedule:
    """A run's learning rates. `constant` has its warm-up too, and no use for `min_ratio`.

    `warmup_steps` may exceed `total_steps`: the rate then goes on rising to step `warmup_steps` - 1. Raises
    `ValueError` naming the field.
    """

    kind: ScheduleKind
    learning_rate: float
    warmup_steps: int
    total_steps: int
    min_ratio: float
    warmup_type: WarmupKind = "linear"
    warmup_ratio: float = 0.0
    decay_fraction: float = 0.2

    def __post_init__(self) -> None:
        for name, value, known in (
            ("kind", self.kind, get_args(ScheduleKind)),
            ("warmup_type", self.warmup_type, get_args(WarmupKind)),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if not 0.0 <= self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be finite and at least 0, not {self.learning_rate!r}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, not {self.warmup_steps!r}")
        if self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, not {self.total_steps!r}")
        for name, ratio in (("min_ratio", self.min_ratio), ("warmup_ratio", self.warmup_ratio)):
            if not 0.0 <= ratio <= 1.0:
                raise ValueError(f"{name} must be from 0 to 1, not {ratio!r}")
        if not 0.0 < self.decay_fraction <= 1.0:
            raise ValueError(f"decay_fraction must be above 0 and up to 1, not {self.decay_fraction!r}")

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0; beyond the last step, the last one's."""
        if step < 0:
            raise ValueError(f"step must be at least 0, not {step}")
        if step < self.warmup_steps:
            return self.warmup_ratio * self.learning_rate + (1.0 - self.warmup_ratio) * self._risen(step)
        return self.learning_rate * self._factor(self._progress(step))

    def _risen(self, step: int) -> float:
        """Return the rate in the warm-up where that starts from 0."""
        if self.warmup_type == "linear":
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.warmup_steps == 1:
            return self.learning_rate
        return self.learning_rate * (math.log(step + 1) / math.log(self.warmup_steps))

    def _progress(self, step: int) -> float:
        """Return how far the rate has fallen: 0 where it begins to fall, 1 at the last step."""
        peak: float = max(self.warmup_steps - 1, 0)
        last = self.total_steps - 1
        if self.kind == "wsd":
            peak = max(peak, last - self.decay_fraction * self.total_steps)
        if step <= peak:
            return 0.0
        return 1.0 if step >= last else (step - peak) / (last - peak)

    def _factor(self, progress: float) -> float:
        if self.kind == "constant":
            return 1.0
        falling = (1.0 + math.cos(math.pi * progress)) / 2.0 if self.kind == "cosine" else 1.0 - progress
        return self.min_ratio + (1.0 - self.min_ratio) * falling
