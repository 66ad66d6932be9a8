"""Loss scaling for fp16: a factor that keeps small gradients from vanishing, fixed or searched while training.

Micikevicius et al., Mixed Precision Training, 2018, §3.2. After an overflow the step is left out. A scale that is
searched is halved when overflows have used up the hysteresis, and again at every further one; after a window of steps
without one it is doubled, and the hysteresis is whole again. DeepSpeed's dynamic loss scaler does the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.engine.report import GradCheck, NonFiniteGradientsError

LARGEST_SCALE = 2.0**32


@dataclass(frozen=True)
class LossScaling:
    """The scaling of the loss. `fixed`: a scale that never moves; 0 searches it, and what follows is for that alone.

    `initial`: the first scale. `window`: steps without an overflow after which it doubles, up to `LARGEST_SCALE`.
    `hysteresis`: the overflow, counted from 1, at which it is halved first. `minimum`: it is not lowered below this.

    Raises `ValueError` naming the field.
    """

    fixed: float = 0.0
    initial: float = 2.0**16
    window: int = 1000
    hysteresis: int = 2
    minimum: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fixed < math.inf:
            raise ValueError(
                f"loss_scale.fixed = {self.fixed!r}: expected 0 (searched) or a finite scale above it"
            )
        if not 0.0 < self.minimum <= self.initial <= LARGEST_SCALE:
            raise ValueError(
                f"loss_scale.minimum = {self.minimum!r} with loss_scale.initial = {self.initial!r}: expected "
                f"0 < minimum <= initial <= {LARGEST_SCALE:g}"
            )
        for name, value in (("window", self.window), ("hysteresis", self.hysteresis)):
            if value < 1:
                raise ValueError(f"loss_scale.{name} = {value!r}: expected 1 or more")


class LossScale:
    """The present `value`, and what decides the next one."""

    def __init__(self, scaling: LossScaling | None = None) -> None:
        self._scaling = scaling or LossScaling()
        self.value = self._scaling.fixed or self._scaling.initial
        self._good_steps = 0
        self._patience = self._scaling.hysteresis

    def after(self, *, finite: bool) -> None:
        """A step's gradients were, or were not, finite under the present scale."""
        scaling = self._scaling
        if scaling.fixed:
            return
        if finite:
            self._good_steps += 1
            if self._good_steps % scaling.window == 0:
                self.value = min(LARGEST_SCALE, self.value * 2)
                self._patience = scaling.hysteresis
            return
        self._good_steps = 0
        self._patience -= 1
        if self._patience <= 0:
            self.value = max(scaling.minimum, self.value / 2)

    @property
    def exhausted(self) -> bool:
        """It cannot be lowered any more: training cannot go on by waiting for a smaller one."""
        return bool(self._scaling.fixed) or self.value <= self._scaling.minimum

    def as_dict(self) -> dict[str, Any] | None:
        """Return the search for `load`; None where nothing is searched."""
        if self._scaling.fixed:
            return None
        return {"value": self.value, "good_steps": self._good_steps, "patience": self._patience}

    def load(self, saved: dict[str, Any]) -> None:
        """Take up what `as_dict` gave, within what this search may come to; a fixed scale stays."""
        scaling = self._scaling
        if scaling.fixed:
            return
        self.value = min(LARGEST_SCALE, max(scaling.minimum, float(saved["value"])))
        self._good_steps = int(saved["good_steps"])
        self._patience = min(scaling.hysteresis, int(saved["patience"]))


SKIPS_ALLOWED = 2


class NonFiniteSteps:
    """Counts the steps that were left out in a row; `scaling` where fp16 needs a loss scale."""

    def __init__(self, scaling: LossScaling | None) -> None:
        self._scale = None if scaling is None else LossScale(scaling)
        self._in_a_row = 0

    @property
    def loss_scale(self) -> float:
        """The factor of the loss; 1 unless fp16."""
        return 1.0 if self._scale is None else self._scale.value

    @property
    def scale_can_fall(self) -> bool:
        """An overflow now is a part of the search for the loss scale."""
        return self._scale is not None and not self._scale.exhausted

    def after(self, step: int, check: GradCheck) -> None:
        """Take in the check of `step`.

        Raises:
            NonFiniteGradientsError: units were updated before it was known, or it is the third in a row that the loss
                scale is not to blame for.
        """
        self._in_a_row = 0 if check.finite else self._in_a_row + 1
        where = check.where or "the norm of the gradient is beyond any number"
        if check.partially_applied:
            raise NonFiniteGradientsError(
                f"step {step}: {where}; other units had been updated already; resume from the last checkpoint "
                "(clipping makes every step wait for the norm)",
                step=step,
                where=check.where,
            )
        can_fall, scale = self.scale_can_fall, self.loss_scale
        if self._scale is not None:
            self._scale.after(finite=check.finite)
        if can_fall or self._in_a_row <= SKIPS_ALLOWED:
            return
        under = (
            "" if self._scale is None else f" under a loss scale of {scale:g}, which cannot fall any further"
        )
        raise NonFiniteGradientsError(
            f"step {step}: {where}; so it was in {self._in_a_row} steps in a row{under}; nothing was written for them",
            step=step,
            where=check.where,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the part of it that a checkpoint keeps."""
        saved: dict[str, Any] = {"skipped_in_a_row": self._in_a_row}
        searched = None if self._scale is None else self._scale.as_dict()
        if searched is not None:
            saved["loss_scale"] = searched
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Take up what `as_dict` gave; the loss scale only where both searched for one."""
        self._in_a_row = int(saved["skipped_in_a_row"])
        if self._scale is not None and "loss_scale" in saved:
            self._scale.load(saved["loss_scale"])
