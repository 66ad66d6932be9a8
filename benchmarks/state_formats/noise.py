"""Whether a format differs from `exact` by more than one seed of `exact` differs from another.

Formats are compared at the same seed, where initial weights and batches are the same: what seeds have in common drops
out of the difference, and its standard error is much smaller than the noise it is held against.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.smoothing import final_loss, smoothed

MEASURES: Mapping[str, Callable[[Curve], float]] = {
    "validation": lambda curve: curve.validation_loss,
    "training, last 20 steps": lambda curve: final_loss(curve.losses),
}


@dataclass(frozen=True)
class Comparison:
    """A format's loss less that of `exact`, over all seeds, in nats a token. One seed has no spread: None."""

    model: str
    state_format: str
    measure: str
    mean_difference: float
    standard_error: float | None
    seed_noise: float | None
    """Standard deviation of `exact` between seeds."""

    @property
    def within_noise(self) -> bool | None:
        """Whether the mean difference is no larger than the seed noise."""
        return None if self.seed_noise is None else abs(self.mean_difference) <= self.seed_noise


def compare(curves: Sequence[Curve]) -> list[Comparison]:
    """Every model, measure and format other than `exact`, in this order."""
    return [
        _comparison(curves, model, state_format, measure)
        for model in dict.fromkeys(curve.model for curve in curves)
        for measure in MEASURES
        for state_format in dict.fromkeys(curve.state_format for curve in curves if curve.model == model)
        if state_format != "exact"
    ]


def largest_apart(one: Curve, other: Curve) -> float:
    """The largest distance between two smoothed training curves of equal length."""
    pairs = zip(smoothed(one.losses), smoothed(other.losses), strict=True)
    return max(abs(a - b) for a, b in pairs)


def at_same_seed(curves: Sequence[Curve], model: str, state_format: str) -> list[tuple[Curve, Curve]]:
    """A format's curves, each with the curve of `exact` that began and read as it did."""
    exact = {c.seed: c for c in curves if c.model == model and c.state_format == "exact"}
    ours = [c for c in curves if c.model == model and c.state_format == state_format]
    return [(curve, exact[curve.seed]) for curve in ours]


def _comparison(curves: Sequence[Curve], model: str, state_format: str, measure: str) -> Comparison:
    pairs = at_same_seed(curves, model, state_format)
    value = MEASURES[measure]
    differences = [value(curve) - value(exact) for curve, exact in pairs]
    spread = _deviation(differences)
    return Comparison(
        model,
        state_format,
        measure,
        mean_difference=statistics.fmean(differences),
        standard_error=None if spread is None else spread / math.sqrt(len(differences)),
        seed_noise=_deviation([value(exact) for _, exact in pairs]),
    )


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None
