"""What a step came to, once it has: the verdict on its gradients and where its time went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.engine.gradients.gradient_set import NotFinite
from workbench.engine.lanes.execution import Span
from workbench.timeline import Lane


class NonFiniteGradientsError(RuntimeError):
    """Gradients were not finite once too often, or after updates had already run, in `step`; the message says where.

    `where`: None where every gradient is finite and only their norm is not.
    """

    def __init__(self, message: str, *, step: int, where: NotFinite | None) -> None:
        super().__init__(message)
        self.step = step
        self.where = where


@dataclass(frozen=True)
class StepResult:
    """One finished step.

    `grad_norm`: of the step's mean gradient, before clipping. `skipped`: it was not finite and nothing was written.
    `lane_seconds`: busy seconds a lane, of which the model waited `exposed_seconds`; the rest was hidden behind it.
    Of the compute lane they are the step's own forwards and backwards, while `spans` has the next step's first forward
    too, beside which its lanes worked.
    `exposed_s`: seconds in which the model waited, for whatever lane. `loss_scale`: that its backward had, 1 unless
    fp16; `scale_can_fall`: it is searched for, and not at its minimum, so that an overflow is a part of that search.
    """

    step: int
    grad_norm: float
    skipped: bool
    learning_rate: float
    lane_seconds: dict[Lane, float]
    exposed_seconds: dict[Lane, float]
    exposed_s: float
    loss_scale: float
    spans: tuple[Span, ...]
    scale_can_fall: bool = False


class StepReport:
    """A step under way. `result` waits until nothing of it is left to do, `is_skipped` for the verdict alone."""

    def __init__(self, settle: Callable[[], None], judge: Callable[[], bool]) -> None:
        self._settle = settle
        self._judge = judge
        self._result: StepResult | None = None
        self._failure: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._result is not None or self._failure is not None

    def result(self) -> StepResult:
        """The finished step.

        Raises:
            NonFiniteGradientsError: gradients were not finite three steps in a row, or units had been updated already.
            LaneError: a lane's task failed.
        """
        if not self.done:
            self._settle()
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def is_skipped(self) -> bool:
        """Whether the step was left out: known before its update, unless that waits for no verdict.

        Raises:
            NonFiniteGradientsError: see `result`; where the step has ended.
            LaneError: a lane's task failed.
        """
        return self.result().skipped if self.done else self._judge()

    def resolve(self, result: StepResult) -> None:
        self._result = result

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
