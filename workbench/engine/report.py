"""The result of a step: the check of its gradients, and how long the model computed and waited."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.engine.execution import Span
from workbench.timeline import Kind, Lane


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
    """A step under way. `result` waits until nothing of it is left to do, `is_skipped` for the check alone."""

    def __init__(self, finish: Callable[[], None], check: Callable[[], bool]) -> None:
        self._finish = finish
        self._check = check
        self._result: StepResult | None = None
        self._failure: BaseException | None = None

    @property
    def done(self) -> bool:
        """`result` returns at once."""
        return self._result is not None or self._failure is not None

    def result(self) -> StepResult:
        """Return the finished step.

        Raises:
            NonFiniteGradientsError: gradients were not finite three steps in a row, or units had been updated already.
            LaneError: a lane's task failed.
        """
        if not self.done:
            self._finish()
        if self._failure is not None:
            raise self._failure
        assert self._result is not None
        return self._result

    def is_skipped(self) -> bool:
        """Return True where the step was left out: known before its update, unless that waits for no norm.

        Raises:
            NonFiniteGradientsError: see `result`; where the step has ended.
            LaneError: a lane's task failed.
        """
        return self.result().skipped if self.done else self._check()

    def resolve(self, result: StepResult) -> None:
        self._result = result

    def fail(self, failure: BaseException) -> None:
        self._failure = failure


@dataclass(frozen=True)
class NotFinite:
    """The place where a step's gradients are not finite.

    `parameter`, in `unit`: the first in layout order. `met_in`: the unit nearest to the loss, where backward met it
    first. `units`: how many have one, of `of`.
    """

    parameter: str
    unit: str
    met_in: str
    units: int
    of: int

    def __str__(self) -> str:
        there = f"the gradient of {self.parameter} (unit {self.unit}) is not finite"
        if self.units == 1:
            return f"{there}, in this unit alone"
        if self.units == self.of:
            return f"{there}, nor is any other unit's: the loss itself, or what is nearest to it, is not"
        some = f"{self.units} of {self.of} units have such gradients"
        return f"{there}; {some}, and backward met them first in {self.met_in}"


@dataclass(frozen=True)
class GradCheck:
    """The check of a step's gradients. `grad_norm`: of the step's mean gradient, before clipping.

    `where`: None where all are finite. `partially_applied`: units were updated before that was known.
    """

    grad_norm: float
    finite: bool
    where: NotFinite | None = None
    partially_applied: bool = False


Interval = tuple[float, float]


class Computed(NamedTuple):
    """Times that are known when a step is finished, which is after the next one's first forward.

    `own`: the spans of its forwards and backwards. `spans` and `waits`: all since the step before was finished, beside
    which its lanes worked.
    """

    own: list[Span]
    spans: list[Span]
    waits: list[Interval]


class ComputeClock:
    """Forward spans, backward spans and waits of one step; readings of time.perf_counter()."""

    def __init__(self) -> None:
        self._forward_began: float | None = None
        self._spans: list[Span] = []
        self._waits: list[Interval] = []
        self._ahead: list[Span] = []
        self._ended: int | None = None

    @property
    def in_forward(self) -> bool:
        return self._forward_began is not None

    def begin_forward(self) -> None:
        if self._forward_began is None:
            self._forward_began = time.perf_counter()

    def end_forward(self) -> None:
        """Forward has ended, or pauses."""
        if self._forward_began is not None:
            self._add(Kind.FORWARD, self._forward_began)
            self._forward_began = None

    def end_backward(self, began: float) -> None:
        self._add(Kind.BACKWARD, began)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The model waits within this."""
        computed = self.in_forward
        self.end_forward()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waits.append((began, time.perf_counter()))
            if computed:
                self.begin_forward()

    def waited(self, began: float) -> None:
        """The model has waited since `began`."""
        self._waits.append((began, time.perf_counter()))

    def end_step(self) -> None:
        """The step has had its last backward: what is computed from here on is the next one's."""
        self._ended = len(self._spans)

    def take(self) -> Computed:
        """Return the times since the last call."""
        spans, self._spans = self._spans, []
        waits, self._waits = self._waits, []
        ended, self._ended = self._ended, None
        own = self._ahead + spans[:ended]
        self._ahead = [] if ended is None else spans[ended:]
        return Computed(own, spans, waits)

    def _add(self, kind: Kind, began: float) -> None:
        self._spans.append(Span(Lane.COMPUTE, kind, None, None, began, time.perf_counter()))


def lane_seconds(spans: Iterable[Span]) -> dict[Lane, float]:
    """Return the busy seconds of each lane."""
    seconds = dict.fromkeys(Lane, 0.0)
    for span in spans:
        seconds[span.lane] += span.stop_s - span.start_s
    return seconds


def exposed_seconds(spans: Sequence[Span], waits: Sequence[Interval]) -> dict[Lane, float]:
    """Return those of each lane's busy seconds in which the model waited; compute itself has none."""
    seconds = dict.fromkeys(Lane, 0.0)
    if not waits:
        return seconds
    for span in spans:
        if span.lane is not Lane.COMPUTE:
            for start, stop in waits:
                overlap = min(stop, span.stop_s) - max(start, span.start_s)
                if overlap > 0:
                    seconds[span.lane] += overlap
    return seconds
