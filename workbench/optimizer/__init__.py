"""The host optimizer. Here: AdamW's numbers, the check for the native extension, and the count of threads. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

TOLERANCE = 1.03
"""A count of threads within this factor of the fastest is as good, and the smallest such is taken."""
ROUNDS = 4


@dataclass(frozen=True)
class AdamW:
    """The numbers of `torch.optim.AdamW`, by its names; `ValueError` names the wrong one.

    With `coupled_decay` they are those of `torch.optim.Adam`: decay is added to the gradient (L2 regularisation,
    Kingma and Ba, 2015) instead of being taken from the parameter (Loshchilov and Hutter, 2019).
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    coupled_decay: bool = False
    no_decay: tuple[str, ...] = ()
    """Patterns of names, as a shell matches them. Decay applies to parameters of two or more dimensions but these."""
    learning_rate_scales: tuple[tuple[str, float], ...] = ()
    """(pattern, factor): `lr` is multiplied by the factor of the first pattern that matches, above 0."""

    def __post_init__(self) -> None:
        for pattern, factor in self.learning_rate_scales:
            if not 0.0 < factor < math.inf:
                raise ValueError(
                    f"learning_rate_scales: {pattern!r} must have a finite factor above 0, not {factor!r}"
                )
        for name in ("lr", "eps", "weight_decay"):
            value = getattr(self, name)
            if not (0.0 <= value < math.inf):
                raise ValueError(f"{name} must be finite and at least 0, not {value!r}")
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, not {self.betas!r}")
        for index, beta in enumerate(self.betas):
            if not (0.0 <= beta < 1.0):
                raise ValueError(f"betas[{index}] must be at least 0 and below 1, not {beta!r}")

    @property
    def can_be_undone(self) -> bool:
        """Return whether an update by these numbers can be undone (see docs/host-optimizer.md)."""
        return not self.coupled_decay and self.betas[0] > 0.5

    def decays(self, name: str, dimensions: int) -> bool:
        """Return True where weight decay applies to the parameter `name`."""
        return dimensions >= 2 and not any(fnmatchcase(name, pattern) for pattern in self.no_decay)

    def learning_rate_scale(self, name: str) -> float:
        """Return the factor of `lr` for the parameter `name`."""
        scales = self.learning_rate_scales
        return next((factor for pattern, factor in scales if fnmatchcase(name, pattern)), 1.0)


class MissingExtensionWarning(UserWarning):
    """The native host optimizer is missing: torch's fused AdamW does its work, slower."""


def missing_extension() -> str | None:
    """Return why `workbench._native` cannot be used and how to repair it; None where it can be used."""
    try:
        import workbench._native  # noqa: F401
    except ImportError as error:
        return (
            f"the native extension workbench._native is missing or does not load ({error}); "
            "build it with a C compiler by `python -m pip install --editable .` in the checkout"
        )
    return None


def load_extension() -> tuple[Any, Any]:
    """Return cffi's `ffi` and `lib`; raise ImportError with the words of `missing_extension`."""
    missing = missing_extension()
    if missing is not None:
        raise ImportError(missing)
    from workbench._native import ffi, lib

    return ffi, lib


def candidates(most: int) -> list[int]:
    """Return the powers of two below `most`, and `most`."""
    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*counts, most]


def fastest_thread_count(most: int, seconds_with: Callable[[int], float]) -> int:
    """Return the smallest of the candidates up to `most` that is about as fast as the fastest.

    `seconds_with(threads)` does the same work with that many threads and says how long it took. It is called in turns,
    and each candidate's best time counts: what else the machine does now and then must not decide.
    """
    counts = candidates(most)
    if len(counts) == 1:
        return counts[0]
    best = {count: min(seconds_with(count) for _ in range(2)) for count in counts}
    for _ in range(ROUNDS - 2):
        for count in counts:
            best[count] = min(best[count], seconds_with(count))
    limit = min(best.values()) * TOLERANCE
    return next(count for count in counts if best[count] <= limit)
