"""What an arrangement becomes in memory: the model taken over, the lanes, the disk's files and the hooks.

Invariant: whatever `set_up` took is given back once, by `close`, or by `set_up` itself where it fails. A lane that is
still at work keeps the memory it works on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic, TorchArithmetic
from workbench.engine.arrangement import Arrangement
from workbench.engine.assembly import Assembly, assemble
from workbench.engine.blocks.activation_offload import ActivationOffload
from workbench.engine.blocks.checkpointing import BlockCheckpointing
from workbench.engine.blocks.discovery import FoundUnit
from workbench.engine.blocks.param_ready_barrier import ParamReadyBarrier
from workbench.engine.blocks.weight_prefetcher import WeightPrefetcher
from workbench.engine.devices.device import Device
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.lanes.compute_clock import ComputeClock
from workbench.engine.lanes.lane_threads import LaneThreads
from workbench.engine.memory_breakdown import MemoryBreakdown, memory_breakdown
from workbench.engine.setup import host_arithmetic
from workbench.engine.steps.step_work import StepWork
from workbench.engine.storage.disk_files import DiskTier
from workbench.engine.storage.heap import give_large_blocks_back
from workbench.state_formats import StateFormat


@dataclass(frozen=True)
class Machinery:
    """What steps run on. `host`: who does the arithmetic of units off the device; torch's where there are none."""

    device: Device
    lanes: LaneThreads
    clock: ComputeClock
    disk: DiskTier | None
    host: Arithmetic
    assembly: Assembly
    intake: GradientHooks
    work: StepWork
    gate: ParamReadyBarrier
    window: WeightPrefetcher | None
    activations: ActivationOffload | None
    checkpointing: BlockCheckpointing

    def memory_breakdown(self) -> MemoryBreakdown:
        """What holds memory now, in bytes, by tier and by name."""
        moved = 0 if self.activations is None else self.activations.host_bytes
        staging = self.device.staging_bytes
        return memory_breakdown(self.assembly, self.window, self.intake, self.work, staging, moved)

    def refresh(self, parameter_steps: Mapping[str, Any]) -> None:
        """Make working weights and whatever else follows from it of state that was written into."""
        for memory in self.assembly.memories:
            memory.steps[:] = [int(parameter_steps[segment.name]) for segment in memory.unit.segments]
            memory.derive(self.host, self.work.idle_buffer)
        if self.window is not None:
            self.window.forget()

    def break_off(self, error: BaseException) -> None:
        """Let whoever waits for a buffer or a slot go on."""
        self.work.break_off()
        if self.window is not None:
            self.window.break_off(error)

    def leave(self, *, push: bool) -> None:
        """Leave the model its newest weights; `push`: those on the device are a step behind their state."""
        if self.window is not None:
            self.window.unbind()
        if push:
            for memory in self.assembly.memories:
                memory.push_weights()
        self.assembly.leave()

    def close(self) -> None:
        """End the lanes, take every hook off the model and give all memory back."""
        self.lanes.close()
        self.gate.remove()
        self.intake.end_step()
        self.intake.remove()
        self.checkpointing.remove()
        if self.activations is not None:
            self.activations.close()
        _give_back(self.device, self.lanes, self.host, self.disk)


def set_up(
    model: nn.Module,
    arrangement: Arrangement,
    device: Device,
    *,
    storage: torch.dtype,
    threads: int | Literal["auto"],
    state_format: StateFormat,
    gradient_clipping: float,
    activation_checkpointing: bool,
    activations: Literal["device", "host"],
    disk_path: str | Path | None,
    chunk_bytes: int,
    materialize: Callable[[FoundUnit], None] | None,
) -> Machinery:
    """Take `model` over as `arrangement` says. `storage`: see `arrange`; the others are `OffloadEngine`'s arguments.

    Raises:
        ValueError: a parameter is on the meta device and there is no `materialize`, or the extension that
            `state_format` needs is missing.
        DiskError: the disk has no room, or refuses.
    """
    found, routes, streamed = arrangement.found, arrangement.routes, arrangement.streamed
    if any(route.placement.state == "disk" for route in routes):
        give_large_blocks_back()
    clock = ComputeClock()
    lanes = LaneThreads(device)
    disk: DiskTier | None = None
    host: Arithmetic | None = None
    try:
        if any("disk" in (r.placement.weights, r.placement.state) for r in routes):
            assert disk_path is not None
            disk = DiskTier(Path(disk_path))
        on_device = TorchArithmetic()
        off_device = any(not route.on_device for route in routes)
        host = host_arithmetic(threads, state_format) if off_device else on_device
        assembly = assemble(
            model,
            found,
            arrangement.layout,
            routes,
            arrangement.computed_in,
            arrangement.sizes,
            storage=storage,
            device=device,
            disk=disk,
            on_host=host,
            on_device=on_device,
            chunk_bytes=chunk_bytes,
            materialize=materialize,
        )
        memories, parameters = assembly.memories, assembly.parameters
        sizes = arrangement.sizes
        intake = GradientHooks(memories, parameters, device, clock, sizes)
        work = StepWork(memories, intake, device, host, on_device, sizes, gradient_clipping)
        # Where all updates are compute's own, they are done when backward returns, and no forward waits.
        lanes_work = not all(r.by_compute and r.gradients != "gathered" for r in routes)
        updated = {i for i in range(len(found)) if lanes_work and i not in streamed}
        watched = {i for i, route in enumerate(routes) if not route.by_compute}
        gate = ParamReadyBarrier(model, found, updated, watched, clock, intake.block_called)
        window: WeightPrefetcher | None = None
        if assembly.streamed:
            window = WeightPrefetcher(assembly.streamed, sizes, device, lanes, gate.when_ready, clock.waiting)
            intake.retire = window.retire
        moved = ActivationOffload(device) if activations == "host" else None
        checkpointing = BlockCheckpointing(
            model,
            [(i, s.block) for i, s in enumerate(found) if s.block is not None],
            recomputes=activation_checkpointing,
            window=window,
            streamed=streamed,
            around=None if moved is None else moved.around_block,
        )
    except BaseException:
        _give_back(device, lanes, host, disk)
        raise
    return Machinery(
        device, lanes, clock, disk, host, assembly, intake, work, gate, window, moved, checkpointing
    )


def _give_back(device: Device, lanes: LaneThreads, host: Arithmetic | None, disk: DiskTier | None) -> None:
    if not lanes.close():
        # A lane is still at work, on memory that must stay as it is.
        return
    if host is not None:
        host.close()
    if disk is not None:
        disk.close()
    device.close()
