"""Lays a module's parameters into memory: units found, placed and routed, each taken over in turn.

At most one unit is in memory twice, so that a model larger than the host can be made unit by unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic
from workbench.engine.blocks.discovery import FoundUnit, storage_dtypes
from workbench.engine.blocks.streamed import StreamedUnit
from workbench.engine.devices.device import Device
from workbench.engine.storage.disk_files import DiskTier
from workbench.engine.storage.stored_tensor import StoredTensor
from workbench.engine.storage.unit_memory import UnitMemory
from workbench.layout import Layout
from workbench.routing import UnitRoute
from workbench.sizes import BufferSizes


@dataclass(frozen=True)
class Assembly:
    """All units in memory, in forward order. `parameters`: one for each segment. `frozen`: by name."""

    layout: Layout
    memories: list[UnitMemory]
    parameters: list[list[nn.Parameter]]
    frozen: list[list[tuple[str, nn.Parameter]]]
    streamed: list[StreamedUnit]

    def state(self) -> Iterator[tuple[str, Tensor | StoredTensor]]:
        """Every tensor of the optimizer state by name; see `OffloadEngine.state`."""
        for memory in self.memories:
            for kind, tensor in memory.state():
                yield f"{memory.unit.index:04d}-{memory.unit.name}/{kind}", tensor

    def parameter_steps(self) -> dict[str, int]:
        """The steps that each parameter has got a gradient in, by its name."""
        return {
            segment.name: memory.steps[number]
            for memory in self.memories
            for number, segment in enumerate(memory.unit.segments)
        }

    def weights(self) -> Iterator[dict[str, Tensor]]:
        """The newest weights, a dictionary a unit; see `OffloadEngine.weights`."""
        streamed = {s.unit.index: s for s in self.streamed}
        for memory, frozen in zip(self.memories, self.frozen, strict=True):
            yield _unit_weights(memory, frozen, streamed.get(memory.unit.index))

    def leave(self) -> None:
        """Bind what was streamed, or computed in another dtype, to its weights on the host."""
        for memory, members in zip(self.memories, self.parameters, strict=True):
            memory.leave(members)
        for unit in self.streamed:
            unit.leave_frozen()


def assemble(
    model: nn.Module,
    found: Sequence[FoundUnit],
    layout: Layout,
    routes: Sequence[UnitRoute],
    computed_in: dict[torch.dtype, torch.dtype],
    sizes: BufferSizes,
    *,
    storage: torch.dtype,
    device: Device,
    disk: DiskTier | None,
    on_host: Arithmetic,
    on_device: Arithmetic,
    chunk_bytes: int,
    materialize: Callable[[FoundUnit], None] | None,
) -> Assembly:
    """Take the parameters and buffers of `model` over, unit by unit.

    Raises:
        ValueError: a parameter is on the meta device and there is no `materialize`.
        DiskError: the disk has no room, or refuses.
    """
    stored = storage_dtypes(list(found), storage)
    assembly = Assembly(layout, [], [], [], [])
    buffer: Tensor | None = None
    for unit, source, route in zip(layout.units, found, routes, strict=True):
        if materialize is not None and any(p.is_meta for p in source.parameters.values()):
            materialize(source)
        memory = UnitMemory(unit, route, device, computed_in, disk)
        if memory.files:
            buffer = device.empty_pages(sizes.state.nbytes) if buffer is None else buffer
        members = [source.parameters[segment.name] for segment in unit.segments]
        memory.adopt(members, on_device if route.on_device else on_host, buffer)
        frozen = [(f.name, source.parameters[f.name], stored[f.name]) for f in unit.frozen]
        if route.streamed:
            assembly.streamed.append(
                StreamedUnit(memory, members, frozen, computed_in, device, disk, chunk_bytes)
            )
        else:
            for _, parameter, dtype in frozen:
                dtype = computed_in.get(dtype, dtype)
                parameter.data = parameter.data.to(device=device.torch_device, dtype=dtype)
        for member in members:
            member.grad = None
        assembly.memories.append(memory)
        assembly.parameters.append(members)
        assembly.frozen.append([(name, parameter) for name, parameter, _ in frozen])
    for module in model.modules():
        for name, held in module._buffers.items():
            if held is not None:
                module._buffers[name] = held.to(device.torch_device)
    return assembly


def _unit_weights(
    memory: UnitMemory, frozen: Sequence[tuple[str, nn.Parameter]], streamed: StreamedUnit | None
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for number, region in enumerate(memory.regions):
        copy = region.working_copy
        if copy is not None:
            whole = copy.cpu()
        else:
            stored = memory.stored(number, region.working_kind)
            whole = stored.read(0, stored.numel())
        for segment in (s for s in memory.unit.segments if s.region == number):
            found[segment.name] = memory.of_segment(whole, segment).view(segment.shape)
    kept = {} if streamed is None else dict(streamed.frozen_weights())
    for name, parameter in frozen:
        flat = kept.get(name)
        found[name] = parameter.detach().cpu() if flat is None else flat.view(parameter.shape)
    return found
