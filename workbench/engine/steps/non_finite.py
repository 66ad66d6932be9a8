"""What becomes of training when gradients are not finite: the step is left out, the loss scale falls, or training ends.

Invariant: whether training goes on follows from the verdicts so far alone, so that a resumed run decides as one that
never stopped.
"""

from __future__ import annotations

from typing import Any

from workbench.engine.gradients.gradient_set import Verdict
from workbench.engine.steps.loss_scale import LossScale, LossScaling
from workbench.engine.steps.report import NonFiniteGradientsError

SKIPS_ALLOWED = 2


class NonFiniteSteps:
    """Counts the steps that were left out in a row; `scaling` where fp16 needs a loss scale."""

    def __init__(self, scaling: LossScaling | None) -> None:
        self._scale = None if scaling is None else LossScale(scaling)
        self._in_a_row = 0

    @property
    def scales_loss(self) -> bool:
        """Whether updates need to know the verdict for the loss scale's sake."""
        return self._scale is not None

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by; 1 unless fp16."""
        return 1.0 if self._scale is None else self._scale.value

    @property
    def scale_can_fall(self) -> bool:
        """Whether an overflow now is a part of the search for the loss scale."""
        return self._scale is not None and not self._scale.exhausted

    def after(self, step: int, verdict: Verdict) -> None:
        """Take in the verdict on `step`.

        Raises:
            NonFiniteGradientsError: units were updated before it was known, or it is the third in a row that the loss
                scale is not to blame for.
        """
        self._in_a_row = 0 if verdict.finite else self._in_a_row + 1
        where = verdict.where or "the norm of the gradient is beyond any number"
        if verdict.torn:
            raise NonFiniteGradientsError(
                f"step {step}: {where}; other units had been updated already; go on from the last checkpoint "
                "(clipping makes every step wait for the verdict)",
                step=step,
                where=verdict.where,
            )
        can_fall, scale = self.scale_can_fall, self.loss_scale
        if self._scale is not None:
            self._scale.after(finite=verdict.finite)
        if can_fall or self._in_a_row <= SKIPS_ALLOWED:
            return
        under = (
            "" if self._scale is None else f" under a loss scale of {scale:g}, which cannot fall any further"
        )
        raise NonFiniteGradientsError(
            f"step {step}: {where}; so it was in {self._in_a_row} steps in a row{under}; nothing was written for them",
            step=step,
            where=verdict.where,
        )

    def as_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
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
