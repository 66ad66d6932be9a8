"""How far apart two trainings are, and how far they may be.

What is allowed is measured, not chosen: plain torch is trained beside itself in float64, with other rounding errors,
and for the short state formats with moments rounded as they round. The engine may be `MARGIN` times as far from plain
torch as plain torch is from those: rounding has rare large consequences (a weight whose gradient is nearly nothing
goes up instead of down) that a few samples do not show, and what trains wrongly is a hundred times as far.

Invariant: a distance that is not a number is too far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

MARGIN = 10.0
FP32_EPSILON = 2.0**-23
FEW = 0.01
"""The share of a parameter's weights that rounding alone may send anywhere; `check_update` looks at every one."""

Tensors = dict[str, Tensor]


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
        """How many times what is allowed."""
        if math.isnan(self.worst):
            return math.inf
        if self.allowed == 0:
            return 0.0 if self.worst == 0 else math.inf
        return self.worst / self.allowed


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The one that exceeds what it is allowed by most."""
    return max(verdicts, key=lambda verdict: verdict.excess)


def compare_numbers(ours: Sequence[float], plain: Sequence[float], error: float) -> Verdict:
    """Losses or norms, relative to the largest of them. `error`: by how much rounding alone changes one."""
    if len(ours) != len(plain):
        return Verdict(math.inf, 0.0, f"{len(ours)} of them instead of {len(plain)}")
    finite = [abs(value) for value in plain if math.isfinite(value)]
    scale = max(finite, default=0.0) or 1.0
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
    """Parameter by parameter, relative to `sizes`: by how much training moved it, or how large it is.

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


def numbers_error(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference between two lists of finite numbers; what is not finite is left out."""
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max((difference for difference in apart if math.isfinite(difference)), default=0.0)


def distances(one: Tensors, other: Tensors, left_out: float = 0.0) -> dict[str, float]:
    """Of every tensor from the one of the same name."""
    return {name: distance(tensor, other[name], left_out) for name, tensor in one.items()}


def distance(one: Tensor, other: Tensor, left_out: float = 0.0) -> float:
    """The sum of all elements' differences, without the largest ones: `left_out` is their share, two elements at least.

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
    """How large each tensor is, in the same measure."""
    return {name: float(tensor.double().abs().sum()) for name, tensor in tensors.items()}
