"""What becomes of training when gradients are not finite: the step is left out, the loss scale falls, or training ends.

Invariant: whether training goes on follows from the verdicts so far alone, so that a resumed run decides as one that
never stopped.
"""

from __future__ import annotations

from typing import Any

from workbench.engine.gradient_set import Verdict
from workbench.engine.loss_scale import LossScale
from workbench.engine.report import NonFiniteGradientsError

SKIPS_ALLOWED = 2


class NonFiniteSteps:
    """Counts the steps that were left out in a row; `scales_loss` where fp16 needs it."""

    def __init__(self, *, scales_loss: bool) -> None:
        self._scale = LossScale() if scales_loss else None
        self._in_a_row = 0

    @property
    def scales_loss(self) -> bool:
        """Whether updates need to know the verdict for the loss scale's sake."""
        return self._scale is not None

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by; 1 unless fp16."""
        return 1.0 if self._scale is None else self._scale.value

    def after(self, step: int, verdict: Verdict) -> None:
        """Take in the verdict on `step`.

        Raises:
            NonFiniteGradientsError: shards were updated before it was known, or it is the third in a row that the loss
                scale is not to blame for.
        """
        self._in_a_row = 0 if verdict.finite else self._in_a_row + 1
        if verdict.torn:
            raise NonFiniteGradientsError(
                f"step {step}: the gradient of {verdict.offender} is not finite, and other shards had been "
                "updated already; go on from the last checkpoint (clipping makes every step wait for the verdict)"
            )
        if self._scale is not None:
            exhausted = self._scale.exhausted
            self._scale.after(finite=verdict.finite)
            if not exhausted:
                return
        if self._in_a_row > SKIPS_ALLOWED:
            raise NonFiniteGradientsError(
                f"step {step}: the gradient of {verdict.offender} is not finite, for the "
                f"{self._in_a_row}rd step in a row; nothing was written for them"
            )

    def as_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        saved: dict[str, Any] = {"skipped_in_a_row": self._in_a_row}
        if self._scale is not None:
            saved["loss_scale"] = self._scale.as_dict()
        return saved

    def load(self, saved: dict[str, Any]) -> None:
        """Take up what `as_dict` gave; the loss scale only where both had one."""
        self._in_a_row = int(saved["skipped_in_a_row"])
        if self._scale is not None and "loss_scale" in saved:
            self._scale.load(saved["loss_scale"])
