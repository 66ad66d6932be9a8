"""The work of one step's tasks on memory, in the order in which a chunk's gradient lives through them:

down from the device, summed, measured, put on disk, or applied ahead; the check over all of them; state from disk,
AdamW, state back to disk, new weights up. Which task waits for which is in `workbench/timeline.py`, which thread runs
it in `execution.py`.

Invariant: nothing is written to a unit for a step whose check is not finite, but what is undone when that is known,
before its weights are read. Where updates run before the check (no global quantity is needed), nothing is written from
the first chunk on that is not finite, and the step is `partially_applied`. A chunk's buffers belong to this
object between the tasks of the chunk, and to nobody else; to a copy that has been begun until its task has landed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workbench.engine.arithmetic import Arithmetic, HostArithmetic
from workbench.engine.device_arithmetic import NORM_EPSILON, DeviceArithmetic
from workbench.engine.devices.buffers import SlotPool, page_aligned
from workbench.engine.devices.device import Device, Landing
from workbench.engine.grad_hooks import GradientHooks
from workbench.engine.precision import DTYPES
from workbench.engine.rank_tasks import Mean, RankTasks
from workbench.engine.report import GradCheck
from workbench.engine.speculation import Speculation, is_against
from workbench.engine.state_pointers import GradientSet, StatePointers, UnitsOnDevice
from workbench.engine.unit_memory import UnitMemory
from workbench.layout import Chunk, padded
from workbench.optimizer import AdamW
from workbench.sizes import BufferSizes
from workbench.timeline import Kind, Lane, Task

Place = tuple[int, int]
"""A unit's index, and that of one of its chunks."""


@dataclass
class _Staged:
    """The buffers of one chunk's update: its state's, and its gradient's where that waited on disk."""

    state: Tensor
    gradient: Tensor | None
    updated: bool = False


class StepTasks:
    """Performs the tasks of one step after the other on the units' memories."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        grad_hooks: GradientHooks,
        device: Device,
        on_host: Arithmetic,
        on_device: DeviceArithmetic,
        sizes: BufferSizes,
        gradient_clipping: float,
        between_ranks: RankTasks | None = None,
    ) -> None:
        self._between_ranks = between_ranks
        self._mean = Mean(0, 1)
        self._memories = memories
        self._grad_hooks = grad_hooks
        self._device = device
        self._clipping = gradient_clipping
        self._any_on_device = any(m.route.on_device for m in memories)
        # The update lane may wait only for buffers that come back without it: those of first sums, which go straight
        # to disk, and not those that are read and wait for the update lane's next task.
        self._staging, self._waiting, self._first_sums = self._pools = [
            SlotPool(page_aligned, buffers) for buffers in (sizes.state, sizes.gradients, sizes.first_sums)
        ]
        self.idle_buffer: Tensor | None = page_aligned(sizes.state.nbytes) if sizes.state.number else None
        """A staging buffer for use while no step is under way."""
        self._pointers = StatePointers(memories, grad_hooks, on_host, on_device, self.idle_buffer)
        late = self._pointers.after_backward
        self._on_device = late if isinstance(late, UnitsOnDevice) else None
        self._slice_counts = [_slice_counts(memory) for memory in memories]
        self._unread: list[list[int]] = []
        """Slices of each parameter that no update has read yet."""
        self._summed: dict[Place, list[bool]] = {}
        """For each slice of a chunk: it has a sum over micro-batches."""
        self._in_hand: dict[Place, Tensor] = {}
        """Host slots that hold a gradient which came down."""
        self._sums: dict[Place, tuple[Tensor, SlotPool]] = {}
        """Sums that wait on disk, with the pool that their buffer is of."""
        self._staged: dict[Place, _Staged] = {}
        self._speculated: dict[Place, int] = {}
        """Chunks that were updated ahead of the verdict, each with how many of its elements were left."""
        self._squares = 0.0
        """The sum of the squares of what was measured so far."""
        self.speculation = Speculation()
        self._current = self._applied = GradientSet(0, AdamW())
        self._perform: dict[Kind, Callable[[Task], Landing | None]] = {
            Kind.REDUCE: self.reduce,
            Kind.DOWNLOAD: self.download,
            Kind.READ_GRADIENT: self.read_gradient,
            Kind.ACCUMULATE: self.accumulate,
            Kind.NORM: self.measure,
            Kind.WRITE_GRADIENT: self.write_gradient,
            Kind.SPECULATE: self.speculate,
            Kind.VERDICT: self.check_overflow,
            Kind.READ_STATE: self.read_state,
            Kind.UPDATE: self.update,
            Kind.WRITE_STATE: self.write_state,
            Kind.UPLOAD: self.upload,
            Kind.GATHER: self.gather,
        }

    # The step

    def begin(self, settings: AdamW, *, delayed: bool = False, applies: GradientSet | None = None) -> None:
        """Start a step. Its update is by its own gradients, with `settings`; where delayed, by those of `applies`,
        if there are any."""
        self._begun = self._device.record_event()
        number = 0 if applies is None else 1 - applies.number
        self._current = GradientSet(number, replace(settings), self._grad_hooks.has_gradient)
        self._applied = self._current
        if self._between_ranks is not None:
            self._between_ranks.begin(self._current)
        if delayed:
            self._applied = applies or GradientSet(1, settings, blocked=True)
        self._unread = [list(counts) for counts in self._slice_counts]
        assert not self._speculated, (
            "a step begins where updates of the last one are neither confirmed nor undone"
        )
        self._squares, self.speculation = 0.0, Speculation()
        self._summed = {
            (m.unit.index, c.index): [False] * len(c.slices)
            for m in self._memories
            if m.route.accumulates
            for c in m.unit.chunks
        }

    def set_settings(self, settings: AdamW) -> None:
        """Set what the gradients of this step will be applied with."""
        self._current.settings = replace(settings)

    def set_mean(self, mean: Mean) -> None:
        """Set what turns the sum over this rank's micro-batches into their mean; known before the first update."""
        self._mean = mean
        self._current.unscale = self._current.scale = mean.unscale

    def perform(self, task: Task) -> Landing | None:
        """Do what `task` says, or begin a copy and return what ends it."""
        with self._device.computing() if self._computes(task) else nullcontext():
            return self._perform[task.kind](task)

    def _computes(self, task: Task) -> bool:
        """Return whether a task works on a device of its own, whose operations belong on the stream of compute."""
        return self._any_on_device if task.unit is None else self._memories[task.unit].route.on_device

    # A chunk's gradient

    def reduce(self, task: Task) -> None:
        """This rank's share of a chunk's gradient is summed over the ranks."""
        memory, chunk = self._pointers.place(task)
        assert self._between_ranks is not None
        final = self._grad_hooks.take_slot(task.micro_batch, memory.unit.index, chunk.index)
        whole = memory.unit.chunks[chunk.index]
        after = self._begun if final is None else final.event
        self._between_ranks.reduce(memory, whole, final, self._current, self._mean, after)

    def download(self, task: Task) -> Landing | None:
        """A bucketed chunk sets out for the host; where memory is one, it is there in the slot of its bucket."""
        memory, chunk = self._pointers.place(task)
        place = (memory.unit.index, chunk.index)
        if self._between_ranks is not None:
            return self._download_share(self._between_ranks, memory, chunk)
        final = self._grad_hooks.take_slot(task.micro_batch, *place)
        if final is not None and memory.route.sums_on_device:
            total = memory.waiting_gradient(chunk, self._current.number)
            assert total is not None
            return self._device.begin_copy(Lane.DOWNLOAD, total, final.slot, final.event)
        if final is None:
            return None
        source = final.slot.view(DTYPES[chunk.dtype])[: chunk.elements]
        in_place = memory.route.waiting == "memory" and not memory.route.accumulates
        waiting = memory.waiting_gradient(chunk, self._current.number) if in_place else None
        if waiting is None and self._device.shared_memory:
            self._in_hand[place] = final.slot
            return None
        slot = self._grad_hooks.host_slots.take() if waiting is None else None
        target = waiting if slot is None else slot.view(DTYPES[chunk.dtype])[: chunk.elements]
        assert target is not None
        arrive = self._device.begin_copy(Lane.DOWNLOAD, target, source, final.event)

        def land() -> None:
            arrive()
            self._grad_hooks.device_slots.give_back(final.slot)
            if slot is not None:
                # Not before: until then it comes back only if this lane goes on, which may wait for a slot itself.
                self._grad_hooks.will_return_host_slot(memory.unit.index)
                self._in_hand[place] = slot

        return land

    def _download_share(self, between_ranks: RankTasks, memory: UnitMemory, chunk: Chunk) -> Landing | None:
        """The sum over ranks sets out for where it waits."""
        slot = between_ranks.take_reduced(memory, chunk)
        if slot is None:
            return None
        waiting = memory.waiting_gradient(chunk, self._current.number)
        assert waiting is not None
        source = slot.view(torch.float32)[: chunk.elements]
        # The lane between ranks has waited for the sum: nothing is left to come before the copy.
        arrive = self._device.begin_copy(Lane.DOWNLOAD, waiting, source, after=None)

        def land() -> None:
            arrive()
            between_ranks.give_back(slot)

        return land

    def read_gradient(self, task: Task) -> None:
        """The sum so far comes from disk."""
        memory, chunk = self._pointers.place(task)
        buffer = self._read_waiting(memory, chunk, self._current)
        self._sums[memory.unit.index, chunk.index] = (buffer, self._waiting)

    def _read_waiting(self, memory: UnitMemory, chunk: Chunk, gradients: GradientSet) -> Tensor:
        buffer = self._waiting.take()
        self._waiting.will_return()
        file = memory.gradient_files[gradients.number]
        file.read(chunk.index, buffer[: padded(file.record_bytes[chunk.index])])
        return buffer

    def accumulate(self, task: Task) -> None:
        """The gradient of one micro-batch joins the sum: a chunk's, or those of all units on a device of its own."""
        if task.unit is None:
            assert self._on_device is not None
            self._on_device.accumulate(self._current)
            return
        memory, chunk = self._pointers.place(task)
        unit, number = place = (memory.unit.index, chunk.index)
        brought = self._grad_hooks.take_slices(task.micro_batch, unit, number)
        summed = self._summed[place]
        sums = memory.slices(self._sum_of(memory, chunk), chunk)
        slot = self._in_hand.pop(place, None)
        arrived = None
        if slot is not None:
            arrived = memory.slices(slot.view(DTYPES[chunk.dtype])[: chunk.elements], chunk)
        arithmetic, _ = self._pointers.of(memory, chunk)
        for index, part in enumerate(chunk.slices):
            if not brought[index]:
                continue
            if arrived is not None:
                source = arrived[index]
            else:
                owned = self._grad_hooks.owned(task.micro_batch, unit, part.segment)
                source = owned[part.start : part.start + part.count]
            arithmetic.accumulate(sums[index], source, overwrite=not summed[index])
            summed[index] = True
        if slot is not None:
            self._grad_hooks.host_slots.give_back(slot)

    def _sum_of(self, memory: UnitMemory, chunk: Chunk) -> Tensor:
        """Return where a chunk's sum is, or begins."""
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
        """Sum the squares of a chunk's gradient, or of those of all units found after backward."""
        if task.unit is None:
            assert self._pointers.after_backward is not None
            self._pointers.after_backward.measure(self._current)
            return
        memory, chunk = self._pointers.place(task)
        arithmetic, table = self._pointers.of(memory, chunk)
        self._pointers.set_gradients(memory, chunk, self._whole(memory, chunk), self._current)
        arithmetic.sum_of_squares(table)
        if memory.route.speculates:
            self._squares += math.fsum(arithmetic.read_partials([table]))
        if memory.route.waiting == "disk" or memory.route.delayed:
            # The update finds them elsewhere, or later.
            table.release_gradients()
        if memory.route.waiting == "ring":
            slot = self._in_hand.pop((memory.unit.index, chunk.index), None)
            if slot is not None:
                self._current.arrived[memory.unit.index, chunk.index] = slot

    def _whole(self, memory: UnitMemory, chunk: Chunk) -> Tensor | None:
        """Return a chunk's gradient as it is at its norm; None where it is in autograd's tensors or there is none."""
        place = (memory.unit.index, chunk.index)
        if place in self._sums:
            return self._sums[place][0].view(torch.float32)[: chunk.elements]
        if place in self._in_hand:
            return self._in_hand[place].view(DTYPES[chunk.dtype])[: chunk.elements]
        return memory.waiting_gradient(chunk, self._current.number)

    def write_gradient(self, task: Task) -> None:
        """The gradient, or the sum, goes to disk to wait for the update."""
        memory, chunk = self._pointers.place(task)
        place = (memory.unit.index, chunk.index)
        file = memory.gradient_files[self._current.number]
        size = padded(file.record_bytes[chunk.index])
        if place in self._sums:
            buffer, pool = self._sums.pop(place)
        elif place in self._in_hand:
            buffer, pool = self._in_hand.pop(place), self._grad_hooks.host_slots
        else:
            return
        file.write(chunk.index, buffer[:size])
        pool.give_back(buffer)

    # The check

    def check_overflow(self, task: Task) -> None:
        """Find the norm over all gradients: it says how far they are clipped, and whether they may be applied."""
        current = self._current
        if self._on_device is not None and self._on_device.decide(current, self._clipping):
            return
        partials, between = self._pointers.partials(), self._between_ranks
        written = current.written
        if between is None:
            total = math.fsum(partials)
        else:
            total, written = between.total(partials, written=written)
        if math.isfinite(total):
            norm = math.sqrt(total) * current.unscale
            if self._clipping > 0:
                current.scale = current.unscale * min(1.0, self._clipping / (norm + NORM_EPSILON))
            current.check = GradCheck(norm, finite=True)
        else:
            current.blocked = True
            where = self._pointers.not_finite(None if between is None else between.join)
            late = self._pointers.after_backward
            written = written or (late is not None and late.wrote())
            current.check = GradCheck(total, finite=False, where=where, partially_applied=written)

    # A chunk's update

    def speculate(self, task: Task) -> None:
        """Apply AdamW to a chunk ahead of the verdict, unless that is known, or known to be against it."""
        memory, chunk = self._pointers.place(task)
        current = self._current
        if current.check is not None or is_against(self._squares, current.unscale, self._clipping):
            return
        arithmetic, table = self._host_table(memory, chunk)
        table.set_steps([memory.steps[part.segment] + 1 for part in chunk.slices])
        left = arithmetic.speculate(table, current.settings, current.unscale)
        self._speculated[memory.unit.index, chunk.index] = left
        self.speculation.speculated += chunk.elements - left

    def _host_table(self, memory: UnitMemory, chunk: Chunk) -> tuple[HostArithmetic, Any]:
        """Return a chunk's arithmetic and table, which are the native ones where units speculate."""
        arithmetic, table = self._pointers.of(memory, chunk)
        assert isinstance(arithmetic, HostArithmetic)
        return arithmetic, table

    def _settle(self, memory: UnitMemory, chunk: Chunk, left: int) -> None:
        """Confirm the update that was ahead of the verdict, or undo it, and do it as the verdict has it."""
        applied = self._applied
        arithmetic, table = self._host_table(memory, chunk)
        if applied.as_it_is:
            if left:
                arithmetic.complete(table, applied.settings, applied.unscale)
            return
        began = time.perf_counter()
        if applied.blocked:
            arithmetic.undo(table, applied.settings, applied.unscale)
        else:
            arithmetic.redo(table, applied.settings, applied.unscale, applied.scale)
        self.speculation.undone += chunk.elements - left
        self.speculation.seconds += time.perf_counter() - began

    def read_state(self, task: Task) -> None:
        """State, and a gradient that waited, come from disk."""
        memory, chunk = self._pointers.place(task)
        if self._applied.blocked or not chunk.elements:
            return
        buffer = self._staging.take()
        self._staging.will_return()
        for kind, place in memory.stage(chunk, buffer).items():
            memory.files[kind].read(chunk.index, place)
        waiting = self._read_waiting(memory, chunk, self._applied) if memory.gradient_files else None
        self._staged[memory.unit.index, chunk.index] = _Staged(buffer, waiting)

    def update(self, task: Task) -> None:
        """Apply AdamW to a chunk, or to all units found after backward."""
        applied = self._applied
        if task.unit is None:
            assert self._pointers.after_backward is not None
            self._pointers.after_backward.update(applied)
            return
        memory, chunk = self._pointers.place(task)
        place = (memory.unit.index, chunk.index)
        arithmetic, table = self._pointers.of(memory, chunk)
        staged = self._staged.get(place)
        if applied is self._current and applied.check is None and not applied.blocked:
            applied.blocked = not math.isfinite(math.fsum(arithmetic.read_partials([table])))
        left = self._speculated.pop(place, None)
        if left is not None:
            self._settle(memory, chunk, left)
        elif not applied.blocked:
            applied.written = True
            self._point_to_state(memory, chunk, staged)
            table.set_steps([memory.steps[part.segment] + 1 for part in chunk.slices])
            arithmetic.update(table, applied.settings, applied.scale)
        table.release_gradients()
        if staged is not None and staged.gradient is not None:
            self._waiting.give_back(staged.gradient)
        slot = applied.arrived.pop(place, None)
        if slot is not None:
            self._grad_hooks.host_slots.give_back(slot)
        if memory.route.gradients == "in_autograd":
            self._release_in_autograd(memory, chunk)

    def _point_to_state(self, memory: UnitMemory, chunk: Chunk, staged: _Staged | None) -> None:
        """Point the chunk's table to its state and gradients, where its norm has not done so."""
        if staged is not None:
            staged.updated = True
            arithmetic, table = self._pointers.of(memory, chunk)
            arithmetic.move(table, memory.views(chunk, memory.stage(chunk, staged.state)))
        whole: Tensor | None
        if staged is not None and staged.gradient is not None:
            whole = staged.gradient.view(memory.waiting_dtype(chunk))[: chunk.elements]
        elif memory.route.delayed:
            whole = memory.waiting_gradient(chunk, self._applied.number)
        else:
            return
        self._pointers.set_gradients(memory, chunk, whole, self._applied)

    def _release_in_autograd(self, memory: UnitMemory, chunk: Chunk) -> None:
        """Let go of autograd's tensors of which this chunk had the last slice."""
        unit, applied = memory.unit.index, self._applied
        for part in chunk.slices:
            self._unread[unit][part.segment] -= 1
            if not self._unread[unit][part.segment]:
                if applied.in_autograd is None:
                    self._grad_hooks.release(unit, part.segment)
                else:
                    applied.in_autograd.pop((unit, part.segment), None)

    def write_state(self, task: Task) -> None:
        """The new state goes to disk."""
        memory, chunk = self._pointers.place(task)
        staged = self._staged.pop((memory.unit.index, chunk.index), None)
        if staged is None:
            return
        if staged.updated:
            for kind, place in memory.stage(chunk, staged.state).items():
                memory.files[kind].write(chunk.index, place)
        self._staging.give_back(staged.state)

    @property
    def _sends_nothing(self) -> bool:
        """No weights are new. A delayed step sends those of the update before the one that it begins with."""
        return self._applied.blocked and self._applied is self._current

    def upload(self, task: Task) -> Landing | None:
        """A chunk's new weights set out for where the forward, or the next fetch, reads them."""
        memory, chunk = self._pointers.place(task)
        if self._sends_nothing or not chunk.elements:
            return None
        source, target = memory.new_weights(chunk)
        if memory.route.on_device:
            with torch.no_grad():
                target.copy_(source)
            return None
        # Where backward has not been through the unit, forwards from before the step may still read its weights.
        after = self._grad_hooks.over_events.get(memory.unit.index, self._begun)
        return self._device.begin_copy(Lane.UPLOAD, target, source, after)

    def gather(self, task: Task) -> None:
        """All ranks get the new weights of a chunk."""
        if self._sends_nothing:
            return
        assert self._between_ranks is not None
        memory, chunk = self._pointers.place(task)
        # On a device compute has copied them; else forwards and backwards of before may still read the old ones.
        over = self._grad_hooks.over_events.get(memory.unit.index, self._begun)
        after = self._device.record_event() if memory.route.on_device else over
        self._between_ranks.gather(memory, memory.unit.chunks[chunk.index], after)

    # The end of a step

    def keep_for_next_step(self) -> GradientSet:
        """Return the gradients of the step that has ended, to be applied during the next one."""
        kept = self._current
        kept.has_gradient = [list(flags) for flags in kept.has_gradient]
        kept.in_autograd = {}
        for memory in self._memories:
            if memory.route.gradients == "in_autograd":
                unit = memory.unit.index
                for segment in range(len(memory.unit.segments)):
                    gradient = self._grad_hooks.gradient(unit, segment)
                    if gradient is not None:
                        kept.in_autograd[unit, segment] = gradient
                        self._grad_hooks.release(unit, segment)
        return kept

    def count_steps(self) -> None:
        """The update has run and was not left out: every parameter that got a gradient is one step older."""
        if self._applied.blocked:
            return
        for memory, flags in zip(self._memories, self._applied.has_gradient, strict=True):
            for segment, had in enumerate(flags):
                memory.steps[segment] += had

    def cancel(self, failure: BaseException) -> None:
        """The step has failed: whoever waits for a buffer gets `failure`."""
        self._grad_hooks.cancel(failure)
        if self._between_ranks is not None:
            self._between_ranks.cancel(failure)
        for pool in self._pools:
            pool.cancel(failure)

    @property
    def check(self) -> GradCheck | None:
        """The check of this step's gradients; None until it is known. Where the device has decided about them, the
        host waits for it here."""
        current = self._current
        if current.check is None and current.verdict is not None:
            assert self._on_device is not None
            current.check = self._on_device.check(current)
            if not current.check.finite:
                current.blocked = True
                current.check = replace(current.check, where=self._pointers.not_finite())
        return current.check

    @property
    def applied_as_it_is(self) -> bool:
        """This step's gradients, which are checked, were all finite, and not clipped."""
        return self._current.as_it_is

    @property
    def learning_rate(self) -> float:
        """The learning rate of this step's gradients."""
        return self._current.settings.lr

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the host buffers between memory and disk."""
        idle = 0 if self.idle_buffer is None else self.idle_buffer.nbytes
        return idle + sum(pool.nbytes for pool in self._pools)


def _slice_counts(memory: UnitMemory) -> list[int]:
    """Return into how many slices each parameter of a unit is cut."""
    counts = [0] * len(memory.unit.segments)
    for chunk in memory.unit.chunks:
        for part in chunk.slices:
            counts[part.segment] += 1
    return counts
