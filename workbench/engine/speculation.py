"""Speculation: updates ahead of the verdict on a step's gradients, and the rule that says when they are worth it.

A unit is updated as soon as its own gradient is down, as if the step were neither clipped nor torn. The verdict over
all gradients confirms that, or the update is undone, bit by bit, and done again with the right factor, or left undone.

Invariant: what is chosen here decides when work is done, never a bit of its result. The rule follows from recorded
verdicts alone, so that a resumed run takes the same road.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LOOKED_AT = 8
"""Verdicts that the rule looks back at."""
MOST_AGAINST = 2
"""Of those, which a step that speculates may follow. An update that is undone and redone takes some 1.7 updates more,
and one that is confirmed hides one: it pays while less than a third of the verdicts are against it."""


class SpeculationRule:
    """Which steps speculate. `possible`: there are units whose updates can be undone."""

    def __init__(self, *, possible: bool) -> None:
        self._possible = possible
        self._verdicts: list[bool] = []
        """The last ones: gradients were to be applied as they are."""

    @property
    def speculates(self) -> bool:
        """The step that begins now speculates."""
        return self._possible and self._verdicts.count(False) <= MOST_AGAINST

    def after(self, as_it_is: bool) -> None:
        """A step has had its verdict, whether it speculated or not."""
        if self._possible:
            self._verdicts = [*self._verdicts, as_it_is][-LOOKED_AT:]

    def as_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"verdicts": list(self._verdicts)} if self._possible else {}

    def load(self, counters: dict[str, Any]) -> None:
        """Take up what a checkpoint kept; one of a run that did not speculate has nothing."""
        self._verdicts = [bool(verdict) for verdict in counters.get("verdicts", ())][-LOOKED_AT:]


@dataclass
class Speculation:
    """The outcome of a step's speculation, in parameters: updated ahead of the verdict, and of those undone after it.

    `seconds`: those that undoing took, and doing again with it.
    """

    speculated: int = 0
    undone: int = 0
    seconds: float = 0.0


def is_against(squares: float, unscale: float, clipping: float) -> bool:
    """Return whether the gradients that are known so far, by the sum of their squares, suffice for a verdict against
    the step."""
    if not math.isfinite(squares):
        return True
    return 0 < clipping < math.sqrt(squares) * unscale
