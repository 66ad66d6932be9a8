"""Builds an engine for a model: the plan of its units, then their memory and everything that steps run on.

Invariant: `plan_units` allocates, moves and hooks nothing, so that arguments that are refused have changed nothing.
Whatever `build_runtime` took is given back once, by `EngineRuntime.close`, or by itself where it fails. A lane that is
still at work keeps the memory it works on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic import Arithmetic, HostArithmetic, TorchArithmetic
from workbench.engine.blocks.activation_offload import ActivationOffload
from workbench.engine.blocks.checkpointing import BlockCheckpointing
from workbench.engine.blocks.discovery import FoundUnit, find_units, lay_out, storage_dtypes
from workbench.engine.blocks.param_ready_barrier import ParamReadyBarrier
from workbench.engine.blocks.streamed import RankParts, StreamedUnit
from workbench.engine.blocks.weight_prefetcher import WeightPrefetcher
from workbench.engine.config import EngineConfig
from workbench.engine.device_arithmetic import DeviceArithmetic
from workbench.engine.devices.buffers import give_large_blocks_back, page_aligned
from workbench.engine.devices.device import Device
from workbench.engine.disk_files import DiskTier
from workbench.engine.execution import LaneThreads
from workbench.engine.grad_hooks import GradientHooks
from workbench.engine.precision import compute_dtypes, dtype_name
from workbench.engine.rank_tasks import RankTasks
from workbench.engine.ranks import Ranks
from workbench.engine.report import ComputeClock
from workbench.engine.step_tasks import StepTasks
from workbench.engine.stored_tensor import StoredTensor
from workbench.engine.unit_memory import UnitMemory
from workbench.layout import Layout, place
from workbench.optimizer import MissingExtensionWarning, missing_extension
from workbench.partition import Partition, partition
from workbench.sizes import (
    Breakdown,
    BufferSizes,
    Conditions,
    UnitRoute,
    add,
    buffer_sizes,
    each_unit,
    lanes_pay,
    reduce_buffers,
    route_unit,
)
from workbench.system.processor import usable_cpus
from workbench.timeline import StepShape

THROUGH_BUFFERS = "copied through small buffers"


@dataclass(frozen=True)
class UnitPlan:
    """The units of a model in forward order, and how each is kept and updated. `found` and `routes`: one for each unit
    of `layout`.

    `storage`: the dtype of working weights; `computed_in`: by storage dtype, where that differs. `streamed`: the units
    whose weights come through slots. `shape`: of a step that is not delayed. `partition`: where ranks share the state;
    `by_machine`: those of this machine, and this one's like on others.
    """

    found: Sequence[FoundUnit]
    layout: Layout
    routes: Sequence[UnitRoute]
    sizes: BufferSizes
    streamed: frozenset[int]
    storage: torch.dtype
    computed_in: dict[torch.dtype, torch.dtype]
    shape: StepShape
    partition: Partition | None = None
    by_machine: tuple[Ranks, Ranks] | None = None


def plan_units(
    model: nn.Module, device: Device, storage: torch.dtype, config: EngineConfig, ranks: Ranks | None = None
) -> UnitPlan:
    """Find the units of `model`, and place and route each.

    Raises:
        ValueError: the model cannot be trained, or is compiled, or weights would come through slots without
            checkpointing, or ranks cannot share its state.
    """
    _refuse_compiled(model)
    found = find_units(model)
    layout = lay_out(
        found, storage, config.chunk_bytes, config.state_format, config.device_fraction, config.optimizer
    )
    can_undo = config.optimizer.can_be_undone and missing_extension() is None
    speculation = config.speculation if can_undo else 0.0
    placements = place(layout, config.weights, config.state, config.device_fraction, speculation)
    computed_in = compute_dtypes(config.compute, device)
    global_quantity = config.gradient_clipping > 0 or config.loss_scaling(storage) is not None
    conditions = Conditions(
        shared_memory=device.shared_memory,
        compute_dtypes={dtype_name(a): dtype_name(b) for a, b in computed_in.items()},
        gradient_accumulation=config.gradient_accumulation,
        must_wait=global_quantity or config.overlap != "exact",
        overlap=config.overlap,
        sums_on_device=config.gradient_sums == "device",
        lanes_pay=lanes_pay(
            sum(unit.weight_bytes for unit in layout.units), torch.get_num_threads(), usable_cpus()
        ),
        all_gradients_wait=config.all_gradients_wait,
        ranks=1 if ranks is None else ranks.size,
    )
    routes = [route_unit(s, p, conditions) for s, p in zip(layout.units, placements, strict=True)]
    streamed = frozenset(s.index for s, r in zip(layout.units, routes, strict=True) if r.streamed)
    if streamed and not config.activation_checkpointing:
        raise ValueError(
            "activation_checkpointing = False: weights that come through slots (off the device, or stored in 16 "
            "bits and computed in fp32) need it; without it backward would read another block's data"
        )
    shape = StepShape(
        gradient_accumulation=config.gradient_accumulation,
        flows=tuple(route.flow() for route in routes),
        global_quantity=global_quantity,
        overlap="exact" if config.overlap == "delayed" else config.overlap,
        ranks=conditions.ranks,
    )
    sizes = buffer_sizes(each_unit(layout, routes), conditions, config.chunk_bytes)
    shares, by_machine = None, None
    if ranks is not None:
        ranks.connect(_gpu(device))
        by_machine = ranks.by_machine(_gpu(device))
        shares = partition(layout, ranks.size)
        here = 0 if by_machine is None else by_machine[0].size
        received, reduced = reduce_buffers(layout, routes, shares, ranks.rank, here)
        sizes = replace(sizes, received=received, reduced=reduced)
        ranks.check_alike(f"{layout}, {shape}, {storage}, {config.optimizer}, {config.gradient_clipping}")
    return UnitPlan(found, layout, routes, sizes, streamed, storage, computed_in, shape, shares, by_machine)


def _gpu(device: Device) -> torch.device | None:
    return device.torch_device if device.torch_device.type == "cuda" else None


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None):
            raise ValueError(
                f"{name or 'the model'} is compiled as a module, so that the engine's hooks would be compiled with it: "
                "compile functions, before the engine is made: block.forward = torch.compile(block.forward)"
            )


@dataclass(frozen=True)
class AdoptedUnits:
    """The units in memory, in forward order. `parameters`: one for each segment. `frozen`: by name. `streamed`: those
    whose weights come through slots."""

    memories: list[UnitMemory] = field(default_factory=list)
    parameters: list[list[nn.Parameter]] = field(default_factory=list)
    frozen: list[list[tuple[str, nn.Parameter]]] = field(default_factory=list)
    streamed: dict[int, StreamedUnit] = field(default_factory=dict)

    def state(self) -> Iterator[tuple[str, Tensor | StoredTensor]]:
        """Return every tensor of the optimizer state by name; see `OffloadEngine.state`."""
        for memory in self.memories:
            for kind, tensor in memory.state():
                yield f"{memory.unit.index:04d}-{memory.unit.name}/{kind}", tensor

    def parameter_steps(self) -> dict[str, int]:
        """Return the number of steps in which each parameter has got a gradient, by its name."""
        return {
            segment.name: memory.steps[number]
            for memory in self.memories
            for number, segment in enumerate(memory.unit.segments)
        }

    def weights(self, between: RankTasks | None = None) -> Iterator[dict[str, Tensor]]:
        """Return the newest weights, a dictionary a unit; see `OffloadEngine.weights`. `between`: the ranks tell them
        each other."""
        for memory, frozen in zip(self.memories, self.frozen, strict=True):
            found = memory.newest_weights(None if between is None else between.newest(memory))
            streamed = self.streamed.get(memory.unit.index)
            gather = None if between is None else between.gather_parts
            kept = {} if streamed is None else dict(streamed.frozen_weights(gather))
            for name, parameter in frozen:
                flat = kept.get(name)
                found[name] = parameter.detach().cpu() if flat is None else flat.view(parameter.shape)
            yield found

    def hand_back(self, *, push: bool) -> None:
        """Bind the parameters to their newest weights; `push`: those on the device are a step behind their state."""
        for memory, members in zip(self.memories, self.parameters, strict=True):
            if push:
                memory.push_weights()
            memory.hand_back(members)
        for unit in self.streamed.values():
            unit.hand_back_frozen()

    def memory_breakdown(self) -> Breakdown:
        """Return the bytes of the units' own memory by tier and by name."""
        found: Breakdown = {"device": {}, "host": {}, "disk": {}}
        for memory, frozen in zip(self.memories, self.frozen, strict=True):
            memory.add_memory(found)
            streamed = self.streamed.get(memory.unit.index)
            if streamed is None:
                add(found, "device", "frozen weights", sum(parameter.nbytes for _, parameter in frozen))
            else:
                tier, size = streamed.frozen_bytes()
                add(found, tier, "frozen weights", size)
        return found


@dataclass(frozen=True)
class EngineRuntime:
    """All that steps run on. `host`: the arithmetic of units off the device; torch's where there are none.
    `between_ranks`: where ranks share the state."""

    device: Device
    lanes: LaneThreads
    clock: ComputeClock
    disk: DiskTier | None
    host: Arithmetic
    units: AdoptedUnits
    grad_hooks: GradientHooks
    tasks: StepTasks
    barrier: ParamReadyBarrier
    prefetcher: WeightPrefetcher | None
    activations: ActivationOffload | None
    checkpointing: BlockCheckpointing
    between_ranks: RankTasks | None = None

    def refresh(self, parameter_steps: Mapping[str, Any]) -> None:
        """Make working weights and whatever else follows from it of state that was written into."""
        for memory in self.units.memories:
            memory.steps[:] = [int(parameter_steps[segment.name]) for segment in memory.unit.segments]
            memory.derive(self.host, self.tasks.idle_buffer)
        if self.between_ranks is not None:
            self.between_ranks.gather_all()
        if self.prefetcher is not None:
            self.prefetcher.forget()

    def memory_breakdown(self) -> Breakdown:
        """Return what holds memory now, in bytes, by tier and by name.

        Memory that autograd holds on the device is not the engine's. Host memory that should be pinned and could not
        be is named once more, under `THROUGH_BUFFERS`.
        """
        found = self.units.memory_breakdown()
        if self.activations is not None:
            add(found, "host", "activations", self.activations.host_bytes)
        if self.prefetcher is not None:
            add(found, "device", "weight slots", self.prefetcher.slot_bytes)
            add(found, "host", "staging", self.prefetcher.staging_bytes)
        add(found, "host", "staging", self.tasks.buffer_bytes + self.device.staging_bytes)
        hooks = self.grad_hooks
        add(found, "host", "gradient slots", hooks.host_slots.nbytes)
        if hooks.device_slots is not hooks.host_slots:
            add(found, "device", "gradient slots", hooks.device_slots.nbytes)
        if self.between_ranks is not None:
            add(found, "device", "buffers between ranks", self.between_ranks.buffer_bytes)
        if self.device.pageable_bytes:
            found[THROUGH_BUFFERS] = {"host memory": self.device.pageable_bytes}
        return found

    # The end

    def cancel(self, error: BaseException) -> None:
        """Let whoever waits for a buffer or a slot go on: the step has failed."""
        self.tasks.cancel(error)
        if self.prefetcher is not None:
            self.prefetcher.cancel(error)

    def hand_back(self, *, push: bool) -> None:
        """Bind the model to its newest weights; see `AdoptedUnits.hand_back`."""
        if self.prefetcher is not None:
            self.prefetcher.end()
            self.prefetcher.unbind()
        self.units.hand_back(push=push)
        if push and self.between_ranks is not None:
            self.between_ranks.gather_all()

    def close(self) -> None:
        """End the lanes, take every hook off the model and give all memory back."""
        self.lanes.close()
        self.barrier.remove()
        self.grad_hooks.end_step()
        self.grad_hooks.remove()
        self.checkpointing.remove()
        if self.activations is not None:
            self.activations.close()
        _give_back(self.device, self.lanes, self.host, self.disk)


def build_runtime(
    model: nn.Module, plan: UnitPlan, device: Device, config: EngineConfig, ranks: Ranks | None = None
) -> EngineRuntime:
    """Take `model` over as `plan` says; on several ranks, that of the first.

    Raises:
        ValueError: a parameter is on the meta device and there is no `materialize`, or the extension that
            `state_format` needs is missing.
        DiskError: the disk has no room, or refuses.
    """
    routes, sizes = plan.routes, plan.sizes
    if any(route.placement.state == "disk" for route in routes):
        give_large_blocks_back()
    clock = ComputeClock(device)
    lanes = LaneThreads(device)
    disk: DiskTier | None = None
    host: Arithmetic | None = None
    try:
        if any("disk" in (r.placement.weights, r.placement.state) for r in routes):
            assert config.disk_path is not None
            disk = DiskTier(Path(config.disk_path))
        on_device = DeviceArithmetic(device)
        off_device = any(not route.on_device for route in routes)
        host = _host_arithmetic(config) if off_device else on_device
        units = _adopt_units(model, plan, device, config, disk, host, on_device, ranks)
        grad_hooks = GradientHooks(units.memories, units.parameters, device, clock, sizes)
        between_ranks: RankTasks | None = None
        if ranks is not None and plan.partition is not None:
            summing = host if device.shared_memory else on_device
            between_ranks = RankTasks(
                ranks, plan.partition, units.memories, grad_hooks, device, summing, sizes, plan.by_machine
            )
            between_ranks.gather_all()
        tasks = StepTasks(
            units.memories,
            grad_hooks,
            device,
            host,
            on_device,
            sizes,
            config.gradient_clipping,
            between_ranks,
        )
        # Where all updates are compute's own, they are done when backward returns, and no forward waits.
        lanes_work = not all(r.update_on_compute and r.gradients != "bucketed" for r in routes)
        updated = {i for i in range(len(routes)) if lanes_work and i not in plan.streamed}
        watched = {i for i, route in enumerate(routes) if not route.update_on_compute}
        barrier = ParamReadyBarrier(
            model, plan.found, updated, watched, clock, grad_hooks.block_called, device
        )
        prefetcher: WeightPrefetcher | None = None
        if units.streamed:
            streamed = list(units.streamed.values())
            fetching = None if ranks is None else ranks.beside(_gpu(device))
            prefetcher = WeightPrefetcher(
                streamed, sizes, device, lanes, barrier.when_ready, clock.waiting, fetching
            )
            grad_hooks.release_unit = prefetcher.release_for_update
        # Last: where little can be pinned, weights are read twice a step, and buffers serve all units.
        for memory in units.memories:
            memory.make_room_for_gradients()
        device.warn_if_not_pinned()
        activations = ActivationOffload(device) if config.activations == "host" else None
        checkpointing = BlockCheckpointing(
            model,
            [(i, s.block) for i, s in enumerate(plan.found) if s.block is not None],
            recomputes=config.activation_checkpointing,
            prefetcher=prefetcher,
            streamed=plan.streamed,
            around=None if activations is None else activations.around_block,
        )
    except BaseException:
        _give_back(device, lanes, host, disk)
        raise
    return EngineRuntime(
        device,
        lanes,
        clock,
        disk,
        host,
        units,
        grad_hooks,
        tasks,
        barrier,
        prefetcher,
        activations,
        checkpointing,
        between_ranks,
    )


def _adopt_units(
    model: nn.Module,
    plan: UnitPlan,
    device: Device,
    config: EngineConfig,
    disk: DiskTier | None,
    on_host: Arithmetic,
    on_device: Arithmetic,
    ranks: Ranks | None,
) -> AdoptedUnits:
    """Take the parameters and buffers of `model` over, unit by unit: at most one unit is in memory twice."""
    adopted = AdoptedUnits()
    stored = storage_dtypes(list(plan.found), plan.storage)
    buffer: Tensor | None = None
    for unit, source, route in zip(plan.layout.units, plan.found, plan.routes, strict=True):
        if config.materialize is not None and any(p.is_meta for p in source.parameters.values()):
            config.materialize(source)
        owned = None
        if ranks is not None and plan.partition is not None:
            owned = plan.partition.owned(unit, ranks.rank)
            for parameter in source.parameters.values():
                parameter.data = parameter.data.contiguous()
                ranks.take_first(parameter.data)
        memory = UnitMemory(unit, route, device, plan.computed_in, disk, owned)
        if memory.files and buffer is None:
            buffer = page_aligned(plan.sizes.state.nbytes)
        members = [source.parameters[segment.name] for segment in unit.segments]
        memory.adopt(members, on_device if route.on_device else on_host, buffer)
        frozen = [(f.name, source.parameters[f.name]) for f in unit.frozen]
        if route.streamed:
            kept = [(name, parameter, stored[name]) for name, parameter in frozen]
            parts = None
            if ranks is not None and plan.partition is not None:
                cuts = [plan.partition.sizes(unit.index, chunk.index) for chunk in unit.chunks]
                parts = RankParts(ranks.rank, ranks.size, cuts)
            adopted.streamed[unit.index] = StreamedUnit(
                memory, members, kept, plan.computed_in, device, disk, config.chunk_bytes, parts
            )
        else:
            for name, parameter in frozen:
                dtype = plan.computed_in.get(stored[name], stored[name])
                parameter.data = parameter.data.to(device=device.torch_device, dtype=dtype)
        for member in members:
            member.grad = None
        adopted.memories.append(memory)
        adopted.parameters.append(members)
        adopted.frozen.append(frozen)
    for module in model.modules():
        for name, held in module._buffers.items():
            if held is not None:
                if ranks is not None:
                    module._buffers[name] = held = held.contiguous()
                    ranks.take_first(held)
                module._buffers[name] = held.to(device.torch_device)
    return adopted


def _host_arithmetic(config: EngineConfig) -> Arithmetic:
    """Return the native host optimizer; torch's operations, with a warning, where its extension is missing.

    Raises:
        ValueError: the state format needs the extension.
    """
    missing = missing_extension()
    if missing is None:
        return HostArithmetic(config.threads)
    if config.state_format != "exact":
        raise ValueError(
            f"state_format = {config.state_format!r}: {missing}; without it the state is kept exact"
        )
    warnings.warn(
        f"{missing}; until then torch's fused AdamW is used, which is slower", MissingExtensionWarning, 4
    )
    return TorchArithmetic()


def _give_back(device: Device, lanes: LaneThreads, host: Arithmetic | None, disk: DiskTier | None) -> None:
    if not lanes.close():
        # A lane is still at work, on memory that must stay as it is.
        return
    if host is not None:
        host.close()
    if disk is not None:
        disk.close()
    device.close()
