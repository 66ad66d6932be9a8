"""`auto`: the fastest placement that fits, and where none does the one that lacks least.

Invariant: what a user has fixed stays as it is. Candidates come in the order of speed that is usual; where a step's
seconds are known, they decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from workbench.errors import DoesNotFitError
from workbench.formatting import GIB, MIB
from workbench.layout import StateFormat, Tier
from workbench.plan.memory import MemoryPlan
from workbench.timeline import Overlap

FRACTIONS = 8
"""A share of the state that stays on the device is tried in steps of 1/8."""

BY_SPEED: tuple[tuple[Tier, Tier], ...] = (
    ("device", "device"),
    ("device", "host"),
    ("host", "host"),
    ("device", "disk"),
    ("host", "disk"),
    ("disk", "disk"),
)

NO_PLACEMENT = (
    "offload: no placement goes with the other fields; a disk tier needs offload.disk_path, and weights off the device "
    "need train.activation_checkpointing"
)


@dataclass(frozen=True)
class PlacementRequest:
    """A configuration's words about its placement, and what else rules some placements out.

    `disk`: the disk tier has a folder. `shared_memory`: the device computes in the host's memory.
    """

    weights: Tier | Literal["auto"]
    state: Tier | Literal["auto"]
    device_fraction: float
    state_format: StateFormat
    overlap: Overlap
    activation_checkpointing: bool
    disk: bool
    shared_memory: bool

    @property
    def is_open(self) -> bool:
        """True where there is anything to choose."""
        return "auto" in (self.weights, self.state)


@dataclass(frozen=True)
class Candidate:
    """One placement of a whole model."""

    weights: Tier
    state: Tier
    device_fraction: float = 0.0

    def __str__(self) -> str:
        return (
            f'offload.weights = "{self.weights}", offload.state = "{self.state}", '
            f"offload.device_fraction = {self.device_fraction:g}"
        )


def candidates(request: PlacementRequest) -> Iterator[Candidate]:
    """Yield the placements that `request` allows, in the order of speed that is usual."""
    pairs = BY_SPEED
    if request.shared_memory:
        # One memory: "device" says no more than "host", and leaves less room for state formats.
        pairs = (*BY_SPEED[1:2], *BY_SPEED[0:1], *BY_SPEED[2:])
    for weights, state in pairs:
        if request.weights not in ("auto", weights) or request.state not in ("auto", state):
            continue
        if "disk" in (weights, state) and not request.disk:
            continue
        if weights != "device" and not request.activation_checkpointing:
            continue
        if weights == "disk" and request.overlap == "delayed":
            continue
        if state == "device" and (request.state_format != "exact" or request.device_fraction):
            continue
        splits = request.state == "auto" and (weights, state) == ("device", "host")
        if splits and not request.device_fraction and not request.shared_memory:
            for eighths in range(FRACTIONS - 1, 0, -1):
                yield Candidate(weights, state, eighths / FRACTIONS)
        yield Candidate(weights, state, request.device_fraction)


def choose_placement(
    allowed: Iterable[Candidate],
    plan_of: Callable[[Candidate], MemoryPlan],
    seconds_of: Callable[[Candidate], float | None] = lambda candidate: None,
) -> tuple[Candidate, MemoryPlan]:
    """Return the fastest of `allowed` whose plan fits, with that plan; the first that fits where no speed is known.

    `seconds_of`: of a step of a candidate that has been planned; None where it is not known, which comes after any that
    is.

    Raises:
        DoesNotFitError: none fits; names the one that lacks least, field by field, with its table.
    """
    nearest: tuple[Candidate, MemoryPlan] | None = None
    fastest: tuple[float, Candidate, MemoryPlan] | None = None
    for candidate in allowed:
        plan = plan_of(candidate)
        if plan.fits:
            seconds = seconds_of(candidate)
            if seconds is None:
                if fastest is None:
                    return candidate, plan
            elif fastest is None or seconds < fastest[0]:
                fastest = seconds, candidate, plan
        elif nearest is None or plan.missing_bytes < nearest[1].missing_bytes:
            nearest = candidate, plan
    if fastest is not None:
        return fastest[1:]
    if nearest is None:
        raise DoesNotFitError(NO_PLACEMENT)
    candidate, plan = nearest
    raise DoesNotFitError(
        f"no placement fits on this machine. The nearest is {candidate}, which lacks {lacking(plan)}:\n{plan.table()}"
    )


def lacking(plan: MemoryPlan) -> str:
    """Return the bytes that the tiers of a plan lack, in words: "3.20 GiB of host"."""
    short = [tier for tier in plan.tiers if not tier.fits]
    return " and ".join(f"{_amount(tier.missing_bytes)} of {tier.tier}" for tier in short)


def _amount(size: int) -> str:
    """Return missing bytes in words, to the hundredth of a MiB where they are few."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / MIB:,.2f} MiB"
