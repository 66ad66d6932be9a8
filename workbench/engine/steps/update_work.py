"""The update, chunk by chunk: state and waiting gradients from disk, AdamW, state back to disk, new weights up.

Invariant: nothing is written to a unit by gradients that are `blocked`; a chunk's buffers are this object's from the
reading of its state to its writing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.engine.devices.device import Device
from workbench.engine.devices.slot_pool import SlotPool
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.gradients.gradient_set import GradientSet
from workbench.engine.steps.state_tables import StateTables
from workbench.engine.storage.unit_memory import UnitMemory
from workbench.layout import Chunk, padded
from workbench.timeline import Lane, Task


@dataclass
class _Staged:
    """The buffers of one chunk's update: its state's, and its gradient's where that waited on disk."""

    state: Tensor
    gradient: Tensor | None
    updated: bool = False


class UpdateWork:
    """The tasks of an update. `staging` are buffers for state that is on disk, `waiting` for gradients that are."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        intake: GradientHooks,
        device: Device,
        tables: StateTables,
        staging: SlotPool,
        waiting: SlotPool,
    ) -> None:
        self._intake = intake
        self._device = device
        self._tables = tables
        self._staging = staging
        self._waiting = waiting
        self._slice_counts = [_slice_counts(memory) for memory in memories]
        self._unread: list[list[int]] = []
        """Slices of each parameter that no update has read yet."""
        self._staged: dict[tuple[int, int], _Staged] = {}
        self._current = self._applied = GradientSet.none()

    def begin(self, current: GradientSet, applied: GradientSet) -> None:
        """A step's update is by `applied`: its own gradients, `current`, or those of the step before."""
        self._current, self._applied = current, applied
        self._unread = [list(counts) for counts in self._slice_counts]

    def read_state(self, task: Task) -> None:
        """State, and a gradient that waited, come from disk."""
        memory, chunk = self._tables.place(task)
        if self._applied.blocked:
            return
        buffer = self._staging.take()
        self._staging.will_return()
        for kind, place in memory.stage(chunk, buffer).items():
            memory.files[kind].read(chunk.index, place)
        waiting = None
        if memory.gradient_files:
            file = memory.gradient_files[self._applied.number]
            waiting = self._waiting.take()
            self._waiting.will_return()
            file.read(chunk.index, waiting[: padded(file.record_bytes[chunk.index])])
        self._staged[memory.unit.index, chunk.index] = _Staged(buffer, waiting)

    def update(self, task: Task) -> None:
        """AdamW on a chunk, or on all collected units."""
        if task.unit is None:
            self._update_collected()
            return
        memory, chunk = self._tables.place(task)
        unit, number, applied = memory.unit.index, chunk.index, self._applied
        arithmetic, table = self._tables.of(memory, chunk)
        staged = self._staged.get((unit, number))
        if applied is self._current and applied.verdict is None and not applied.blocked:
            applied.blocked = not math.isfinite(math.fsum(arithmetic.read_partials([table])))
        if not applied.blocked:
            applied.written = True
            self._bind(memory, chunk, staged)
            table.set_steps([memory.steps[part.segment] + 1 for part in chunk.slices])
            arithmetic.update(table, applied.settings, applied.scale)
        table.release_gradients()
        if staged is not None and staged.gradient is not None:
            self._waiting.give_back(staged.gradient)
        slot = applied.arrived.pop((unit, number), None)
        if slot is not None:
            self._intake.host_slots.give_back(slot)
        if memory.route.gradients == "referenced":
            self._release_referenced(memory, chunk)

    def _bind(self, memory: UnitMemory, chunk: Chunk, staged: _Staged | None) -> None:
        """Point the chunk's table to its state and gradients, where its norm has not done so."""
        _, table = self._tables.of(memory, chunk)
        if staged is not None:
            staged.updated = True
            table.set_state(memory.views(chunk, memory.stage(chunk, staged.state)))
        if staged is not None and staged.gradient is not None:
            whole = staged.gradient.view(memory.waiting_dtype(chunk))[: chunk.elements]
            self._tables.set_gradients(memory, chunk, whole, self._applied)
        elif memory.route.delayed:
            whole_or_none = memory.waiting_gradient(chunk, self._applied.number)
            self._tables.set_gradients(memory, chunk, whole_or_none, self._applied)

    def _release_referenced(self, memory: UnitMemory, chunk: Chunk) -> None:
        """Let go of autograd's tensors of which this chunk had the last slice."""
        unit, applied = memory.unit.index, self._applied
        for part in chunk.slices:
            self._unread[unit][part.segment] -= 1
            if not self._unread[unit][part.segment]:
                if applied.held is None:
                    self._intake.release(unit, part.segment)
                else:
                    applied.held.pop((unit, part.segment), None)

    def _update_collected(self) -> None:
        collected, applied = self._tables.collected, self._applied
        assert collected is not None
        if applied.verdict is not None and not applied.blocked:
            applied.written = True
            collected.update(applied.settings, applied.scale)
        elif applied.verdict is None and applied.blocked:
            # Some other unit's gradient is known not to be finite: the verdict needs the sums all the same.
            collected.measure()
        elif applied.verdict is None:
            applied.written |= collected.measure_and_update(applied.settings, applied.scale)
        collected.release()

    def write_state(self, task: Task) -> None:
        """The new state goes to disk."""
        memory, chunk = self._tables.place(task)
        staged = self._staged.pop((memory.unit.index, chunk.index), None)
        if staged is None:
            return
        if staged.updated:
            for kind, place in memory.stage(chunk, staged.state).items():
                memory.files[kind].write(chunk.index, place)
        self._staging.give_back(staged.state)

    def upload(self, task: Task) -> None:
        """A chunk's new weights go to where the forward, or the next fetch, reads them."""
        memory, chunk = self._tables.place(task)
        if self._applied.blocked and self._applied is self._current:
            return
        region = memory.regions[chunk.region]
        target = region.weights if region.weights is not None else region.published
        copy = region.working_copy
        assert target is not None and copy is not None
        source, target = memory.of_chunk(copy, chunk), memory.of_chunk(target, chunk)
        if memory.route.on_device:
            with torch.no_grad():
                target.copy_(source)
        else:
            self._device.copy(Lane.UPLOAD, target, source, self._intake.over_marks.get(memory.unit.index))


def _slice_counts(memory: UnitMemory) -> list[int]:
    """Into how many slices each parameter of a unit is cut."""
    counts = [0] * len(memory.unit.segments)
    for chunk in memory.unit.chunks:
        for part in chunk.slices:
            counts[part.segment] += 1
    return counts
