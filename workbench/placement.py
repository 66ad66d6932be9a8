"""The place of each unit's weights and state: the tiers, and the placement that a few words of configuration mean.

Offloading is nothing but a placement. It is decided unit by unit, so that a share of the units may stay on the
device and no rule depends on the number of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from workbench.layout import Layout

Tier = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class Placement:
    """The tiers of one unit's working weights and of its optimizer state."""

    weights: Tier
    state: Tier


def stay_on_device(trainable: Sequence[int], device_fraction: float) -> list[bool]:
    """Return for each unit, given by its trainable parameters in forward order, True where it stays on the device.

    The first ones stay, while they are no more than `device_fraction` of all.
    """
    limit = device_fraction * sum(trainable)
    return [device_fraction > 0 and passed <= limit for passed in accumulate(trainable)]


def place(layout: Layout, weights: Tier, state: Tier, device_fraction: float = 0.0) -> tuple[Placement, ...]:
    """Return the placement of every unit of `layout`.

    Units outside the blocks keep their weights on the device: they are read at any moment of a step. The first
    units in forward order, as many as fit in `device_fraction` of the trainable parameters, stay on the device whole.

    Raises:
        ValueError: the tiers contradict each other, or the fraction is not between 0 and 1.
    """
    if not 0 <= device_fraction <= 1:
        raise ValueError(f"device_fraction = {device_fraction}: expected 0 to 1")
    if state == "device" and weights != "device":
        raise ValueError(f"weights = {weights!r} with state = 'device': the state is larger than the weights")
    if weights == "disk" and state != "disk":
        raise ValueError(f"weights = 'disk' with state = {state!r}: the state has to be on disk as well")
    stay = stay_on_device([unit.trainable_parameters for unit in layout.units], device_fraction)
    placements: list[Placement] = []
    for unit, stays in zip(layout.units, stay, strict=True):
        if state == "device" or stays:
            placements.append(Placement("device", "device"))
        else:
            placements.append(Placement(weights if unit.kind == "block" else "device", state))
    return tuple(placements)
