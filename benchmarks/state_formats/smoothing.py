"""Training losses without the noise of single batches, so that curves can be compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

SMOOTHED_STEPS = 20


def smoothed(losses: Sequence[float]) -> list[float]:
    """Means over the last 20 steps, one for each step from the twentieth on; fewer steps give one mean of all."""
    window = min(SMOOTHED_STEPS, len(losses))
    return [statistics.fmean(losses[end - window : end]) for end in range(window, len(losses) + 1)]


def smoothed_steps(losses: Sequence[float]) -> list[int]:
    """The steps that the values of `smoothed` belong to."""
    return list(range(min(SMOOTHED_STEPS, len(losses)), len(losses) + 1))


def final_loss(losses: Sequence[float]) -> float:
    """Mean training loss of the last steps."""
    return smoothed(losses)[-1]
