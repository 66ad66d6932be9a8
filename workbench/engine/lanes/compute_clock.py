"""When the model computed and when it waited, as the thread that runs it sees it.

What a lane does while the model computes is hidden, what it does while the model waits is exposed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workbench.engine.lanes.execution import Span
from workbench.timeline import Kind, Lane

Interval = tuple[float, float]


class Computed(NamedTuple):
    """What is known when a step is settled, which is after the next one's first forward.

    `own`: the spans of its forwards and backwards. `spans` and `waits`: all since the step before was settled, which is
    what its lanes worked beside.
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
        """What there is since the last call."""
        spans, self._spans = self._spans, []
        waits, self._waits = self._waits, []
        ended, self._ended = self._ended, None
        own = self._ahead + spans[:ended]
        self._ahead = [] if ended is None else spans[ended:]
        return Computed(own, spans, waits)

    def _add(self, kind: Kind, began: float) -> None:
        self._spans.append(Span(Lane.COMPUTE, kind, None, None, began, time.perf_counter()))


def lane_seconds(spans: Iterable[Span]) -> dict[Lane, float]:
    """Busy seconds of each lane."""
    seconds = dict.fromkeys(Lane, 0.0)
    for span in spans:
        seconds[span.lane] += span.stop_s - span.start_s
    return seconds


def exposed_seconds(spans: Sequence[Span], waits: Sequence[Interval]) -> dict[Lane, float]:
    """Of each lane's busy seconds those in which the model waited; compute itself has none."""
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
