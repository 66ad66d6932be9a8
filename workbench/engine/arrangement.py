"""What a model becomes under an engine's arguments: its units, where each is kept, and the way its step takes.

Invariant: nothing is allocated, moved or hooked here, so that arguments that are refused have changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from workbench.engine.arithmetic.precision import Compute, compute_dtypes, dtype_name
from workbench.engine.blocks.discovery import FoundUnit, find_units, lay_out
from workbench.engine.devices.device import Device
from workbench.layout import Layout
from workbench.placement import Tier, place
from workbench.routing import Conditions, UnitRoute, lanes_pay, route_unit
from workbench.sizes import BufferSizes, buffer_sizes, each_unit
from workbench.state_formats import StateFormat
from workbench.system.processor import usable_cpus
from workbench.timeline import Overlap, StepShape


@dataclass(frozen=True)
class Arrangement:
    """All units in forward order. `found` and `routes`: one for each unit of `layout`.

    `streamed`: the units whose weights come through slots. `computed_in`: by storage dtype. `overlap`: as it was asked
    for; the `shape` of a step that is not delayed has "exact" in place of "delayed".
    """

    found: Sequence[FoundUnit]
    layout: Layout
    routes: Sequence[UnitRoute]
    sizes: BufferSizes
    streamed: frozenset[int]
    computed_in: dict[torch.dtype, torch.dtype]
    overlap: Overlap
    shape: StepShape


def arrange(
    model: nn.Module,
    device: Device,
    *,
    storage: torch.dtype,
    compute: Compute,
    weights: Tier,
    state: Tier,
    device_fraction: float,
    state_format: StateFormat,
    gradient_accumulation: int,
    global_quantity: bool,
    overlap: Overlap,
    activation_checkpointing: bool,
    chunk_bytes: int,
) -> Arrangement:
    """Find the units of `model`, and place and route each.

    `storage`: the dtype of working weights. `global_quantity`: an update needs to know of all gradients. The others are
    `OffloadEngine`'s arguments.

    Raises:
        ValueError: the model cannot be trained, or weights would come through slots without checkpointing.
    """
    found = find_units(model)
    layout = lay_out(found, storage, chunk_bytes, state_format, device_fraction)
    placements = place(layout, weights, state, device_fraction)
    computed_in = compute_dtypes(compute, device)
    conditions = Conditions(
        shared_memory=device.shared_memory,
        compute_dtypes={dtype_name(a): dtype_name(b) for a, b in computed_in.items()},
        gradient_accumulation=gradient_accumulation,
        must_wait=global_quantity or overlap != "exact",
        overlap=overlap,
        lanes_pay=lanes_pay(
            sum(unit.weight_bytes for unit in layout.units), torch.get_num_threads(), usable_cpus()
        ),
    )
    routes = [route_unit(s, p, conditions) for s, p in zip(layout.units, placements, strict=True)]
    streamed = frozenset(s.index for s, r in zip(layout.units, routes, strict=True) if r.streamed)
    if streamed and not activation_checkpointing:
        raise ValueError(
            "activation_checkpointing = False: weights that come through slots (off the device, or stored in 16 "
            "bits and computed in fp32) need it; without it backward would read what another block left there"
        )
    shape = StepShape(
        gradient_accumulation=gradient_accumulation,
        flows=tuple(route.flow() for route in routes),
        global_quantity=global_quantity,
        overlap="exact" if overlap == "delayed" else overlap,
    )
    sizes = buffer_sizes(each_unit(layout, routes), conditions, chunk_bytes)
    return Arrangement(found, layout, routes, sizes, streamed, computed_in, overlap, shape)
