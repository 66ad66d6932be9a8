"""The gradients of one step, from their arrival to the update by them, and what they came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from workbench.optimizer.settings import AdamW


@dataclass(frozen=True)
class NotFinite:
    """Where a step's gradients are not finite.

    `parameter`, in `unit`: the first in layout order. `met_in`: the unit nearest to the loss, where backward met it
    first. `units`: how many have one, of `of`.
    """

    parameter: str
    unit: str
    met_in: str
    units: int
    of: int

    def __str__(self) -> str:
        there = f"the gradient of {self.parameter} (unit {self.unit}) is not finite"
        if self.units == 1:
            return f"{there}, in this unit alone"
        if self.units == self.of:
            return f"{there}, nor is any other unit's: the loss itself, or what is nearest to it, is not"
        some = f"{self.units} of {self.of} units have such gradients"
        return f"{there}; {some}, and backward met them first in {self.met_in}"


@dataclass(frozen=True)
class Verdict:
    """What a step's gradients came to. `grad_norm`: of the step's mean gradient, before clipping.

    `where`: None where all are finite. `torn`: units were updated before that was known.
    """

    grad_norm: float
    finite: bool
    where: NotFinite | None = None
    torn: bool = False


@dataclass
class GradientSet:
    """The gradients of one step.

    `number`: which of the engine's buffers they wait in. `scale`: what an update multiplies them by; `unscale`: what
    turns their sum into the step's mean. `held`: autograd's own tensors, by (unit, segment), where the next backward
    comes before their update. `arrived`: host slots by (unit, chunk) of those that wait in a ring. `blocked`: they
    are not to be applied. `written`: something was updated by them.
    """

    number: int
    settings: AdamW
    has_gradient: list[list[bool]] = field(default_factory=list)
    unscale: float = 1.0
    scale: float = 1.0
    held: dict[tuple[int, int], Tensor] | None = None
    arrived: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    blocked: bool = False
    written: bool = False
    verdict: Verdict | None = None

    @classmethod
    def none(cls) -> GradientSet:
        """Before the first step."""
        return cls(0, AdamW())
