"""The distance of the engine's training from plain torch's, and the distance that is allowed.

Tolerances are measured, not chosen: plain torch is trained beside itself in float64, with other rounding errors,
and for the short state formats with moments rounded as they round. The engine may be `MARGIN` times as far from plain
torch as plain torch is from those: rounding has rare large consequences (a weight whose gradient is nearly nothing
goes up instead of down) that a few samples do not show, and what trains wrongly is a hundred times as far.

Invariant: a distance that is not a number is too far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from workbench.layout import StateFormat
from workbench.verify.plain_torch import Numbers, Outcome, Recipe, train_plain

MARGIN = 10.0
LATER_SEEDS = (3, 4, 5, 6, None)
"""Of more trainings by plain torch, where the engine's is too far from the first."""
FP32_EPSILON = 2.0**-23
FEW = 0.01
"""The share of a parameter's weights that rounding alone may send anywhere; `check_update` looks at every one."""
LABELS = {
    "losses": "loss",
    "norms": "norm",
    "masters": "weights",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
}
"""The fields of `Outcome` that are compared, and what rows call them."""

Tensors = dict[str, Tensor]
Errors = dict[str, dict[str, float]]
"""By a field of `Outcome`, then by parameter; losses and norms have one entry, ""."""


@dataclass(frozen=True)
class Verdict:
    """The worst of several comparisons: a relative difference, what was allowed, and where it was."""

    worst: float
    allowed: float
    where: str

    @property
    def holds(self) -> bool:
        return self.worst <= self.allowed

    @property
    def excess(self) -> float:
        """The difference as a multiple of what is allowed."""
        if math.isnan(self.worst):
            return math.inf
        if self.allowed == 0:
            return 0.0 if self.worst == 0 else math.inf
        return self.worst / self.allowed


@dataclass(frozen=True)
class Comparison:
    """The reference of one recipe: `plain` is trained from the weights `start`; `errors`: of rounding alone.

    `shaken`: trains it again by plain torch, with the rounding errors of a seed.
    """

    start: Tensors
    plain: Outcome
    errors: Errors
    shaken: Callable[[int], Outcome]

    def verdicts(self, ours: Outcome, *fields: str) -> dict[str, Verdict]:
        """Compare these fields of `Outcome`, by default all of `LABELS`; return the verdicts by label.

        Weights are compared as a share of the way that training moved them, other tensors as a share of their size.
        Where one is too far, rounding is looked at more often first: it may have sent a token to another expert.
        """
        for seed in LATER_SEEDS:
            found = {LABELS[field]: self._verdict(field, getattr(ours, field)) for field in fields or LABELS}
            if seed is None or all(verdict.holds for verdict in found.values()):
                break
            _keep_larger(self.errors, errors_between(self.plain, self.shaken(seed)))
        return found

    def _verdict(self, field: str, ours: Any) -> Verdict:
        plain, errors = getattr(self.plain, field), self.errors[field]
        if field in ("losses", "norms"):
            return compare_numbers(ours, plain, errors[""])
        if field == "masters":
            return compare_tensors(ours, plain, distances(plain, self.start), errors, FEW)
        return compare_tensors(ours, plain, sizes_of(plain), errors)


def compare_with_plain(
    model: nn.Module,
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
    plain = train_plain(model, recipe, numbers, device)
    others = [numbers.shaken(), numbers.exact() if exact else numbers.shaken(2)]
    beside = [train_plain(model, recipe, other, device) for other in others]
    if any(kept != "exact" for kept in formats.values()):
        beside.append(train_plain(model, recipe, numbers, device, formats=formats))
    errors: Errors = {}
    for other in beside:
        _keep_larger(errors, errors_between(plain, other))
    start = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return Comparison(
        start, plain, errors, lambda seed: train_plain(model, recipe, numbers.shaken(seed), device)
    )


def _keep_larger(errors: Errors, others: Errors) -> None:
    for field, found in others.items():
        most = errors.setdefault(field, found)
        most.update({name: max(error, most[name]) for name, error in found.items()})


def errors_between(one: Outcome, other: Outcome) -> Errors:
    """Return how far two trainings of one recipe are apart."""

    def of_numbers(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        return {"": max(filter(math.isfinite, apart), default=0.0)}

    return {
        "losses": of_numbers(one.losses, other.losses),
        "norms": of_numbers(one.norms, other.norms),
        "masters": distances(one.masters, other.masters, FEW),
        "exp_avg": distances(one.exp_avg, other.exp_avg),
        "exp_avg_sq": distances(one.exp_avg_sq, other.exp_avg_sq),
    }


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the one that exceeds what it is allowed by most."""
    return max(verdicts, key=lambda verdict: verdict.excess)


def compare_numbers(ours: Sequence[float], plain: Sequence[float], error: float) -> Verdict:
    """Compare losses or norms, relative to the largest of them. `error`: by how much rounding alone changes one."""
    if len(ours) != len(plain):
        return Verdict(math.inf, 0.0, f"{len(ours)} of them instead of {len(plain)}")
    scale = max((abs(value) for value in plain if math.isfinite(value)), default=0.0) or 1.0
    allowed = MARGIN * max(error / scale, FP32_EPSILON)
    verdicts = []
    for number, (mine, theirs) in enumerate(zip(ours, plain, strict=True), start=1):
        same = mine == theirs or not (math.isfinite(mine) or math.isfinite(theirs))
        verdicts.append(Verdict(0.0 if same else abs(mine - theirs) / scale, allowed, f"number {number}"))
    return worst_of(verdicts)


def compare_tensors(
    ours: Tensors,
    plain: Tensors,
    sizes: dict[str, float],
    errors: dict[str, float],
    left_out: float = 0.0,
) -> Verdict:
    """Compare parameter by parameter, relative to `sizes`: by how much training moved it, or how large it is.

    `errors`: the distances that rounding alone makes. A parameter may have as much as a typical one even where its own
    happens to be less. `left_out` as in `distance`.
    """
    if ours.keys() != plain.keys():
        odd = sorted(ours.keys() ^ plain.keys())[0]
        return Verdict(math.inf, 0.0, odd)
    # Whatever way an update takes, its result is rounded: a quarter of the last place on average.
    errors = {name: max(errors[name], FP32_EPSILON / 4 * size) for name, size in sizes_of(plain).items()}
    shares = [errors[name] / size for name, size in sizes.items() if size > 0]
    typical = median(shares) if shares else 0.0
    verdicts = []
    for name, theirs in plain.items():
        apart = distance(ours[name], theirs, left_out)
        size = sizes[name] or 1.0
        allowed = MARGIN * max(errors[name], typical * sizes[name])
        verdicts.append(Verdict(apart / size, allowed / size, name))
    return worst_of(verdicts)


def distances(one: Tensors, other: Tensors, left_out: float = 0.0) -> dict[str, float]:
    """Return the distance of every tensor from the one of the same name."""
    return {name: distance(tensor, other[name], left_out) for name, tensor in one.items()}


def distance(one: Tensor, other: Tensor, left_out: float = 0.0) -> float:
    """Return the sum of all elements' differences without the largest; `left_out`: their share, two elements at least.

    Infinite where a shape differs or a difference is not a number. AdamW turns a gradient that is nothing but rounding
    into a whole step; a few such elements would decide a distance of weights, above all a Euclidean one.
    """
    if one.shape != other.shape:
        return math.inf
    apart = (one.double() - other.double()).abs().view(-1)
    total = float(apart.sum())
    if not math.isfinite(total):
        return math.inf
    if left_out and apart.numel() > 2:
        total -= float(apart.topk(max(2, int(left_out * apart.numel()))).values.sum())
    return max(0.0, total)


def sizes_of(tensors: Tensors) -> dict[str, float]:
    """Return the size of each tensor, in the same measure."""
    return {name: float(tensor.double().abs().sum()) for name, tensor in tensors.items()}
