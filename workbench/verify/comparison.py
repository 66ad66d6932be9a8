"""One recipe trained by plain torch in every way that a comparison needs, and the engine's outcome held against it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.layout import StateFormat
from workbench.verify.distances import (
    FEW,
    Verdict,
    compare_numbers,
    compare_tensors,
    distances,
    numbers_error,
    sizes_of,
)
from workbench.verify.plain_torch import Numbers, train_plain
from workbench.verify.recipe import Outcome, Recipe
from workbench.verify.shrink import Subject


@dataclass(frozen=True)
class Roundings:
    """How far rounding alone carries a training: a loss and a norm at most, and each tensor."""

    losses: float
    norms: float
    masters: dict[str, float]
    exp_avg: dict[str, float]
    exp_avg_sq: dict[str, float]

    @classmethod
    def between(cls, one: Outcome, other: Outcome) -> Roundings:
        return cls(
            numbers_error(one.losses, other.losses),
            numbers_error(one.norms, other.norms),
            distances(one.masters, other.masters, FEW),
            distances(one.exp_avg, other.exp_avg),
            distances(one.exp_avg_sq, other.exp_avg_sq),
        )

    def or_more(self, other: Roundings) -> Roundings:
        """The larger of two, one by one."""
        return Roundings(
            max(self.losses, other.losses),
            max(self.norms, other.norms),
            {name: max(error, other.masters[name]) for name, error in self.masters.items()},
            {name: max(error, other.exp_avg[name]) for name, error in self.exp_avg.items()},
            {name: max(error, other.exp_avg_sq[name]) for name, error in self.exp_avg_sq.items()},
        )


@dataclass(frozen=True)
class Comparison:
    """`plain` is what the engine is held to, trained from the weights `start`."""

    start: dict[str, Tensor]
    plain: Outcome
    roundings: Roundings

    def as_rounded_as(self, longer: Comparison) -> Comparison:
        """The same, with the roundings of losses and norms that `longer` has seen: a few steps show less of them."""
        losses = max(self.roundings.losses, longer.roundings.losses)
        norms = max(self.roundings.norms, longer.roundings.norms)
        return replace(self, roundings=replace(self.roundings, losses=losses, norms=norms))

    def losses(self, ours: Outcome) -> Verdict:
        """Of every micro-batch."""
        return compare_numbers(ours.losses, self.plain.losses, self.roundings.losses)

    def norms(self, ours: Outcome) -> Verdict:
        """Of every step's gradient."""
        return compare_numbers(ours.norms, self.plain.norms, self.roundings.norms)

    def weights(self, ours: Outcome) -> Verdict:
        """In full precision, as a share of the way that training moved them."""
        way = distances(self.plain.masters, self.start)
        errors = self.roundings.masters
        return compare_tensors(ours.masters, self.plain.masters, way, errors, FEW)

    def exp_avg(self, ours: Outcome) -> Verdict:
        """As a share of its size."""
        plain = self.plain.exp_avg
        return compare_tensors(ours.exp_avg, plain, sizes_of(plain), self.roundings.exp_avg)

    def exp_avg_sq(self, ours: Outcome) -> Verdict:
        """As a share of its size."""
        plain = self.plain.exp_avg_sq
        return compare_tensors(ours.exp_avg_sq, plain, sizes_of(plain), self.roundings.exp_avg_sq)


def runs_exactly(subject: Subject, recipe: Recipe, numbers: Numbers, device: torch.device) -> bool:
    """Whether the truth can be had: the model runs in float64, and draws the same numbers for dropout there."""
    if device.type != "cpu" and subject.has_dropout:
        return False
    try:
        train_plain(subject.start, recipe.first(1), numbers.exact(), device)
    except (RuntimeError, TypeError):
        return False
    return True


def compare_with_plain(
    subject: Subject,
    recipe: Recipe,
    numbers: Numbers,
    device: torch.device,
    formats: dict[str, StateFormat],
    *,
    exact: bool,
) -> Comparison:
    """Train `recipe` by plain torch on `device`. `formats`: how the engine keeps each parameter's moments.

    Few rounding errors decide whether a weight whose gradient is nearly nothing goes up or down, so that one training
    says little about their size: there is a training with other errors, and the truth (another one, where not `exact`).
    """
    plain = train_plain(subject.start, recipe, numbers, device)
    roundings = Roundings.between(plain, train_plain(subject.start, recipe, numbers.shaken(), device))
    beside = numbers.exact() if exact else numbers.shaken(2)
    roundings = roundings.or_more(
        Roundings.between(plain, train_plain(subject.start, recipe, beside, device))
    )
    if any(kept != "exact" for kept in formats.values()):
        short = train_plain(subject.start, recipe, numbers, device, formats=formats)
        roundings = roundings.or_more(Roundings.between(plain, short))
    start = {n: p.detach() for n, p in subject.start.named_parameters() if p.requires_grad}
    return Comparison(start, plain, roundings)
