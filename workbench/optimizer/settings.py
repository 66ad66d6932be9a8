"""AdamW's numbers, checked. No torch: the native optimizer and the reference share them."""

from __future__ import annotations

import math
from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay"):
            value = getattr(self, name)
            if not (0.0 <= value < math.inf):
                raise ValueError(f"{name} must be finite and at least 0, not {value!r}")
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, not {self.betas!r}")
        for index, beta in enumerate(self.betas):
            if not (0.0 <= beta < 1.0):
                raise ValueError(f"betas[{index}] must be at least 0 and below 1, not {beta!r}")
