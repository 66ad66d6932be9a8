"""Runs beside each other: where their configurations differ, and their curves.

Configurations are read as plain TOML, whatever version wrote them. Invariant: nothing here raises; a run that cannot be
read gives a problem, one sentence, and no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.runs.directory import RunDirectory
from workbench.runs.metrics import MetricsReader
from workbench.runs.records import read_events
from workbench.system.foreign import parse_toml

if TYPE_CHECKING:
    from workbench.runs.metrics import Floats


@dataclass(frozen=True)
class Difference:
    """A field that is not the same in all runs."""

    name: str
    """Dotted: "train.steps"."""
    values: tuple[str | None, ...]
    """As TOML, one for each run in their order; None where the run has no such field."""


@dataclass(frozen=True)
class Differences:
    """The differences of configurations."""

    fields: tuple[Difference, ...]
    """In the order of the first configuration that has them."""
    compared: int
    """Fields that any of them has."""
    problems: tuple[str, ...]
    """One sentence for each configuration that could not be read."""


@dataclass(frozen=True)
class Curves:
    """The recorded curves of one run: float64 arrays, a value a step, in the order of its steps. NaN: "not given"."""

    run: RunDirectory
    step: Floats
    tokens: Floats = field(repr=False)
    """Tokens trained on up to and with this step."""
    seconds: Floats = field(repr=False)
    """Seconds of training up to the end of this step: pauses, evaluations and the time between resumptions left out."""
    loss: Floats = field(repr=False)
    validation_loss: Floats = field(repr=False)
    problem: str = ""
    """A sentence on what is wrong with the metrics; empty where nothing is."""

    def __len__(self) -> int:
        return len(self.step)


class CurveReader:
    """Reads the curves of one run as they grow; each reading takes in only what has come since the one before."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._events_offset = 0
        self._seconds = 0.0
        self._metrics: MetricsReader | None = None

    def read(self) -> tuple[Curves, bool]:
        """Return the new part, and True where it replaces all before it: at first, and after a resumption."""
        import numpy as np

        events = read_events(self.run, self._events_offset)
        self._events_offset = events.offset
        anew = self._metrics is None or self._metrics.records == 0 or self._metrics.rewind(events.events)
        if anew or self._metrics is None:
            self._metrics, self._seconds = MetricsReader(self.run), 0.0
        metrics = self._metrics.read()
        seconds = self._seconds + np.nancumsum(metrics.column("step_s"))
        self._seconds = float(seconds[-1]) if len(seconds) else self._seconds
        curves = Curves(
            self.run,
            step=metrics.column("step"),
            tokens=metrics.column("tokens_total"),
            seconds=seconds,
            loss=metrics.column("loss"),
            validation_loss=metrics.column("validation_loss"),
            problem=metrics.problem,
        )
        return curves, anew


def read_curves(run: RunDirectory) -> Curves:
    """Return all of a run's curves; see `problem`."""
    return CurveReader(run).read()[0]


def config_differences(runs: Sequence[RunDirectory]) -> Differences:
    """Return the fields in which the configurations of `runs` differ."""
    configs: list[dict[str, str] | None] = []
    problems = []
    for run in runs:
        try:
            configs.append(dict(_flat(parse_toml(run.config.read_text(encoding="utf-8")), "")))
        except FileNotFoundError:
            configs.append(None)
            problems.append(f"run {run.name}: {run.config.name} is missing")
        except (OSError, ValueError) as error:
            configs.append(None)
            problems.append(f"run {run.name}: {run.config.name} is damaged: {error}")
    readable = [values for values in configs if values is not None]
    # Every run stores every field, in the order of the schema.
    names = dict.fromkeys(name for values in readable for name in values)
    fields = tuple(
        Difference(name, tuple(None if values is None else values.get(name) for values in configs))
        for name in names
        if len({values.get(name) for values in readable}) > 1
    )
    return Differences(fields, len(names), tuple(problems))


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted name of each field and its value as TOML."""
    import tomlkit

    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", tomlkit.item(value).as_string()
