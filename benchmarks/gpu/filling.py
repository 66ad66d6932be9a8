"""Starting weights at the device's speed: the architecture's own initialisation takes minutes for 10 billion on a CPU.

Matrices are normal with a deviation of 0.02, gains 1, biases 0, as GPT-2 begins but for the scaling of its residual
projections; drawn on the device where there is one. What a step costs does not depend on it.
"""

from __future__ import annotations

import torch
from torch import nn

from workbench.engine.blocks.discovery import FoundUnit

DEVIATION = 0.02
WORDS = "weights: normal(0, 0.02) drawn on the device, not the architecture's own initialisation"


class DeviceFilling:
    """Replaces a unit's meta parameters by real ones on `target`: the engine's `materialize`."""

    def __init__(
        self,
        drawn_on: torch.device,
        target: torch.device,
        dtype: torch.dtype = torch.float32,
        seed: int = 1234,
    ) -> None:
        self._drawn_on = drawn_on
        self._target = target
        self._dtype = dtype
        torch.manual_seed(seed)

    @torch.no_grad()
    def __call__(self, unit: FoundUnit) -> None:
        for name, parameter in list(unit.parameters.items()):
            values = torch.empty(parameter.shape, dtype=torch.float32, device=self._drawn_on)
            if values.dim() >= 2:
                values.normal_(0, DEVIATION)
            else:
                values.fill_(1.0 if name.endswith("weight") else 0.0)
            real = values.to(device=self._target, dtype=self._dtype)
            unit.replace(name, nn.Parameter(real, requires_grad=parameter.requires_grad))
