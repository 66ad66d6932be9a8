"""The metric records of a run, read as they come: each once, those that a resumption removed taken back.

Invariant: after every reading the points that were handed out, cut as asked for and added to, are those that
`workbench.runs.read_run_metrics` would give.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, islice

from workbench.runs import Event, Metrics, MetricsReader, RunDirectory
from workbench.runs.metrics import DownsampledMetrics

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
        self._reader = MetricsReader(run)
        self._seconds = array("d")
        self.has_resumes = False
        """Whether the next reading takes back what a resumption removed."""
        self.records_read = 0
        """How many records have been read from the file so far."""
        self.left = 0
        """Records that came after those of the last reading."""
        self.problem = ""
        """What is wrong with the file; empty where nothing is."""

    def __len__(self) -> int:
        return len(self._seconds)

    def take_events(self, events: Iterable[Event]) -> None:
        """Remember resumptions; the next reading obeys them."""
        self.has_resumes = self._reader.rewind(events) or self.has_resumes

    def read(self, most_records: int | None = None) -> MetricRows | None:
        """What has come and what was taken back since the last reading; None where nothing was. Never raises.

        Of at most `most_records`; then `left` says how many are to be read yet.
        """
        metrics = self._reader.read(most_records)
        self.problem, self.left = metrics.problem, metrics.records_left
        if metrics.problem:
            return None
        self.has_resumes = False
        self.records_read += len(metrics)
        keep = metrics.first_record
        if not len(metrics) and keep == len(self):
            return None
        del self._seconds[keep:]
        before = self._seconds[-1] if keep else 0.0
        seconds = _known(_column(metrics, "step_s"))
        rows = _rows(metrics, array("d", islice(accumulate(seconds, initial=before), 1, None)), keep)
        self._seconds.extend(rows.seconds)
        return rows


def glimpsed_rows(seen: DownsampledMetrics) -> MetricRows:
    """Some of a run's records; their seconds as if the steps between them had lasted as long as they."""
    seconds = _known(_column(seen.metrics, "step_s"))
    lasted = array("d")
    total, before = 0.0, -1
    for place, each in zip(seen.places.tolist(), seconds, strict=True):
        total += each * (place - before)
        before = place
        lasted.append(total)
    return _rows(seen.metrics, lasted)


def _rows(metrics: Metrics, seconds: array[float], keep: int = 0) -> MetricRows:
    return MetricRows(
        keep,
        seconds=seconds,
        tokens=_column(metrics, "tokens_total"),
        **{name: _column(metrics, name) for name in _AS_RECORDED},
    )


def _column(metrics: Metrics, name: str) -> array[float]:
    return array("d", metrics.column(name).tobytes())


def _known(seconds: array[float]) -> array[float]:
    """What each step took, where that was not recorded 0."""
    if math.isnan(sum(seconds)):
        return array("d", (0.0 if math.isnan(each) else each for each in seconds))
    return seconds
