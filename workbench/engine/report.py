"""The result of a step: the check of its gradients, and how long the model computed and waited."""

from __future__ import annotations

import bisect
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from workbench.engine.devices.device import Device, Moment
from workbench.engine.execution import Span
from workbench.engine.speculation import Speculation
from workbench.timeline import Kind, Lane

HOST_WORK = (Kind.ACCUMULATE, Kind.NORM, Kind.UPDATE)
"""The work of the update lane, which compute's thread does where a lane of its own would not pay."""


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
    `forward_s`: those of the compute lane that were forwards; the others were backwards.
    In one memory the update lane has all updates, whichever thread did them. Of the compute lane they are the step's
    own forwards and backwards, while `spans` has the next step's first forward too, beside which its lanes worked.
    There are thousands of spans: they are there until the next step is finished, and none from then on.
    `speculation`: what was updated ahead of the verdict, and what became of it.
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
    forward_s: float = 0.0
    update_threads: int = 0
    """Threads of the host's arithmetic, the calling one counted."""
    speculation: Speculation = field(default_factory=Speculation)

    def forget_spans(self) -> None:
        """Let go of the spans; called by the engine."""
        object.__setattr__(self, "spans", ())


class StepReport:
    """A step under way. `result` waits until nothing of it is left to do, `is_skipped` for the check alone."""

    def __init__(self, finish: Callable[[], None], check: Callable[[], bool]) -> None:
        self._finish: Callable[[], None] | None = finish
        self._check: Callable[[], bool] | None = check
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
        if self._finish is not None:
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
        return self.result().skipped if self._check is None else self._check()

    def resolve(self, result: StepResult) -> None:
        self._result = result
        self._end()

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._end()

    def _end(self) -> None:
        # They hold all of the step: its tasks, and its spans.
        self._finish = self._check = None


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


class _Mark(NamedTuple):
    """A moment of the model's thread: its clock, and what compute had been issued (see `Device.record_moment`)."""

    issued_s: float
    moment: Moment


class _Open(NamedTuple):
    """A forward or a backward that has begun, and the times in it in which the device had nothing to do."""

    kind: Kind
    mark: _Mark
    waits: list[Interval]


class ComputeClock:
    """Forward spans, backward spans and waits of one step; readings of time.perf_counter().

    A device of its own goes on with what was issued to it: a span ends when the device has done its work, and the model
    waits only where the device has nothing left to do.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._open: _Open | None = None
        self._spans: list[tuple[_Open, _Mark]] = []
        self._waits: list[Interval] = []
        self._ahead: list[Span] = []
        self._ended: int | None = None

    @property
    def computes(self) -> bool:
        """A forward or a backward is under way."""
        return self._open is not None

    def begin(self, kind: Kind) -> None:
        """A forward or a backward begins, or goes on."""
        self._open = _Open(kind, self._mark(), [])

    def end(self) -> None:
        """The work under way has ended."""
        if self._open is not None:
            self._spans.append((self._open, self._mark()))
            self._open = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The model waits within this."""
        # One event a wait, not the three of two spans with a gap: with many micro-batches a step has 20,000 of them.
        began = self._mark()
        try:
            yield
        finally:
            idle_s = self._device.moment_s(began.moment)
            if idle_s is not None:
                wait = max(began.issued_s, idle_s), time.perf_counter()
                self._waits.append(wait)
                if self._open is not None:
                    self._open.waits.append(wait)

    def end_step(self) -> None:
        """The step has had its last backward: what is computed from here on is the next one's."""
        self._ended = len(self._spans)

    def take(self) -> Computed:
        """Return the times since the last call; what the device has not done yet is left for the next."""
        done: list[list[Span]] = []
        for each in self._spans:
            parts = self._parts(*each)
            if parts is None:
                break
            done.append(parts)
        del self._spans[: len(done)]
        waits, self._waits = self._waits, []
        ended, self._ended = self._ended, None
        own = self._ahead + list(chain.from_iterable(done[:ended]))
        self._ahead = [] if ended is None else list(chain.from_iterable(done[ended:]))
        return Computed(own, list(chain.from_iterable(done)), waits)

    def _mark(self) -> _Mark:
        return _Mark(time.perf_counter(), self._device.record_moment())

    def _parts(self, begun: _Open, ended: _Mark) -> list[Span] | None:
        """Return what is between the waits; None where the device has not done it yet."""
        before_s, stop_s = self._device.moment_s(begun.mark.moment), self._device.moment_s(ended.moment)
        if before_s is None or stop_s is None:
            return None
        parts: list[Span] = []
        start_s, stop_s = max(begun.mark.issued_s, before_s), max(ended.issued_s, stop_s)
        for began_s, over_s in [*sorted(begun.waits), (stop_s, stop_s)]:
            if began_s > start_s:
                parts.append(Span(Lane.COMPUTE, begun.kind, None, None, start_s, began_s))
            start_s = max(start_s, over_s)
        return parts


def on_update_lane(spans: Iterable[Span]) -> tuple[list[Span], list[Span]]:
    """Return the spans of lanes, the host's work that compute's own thread did as work of the update lane; and that."""
    found: list[Span] = []
    moved: list[Span] = []
    for span in spans:
        if span.lane is Lane.COMPUTE and span.kind in HOST_WORK:
            span = replace(span, lane=Lane.UPDATE)
            moved.append(span)
        found.append(span)
    return found, moved


def cut_out(spans: Iterable[Span], work: Iterable[Span]) -> list[Span]:
    """Return the parts of `spans`, of which a step has few, in which none of `work` was done."""
    found = list(spans)
    for done in work:
        found = [
            replace(span, start_s=start, stop_s=stop)
            for span in found
            for start, stop in (
                (span.start_s, min(span.stop_s, done.start_s)),
                (max(span.start_s, done.stop_s), span.stop_s),
            )
            if start < stop
        ]
    return found


def lane_seconds(spans: Iterable[Span]) -> dict[Lane, float]:
    """Return the busy seconds of each lane."""
    seconds = dict.fromkeys(Lane, 0.0)
    for span in spans:
        seconds[span.lane] += span.stop_s - span.start_s
    return seconds


def exposed_seconds(spans: Sequence[Span], waits: Sequence[Interval]) -> dict[Lane, float]:
    """Return those of each lane's busy seconds in which the model waited; compute itself has none.

    Waits may overlap: what two have in common counts once.
    """
    waited = _Merged(waits)
    seconds = dict.fromkeys(Lane, 0.0)
    for span in spans:
        if span.lane is not Lane.COMPUTE:
            seconds[span.lane] += waited.seconds_between(span.start_s, span.stop_s)
    return seconds


def total_seconds(intervals: Iterable[Interval]) -> float:
    """Return the length of all intervals together; what two have in common counts once."""
    return _Merged(intervals).seconds


class _Merged:
    """Intervals in order, those that meet made one; asked for by bisection, as a step has thousands of spans."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[float] = []
        self._stops: list[float] = []
        self._sums = [0.0]
        """Seconds within the intervals before each, and in all."""
        for start, stop in sorted(intervals):
            if self._stops and start <= self._stops[-1]:
                self._stops[-1] = max(self._stops[-1], stop)
            else:
                self._starts.append(start)
                self._stops.append(stop)
                self._sums.append(0.0)
            self._sums[-1] = self._sums[-2] + self._stops[-1] - self._starts[-1]

    @property
    def seconds(self) -> float:
        return self._sums[-1]

    def seconds_between(self, start: float, stop: float) -> float:
        """Return how much of the time from `start` to `stop` is within the intervals."""
        return self._seconds_until(stop) - self._seconds_until(start)

    def _seconds_until(self, moment: float) -> float:
        at = bisect.bisect(self._starts, moment)
        return self._sums[at] - max(0.0, self._stops[at - 1] - moment) if at else 0.0
