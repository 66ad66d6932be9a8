"""The metric records of a run that stand, read as they come: each once, those that a resumption voids taken back.

Invariant: after every reading the points that were handed out, cut as asked for and added to, are those that
`workbench.runs.read_run_metrics` would give.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, islice

from workbench.runs import Event, Metrics, RunDirectory, read_metrics
from workbench.runs.glimpse import Glimpse

Ranges = tuple[tuple[int, int], ...]
_AS_RECORDED = ("step", "loss", "validation_loss", "grad_norm", "learning_rate", "tokens_per_s", "mfu")
"""Columns that a record has by the same names."""


def _none() -> array[float]:
    return array("d")


@dataclass(frozen=True)
class MetricRows:
    """What is new, a value a step and column; NaN stands for "not given"."""

    keep: int = 0
    """How many of the points before these still stand; the others are taken back first."""
    step: array[float] = field(default_factory=_none, repr=False)
    tokens: array[float] = field(default_factory=_none, repr=False)
    """All tokens up to and with the step."""
    seconds: array[float] = field(default_factory=_none, repr=False)
    """Of training up to the end of the step: pauses, evaluations and the time between resumptions left out."""
    loss: array[float] = field(default_factory=_none, repr=False)
    validation_loss: array[float] = field(default_factory=_none, repr=False)
    grad_norm: array[float] = field(default_factory=_none, repr=False)
    learning_rate: array[float] = field(default_factory=_none, repr=False)
    tokens_per_s: array[float] = field(default_factory=_none, repr=False)
    mfu: array[float] = field(default_factory=_none, repr=False)

    def __len__(self) -> int:
        return len(self.step)


class StandingRecords:
    """Reads `metrics.bin` of one run. For one thread."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._next = 0
        """The first record that has not been read."""
        self._resumes: list[tuple[int, float]] = []
        """(records before it, first step done again) of each resumption that is still to be obeyed."""
        self._ranges: Ranges = ()
        """The records that stand, as half-open ranges of their numbers."""
        self._steps = array("d")
        self._seconds = array("d")
        self.records_read = 0
        """How many records have been read from the file so far."""
        self.left = 0
        """Records that came after those of the last reading."""
        self.problem = ""
        """What is wrong with the file; empty where nothing is."""

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_resumes(self) -> bool:
        """Whether a resumption is still to be obeyed."""
        return bool(self._resumes)

    def take_events(self, events: Iterable[Event]) -> None:
        """Remember resumptions; the next reading obeys them."""
        for event in events:
            if event.kind != "resume":
                continue
            at, from_step = event.fields.get("record"), event.fields.get("from_step")
            if isinstance(at, int) and isinstance(from_step, (int, float)) and at >= 0:
                # One that found fewer records than those before it: the file had lost some, and what was written in
                # their place is none of theirs.
                self._resumes = [(min(before, at), step) for before, step in self._resumes]
                self._resumes.append((at, float(from_step)))

    def read(self, most_records: int | None = None) -> MetricRows | None:
        """What has come and what was taken back since the last reading; None where nothing was. Never raises.

        Of at most `most_records`; then `left` says how many are to be read yet.
        """
        # Records that were read before the resumption behind which they stand was known are read again.
        begin = min((at for at, _ in self._resumes), default=self._next)
        begin = min(begin, self._next)
        metrics = read_metrics(self._run.metrics, begin, most_records)
        self.problem, self.left = metrics.problem, metrics.records_left
        if metrics.problem:
            return None
        keep = _before(self._ranges, begin)
        end = metrics.next_record
        due = [(at, step) for at, step in self._resumes if at <= end]
        self._resumes = self._resumes[len(due) :]
        steps = metrics.column("step")
        ranges: Ranges = ()
        start = 0
        for at, from_step in due:
            ranges += ((start, at - begin),)
            ranges = tuple((a, bisect_left(steps, from_step, a, b)) for a, b in ranges)
            keep = bisect_left(self._steps, from_step, 0, keep)
            start = at - begin
        ranges = tuple((a, b) for a, b in (*ranges, (start, len(steps))) if b > a)
        self._next = end
        self.records_read += len(steps)
        if not ranges and keep == len(self):
            return None
        return self._take(keep, Metrics(metrics.columns, ranges, values=metrics.values), begin)

    def _take(self, keep: int, metrics: Metrics, begin: int) -> MetricRows:
        del self._steps[keep:], self._seconds[keep:]
        self._ranges = _first(self._ranges, keep) + tuple((a + begin, b + begin) for a, b in metrics.ranges)
        seconds = _known(metrics.column("step_s"))
        before = self._seconds[-1] if keep else 0.0
        rows = _rows(metrics, array("d", islice(accumulate(seconds, initial=before), 1, None)), keep)
        self._steps.extend(rows.step)
        self._seconds.extend(rows.seconds)
        return rows


def glimpsed_rows(seen: Glimpse) -> MetricRows:
    """The records of a glimpse; their seconds as if the steps between them had lasted as long as they."""
    seconds = _known(seen.metrics.column("step_s"))
    lasted = array("d")
    total, before = 0.0, -1
    for place, each in zip(seen.places, seconds, strict=True):
        total += each * (place - before)
        before = place
        lasted.append(total)
    return _rows(seen.metrics, lasted)


def _rows(metrics: Metrics, seconds: array[float], keep: int = 0) -> MetricRows:
    return MetricRows(
        keep,
        seconds=seconds,
        tokens=metrics.column("tokens_total"),
        **{name: metrics.column(name) for name in _AS_RECORDED},
    )


def _known(seconds: array[float]) -> array[float]:
    """What each step took, where that was not recorded 0."""
    if math.isnan(sum(seconds)):
        return array("d", (0.0 if math.isnan(each) else each for each in seconds))
    return seconds


def _before(ranges: Ranges, record: int) -> int:
    """How many of the records in `ranges` come before this one."""
    return sum(max(0, min(stop, record) - start) for start, stop in ranges)


def _first(ranges: Ranges, count: int) -> Ranges:
    """The first `count` records of `ranges`."""
    out: list[tuple[int, int]] = []
    for start, stop in ranges:
        if count > 0:
            out.append((start, min(stop, start + count)))
            count -= stop - start
    return tuple(out)
