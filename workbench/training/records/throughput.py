"""How fast a step was: the work of a token, and when the run will end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import prod
from statistics import mean

SKIPPED_FIRST_STEPS = 10
WINDOW_STEPS = 50


def flops_per_token(
    parameters: int, layers: int, hidden_size: int, sequence_length: int, *, frozen: int = 0
) -> float:
    """Forward and backward of one token: 6N + 12·L·H·T (Chowdhery et al., PaLM, 2022, appendix B).

    `parameters` are those that a token meets (of experts, the chosen ones), `frozen` among them get no gradient, which
    leaves two thirds of the work on them. `hidden_size`: of all attention heads together.
    """
    return 6.0 * parameters - 2.0 * frozen + 12.0 * layers * hidden_size * sequence_length


def met_parameters(shapes: Iterable[tuple[int, ...]], experts: int, chosen: int) -> int:
    """How many parameters a token meets: of tensors that hold `experts` matrices, only the share of the `chosen`."""
    total = 0
    for shape in shapes:
        size = prod(shape)
        total += size * chosen // experts if len(shape) == 3 and shape[0] == experts > chosen > 0 else size
    return total


class RemainingTime:
    """Estimates the time to the last step from recent steps, the slow first ones after a start left out."""

    def __init__(self) -> None:
        self._seen = 0
        self._recent: deque[float] = deque(maxlen=WINDOW_STEPS)

    def add(self, step_s: float) -> None:
        self._seen += 1
        if self._seen == SKIPPED_FIRST_STEPS + 1:
            self._recent.clear()
        self._recent.append(step_s)

    def seconds(self, steps_left: int) -> float | None:
        """None before the first step."""
        return mean(self._recent) * steps_left if self._recent else None
