"""What becomes of a step's gradients until the update: down from the device, summed, measured, put by on disk.

Invariant: what came down, and the sum of what waits on disk, are in this object's hands between the tasks of one chunk,
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.engine.arithmetic.precision import DTYPES
from workbench.engine.devices.device import Device
from workbench.engine.devices.slot_pool import SlotPool
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.gradients.gradient_set import GradientSet
from workbench.engine.steps.state_tables import StateTables
from workbench.engine.storage.unit_memory import UnitMemory
from workbench.layout import Chunk, padded
from workbench.timeline import Lane, Task


class GradientWork:
    """The tasks on gradients. `waiting` are buffers for those that come from disk, `first_sums` for those that go there
    without having been read."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        intake: GradientHooks,
        device: Device,
        tables: StateTables,
        waiting: SlotPool,
        first_sums: SlotPool,
    ) -> None:
        self._intake = intake
        self._device = device
        self._tables = tables
        self._waiting = waiting
        self._first_sums = first_sums
        self._slices = {
            (m.unit.index, c.index): len(c.slices)
            for m in memories
            if m.route.accumulates
            for c in m.unit.chunks
        }
        """Of the chunks that are summed over micro-batches."""
        self._summed: dict[tuple[int, int], list[bool]] = {}
        self._in_hand: dict[tuple[int, int], Tensor] = {}
        """Host slots: what came down."""
        self._sums: dict[tuple[int, int], tuple[Tensor, SlotPool]] = {}
        """Sums that wait on disk, with the pool that their buffer is of."""
        self._current = GradientSet.none()

    def begin(self, current: GradientSet) -> None:
        """A step's gradients will be `current`."""
        self._current = current
        self._summed = {place: [False] * count for place, count in self._slices.items()}

    def download(self, task: Task) -> None:
        """A gathered chunk arrives on the host: in the slot it was gathered in, where memory is one."""
        memory, chunk = self._tables.place(task)
        unit, number = memory.unit.index, chunk.index
        closed = self._intake.closed(task.micro_batch, unit, number)
        if closed.slot is None:
            return
        source = closed.slot.view(DTYPES[chunk.dtype])[: chunk.elements]
        in_place = memory.route.waiting == "memory" and not memory.route.accumulates
        waiting = memory.waiting_gradient(chunk, self._current.number) if in_place else None
        if waiting is not None:
            self._device.copy(Lane.DOWNLOAD, waiting, source, closed.mark)
            self._intake.device_slots.give_back(closed.slot)
        elif self._device.shared_memory:
            self._in_hand[unit, number] = closed.slot
        else:
            slot = self._intake.host_slots.take()
            self._intake.will_return_host_slot(unit)
            target = slot.view(DTYPES[chunk.dtype])[: chunk.elements]
            self._device.copy(Lane.DOWNLOAD, target, source, closed.mark)
            self._intake.device_slots.give_back(closed.slot)
            self._in_hand[unit, number] = slot

    def read(self, task: Task) -> None:
        """The sum so far comes from disk."""
        memory, chunk = self._tables.place(task)
        buffer = self._waiting.take()
        self._waiting.will_return()
        file = memory.gradient_files[self._current.number]
        file.read(chunk.index, buffer[: padded(file.record_bytes[chunk.index])])
        self._sums[memory.unit.index, chunk.index] = (buffer, self._waiting)

    def accumulate(self, task: Task) -> None:
        """What one micro-batch brought joins the sum."""
        memory, chunk = self._tables.place(task)
        unit, number = memory.unit.index, chunk.index
        closed = self._intake.closed(task.micro_batch, unit, number)
        summed = self._summed[unit, number]
        sums = memory.slices(self._sum_of(memory, chunk), chunk)
        slot = self._in_hand.pop((unit, number), None)
        arrived = None
        if slot is not None:
            arrived = memory.slices(slot.view(DTYPES[chunk.dtype])[: chunk.elements], chunk)
        arithmetic, _ = self._tables.of(memory, chunk)
        for index, part in enumerate(chunk.slices):
            if not closed.slices[index]:
                continue
            if arrived is not None:
                source = arrived[index]
            else:
                taken = self._intake.taken(task.micro_batch, unit, part.segment)
                source = taken[part.start : part.start + part.count]
            arithmetic.accumulate(sums[index], source, overwrite=not summed[index])
            summed[index] = True
        if slot is not None:
            self._intake.host_slots.give_back(slot)

    def _sum_of(self, memory: UnitMemory, chunk: Chunk) -> Tensor:
        """Where a chunk's sum is, or begins."""
        place = (memory.unit.index, chunk.index)
        if memory.route.waiting == "disk":
            if place not in self._sums:
                self._sums[place] = (self._first_sums.take(), self._first_sums)
                self._first_sums.will_return()
            return self._sums[place][0].view(torch.float32)[: chunk.elements]
        in_memory = memory.waiting_gradient(chunk, self._current.number)
        assert in_memory is not None
        return in_memory

    def measure(self, task: Task) -> None:
        """The sums of squares of a chunk's gradient, or of those of all collected units."""
        if task.unit is None:
            assert self._tables.collected is not None
            self._tables.collected.measure()
            return
        memory, chunk = self._tables.place(task)
        arithmetic, table = self._tables.of(memory, chunk)
        self._tables.set_gradients(memory, chunk, self._whole(memory, chunk), self._current)
        arithmetic.sum_of_squares(table)
        if memory.route.waiting == "disk" or memory.route.delayed:
            # The update finds them elsewhere, or later.
            table.release_gradients()
        if memory.route.waiting == "ring":
            slot = self._in_hand.pop((memory.unit.index, chunk.index), None)
            if slot is not None:
                self._current.arrived[memory.unit.index, chunk.index] = slot

    def _whole(self, memory: UnitMemory, chunk: Chunk) -> Tensor | None:
        """A chunk's gradient as it is at its norm; None where it is in autograd's tensors or there is none."""
        place = (memory.unit.index, chunk.index)
        if place in self._sums:
            return self._sums[place][0].view(torch.float32)[: chunk.elements]
        if place in self._in_hand:
            return self._in_hand[place].view(DTYPES[chunk.dtype])[: chunk.elements]
        return memory.waiting_gradient(chunk, self._current.number)

    def write(self, task: Task) -> None:
        """What came, or the sum, goes to disk to wait for the update."""
        memory, chunk = self._tables.place(task)
        place = (memory.unit.index, chunk.index)
        file = memory.gradient_files[self._current.number]
        size = padded(file.record_bytes[chunk.index])
        if place in self._sums:
            buffer, pool = self._sums.pop(place)
            file.write(chunk.index, buffer[:size])
            pool.give_back(buffer)
        elif place in self._in_hand:
            slot = self._in_hand.pop(place)
            file.write(chunk.index, slot[:size])
            self._intake.host_slots.give_back(slot)
