"""What `workbench verify` shows, a row for each promise, and what the checks that make the rows share.

A check is a function of the trial that yields rows. Whatever goes wrong inside it is a row that failed: an engine that
raises, stops or gets stuck has not kept its promise either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from workbench.engine.blocks.discovery import find_units, lay_out
from workbench.engine.devices.device import Device
from workbench.layout import StateFormat
from workbench.verify.comparison import Comparison, compare_with_plain, runs_exactly
from workbench.verify.distances import Verdict
from workbench.verify.engine_training import Bench, EngineOutcome
from workbench.verify.plain_torch import Numbers
from workbench.verify.recipe import Recipe


@dataclass(frozen=True)
class Row:
    """One promise. `worst` and `allowed` are None where nothing was measured; `note` says where it was, or what went
    wrong."""

    name: str
    compared: str
    holds: bool
    worst: float | None = None
    allowed: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


@dataclass(frozen=True)
class Trial:
    """`recipe` is the run's own. `numbers`: the precisions of plain torch beside it, on a device `like` the run's."""

    bench: Bench
    numbers: Numbers
    like: Device
    recipe: Recipe

    @property
    def device(self) -> torch.device:
        return self.like.torch_device

    @cached_property
    def ours(self) -> EngineOutcome:
        """The run's own recipe by the engine, on the run's own device."""
        return self.bench.train(self.recipe)

    @cached_property
    def comparison(self) -> Comparison:
        """The run's own recipe by plain torch."""
        return self.compare(self.recipe)

    def compare(self, recipe: Recipe) -> Comparison:
        """Another recipe by plain torch."""
        return compare_with_plain(
            self.bench.subject, recipe, self.numbers, self.device, self.formats, exact=self._runs_exactly
        )

    @cached_property
    def _runs_exactly(self) -> bool:
        return runs_exactly(self.bench.subject, self.recipe, self.numbers, self.device)

    @cached_property
    def formats(self) -> dict[str, StateFormat]:
        found = find_units(self.bench.subject.start)
        layout = lay_out(found, self.numbers.storage, 1, self.bench.config.offload.state_format)
        return {s.name: unit.regions[s.region].state_format for unit in layout.units for s in unit.segments}


Check = Callable[[Trial], Iterator[Row]]


def measured(name: str, compared: str, verdicts: dict[str, Verdict]) -> Row:
    """The row of several comparisons, by what each compared: they hold if all do, and the worst is shown."""
    what = max(verdicts, key=lambda label: verdicts[label].excess)
    verdict = verdicts[what]
    holds = all(v.holds for v in verdicts.values())
    return Row(name, compared, holds, verdict.worst, verdict.allowed, f"{what}, {verdict.where}")


def stated(name: str, compared: str, wrong: str | None, note: str = "") -> Row:
    """The row of something that is so or not; `wrong` says what is not."""
    return Row(name, compared, wrong is None, note=note if wrong is None else wrong)


def guarded(name: str, check: Check, trial: Trial) -> Iterator[Row]:
    """A check's rows; an exception is a row of its own. Memory that runs out is nobody's broken promise."""
    try:
        yield from check(trial)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        yield Row(name, "that it goes on", False, note=_in_one_line(error))


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
