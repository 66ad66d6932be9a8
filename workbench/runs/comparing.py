"""Runs beside each other: where their configurations differ, and their curves.

Invariant: it reads configurations as plain TOML, whatever version wrote them; what cannot be read is a problem that is
told and not an exception.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

from workbench.runs.directory import RunDirectory
from workbench.runs.events import read_events
from workbench.runs.metrics import Metrics, read_metrics, read_run_metrics

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


@dataclass(frozen=True)
class Difference:
    """A field that is not the same in all runs."""

    name: str
    """Dotted: "train.steps"."""
    values: tuple[str | None, ...]
    """As TOML, one for each run in their order; None where the run has no such field."""


@dataclass(frozen=True)
class Differences:
    """How configurations differ."""

    fields: tuple[Difference, ...]
    """In the order of the configuration."""
    compared: int
    """Fields that any of them has."""
    problems: tuple[str, ...]
    """One sentence for each configuration that could not be read."""


@dataclass(frozen=True)
class Curves:
    """What one run has recorded, a value a step, in the order of its steps. NaN stands for "not given"."""

    run: RunDirectory
    step: array[float]
    tokens: array[float] = field(repr=False)
    """Tokens trained on up to and with this step."""
    seconds: array[float] = field(repr=False)
    """Seconds of training up to the end of this step: pauses, evaluations and the time between resumptions left out."""
    loss: array[float] = field(repr=False)
    validation_loss: array[float] = field(repr=False)
    problem: str = ""
    """What is wrong with the metrics; empty where nothing is."""

    def __len__(self) -> int:
        return len(self.step)


def config_differences(runs: Sequence[RunDirectory]) -> Differences:
    """The fields in which the configurations of `runs` differ. Never raises."""
    flat: list[dict[str, str] | None] = []
    problems = []
    for run in runs:
        values, problem = _config(run)
        flat.append(values)
        if problem:
            problems.append(f"run {run.name}: {problem}")
    readable = [values for values in flat if values is not None]
    names = _in_order(readable)
    fields = tuple(
        Difference(name, tuple(None if values is None else values.get(name) for values in flat))
        for name in names
        if len({values.get(name) for values in readable}) > 1
    )
    return Differences(fields, len(names), tuple(problems))


def read_curves(run: RunDirectory) -> Curves:
    """The curves of the records that stand. Never raises; see `problem`."""
    return curves_of(run, read_run_metrics(run))


def curves_of(run: RunDirectory, metrics: Metrics, seconds_before: float = 0.0) -> Curves:
    """The curves in `metrics`, which were read from `run`; before them it had trained for `seconds_before`."""
    known = (0.0 if math.isnan(seconds) else seconds for seconds in metrics.column("step_s"))
    return Curves(
        run,
        step=metrics.column("step"),
        tokens=metrics.column("tokens_total"),
        seconds=array("d", islice(accumulate(known, initial=seconds_before), 1, None)),
        loss=metrics.column("loss"),
        validation_loss=metrics.column("validation_loss"),
        problem=metrics.problem,
    )


class CurveReader:
    """The curves of one run as they grow; each reading takes in only what has come since the one before."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._next_record = -1
        self._events_offset = 0
        self._seconds = 0.0

    def read(self) -> tuple[Curves, bool]:
        """What is new, and whether it stands for all: the first reading, and one after a resumption. Never raises."""
        # Events first: a resumption that comes in between is seen by the next reading.
        events = read_events(self.run, self._events_offset)
        self._events_offset = events.offset
        whole = self._next_record < 0 or any(event.kind == "resume" for event in events.events)
        metrics = read_run_metrics(self.run) if whole else read_metrics(self.run.metrics, self._next_record)
        before = 0.0 if whole else self._seconds
        if not metrics.problem:
            self._next_record = metrics.next_record
        curves = curves_of(self.run, metrics, before)
        self._seconds = curves.seconds[-1] if len(curves) else before
        return curves, whole


def _config(run: RunDirectory) -> tuple[dict[str, str] | None, str]:
    """The fields of a run's configuration by their dotted names, and what is wrong."""
    try:
        document = tomllib.loads(run.config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"{run.config.name} is missing"
    except OSError as error:
        return None, f"{run.config.name} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        return None, f"{run.config.name} is damaged: {error}"
    return dict(_flat(document, "")), ""


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, _written(value)


def _written(value: object) -> str:
    """One value as TOML, near enough to read; equal values give equal texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_written(item) for item in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}"
    return str(value)


def _in_order(tables: Sequence[dict[str, str]]) -> list[str]:
    """All names, each after those it stands behind in the first table that has it; whole tables stay together."""
    names: list[str] = []
    for table in tables:
        at = 0
        for name in table:
            if name in names:
                at = names.index(name) + 1
            else:
                names.insert(at, name)
                at += 1
    return names
