"""Hooks that take each parameter's gradient when it is final, and complete its task when a chunk's are complete.

There are three ways, chosen for each unit by its route:

- *in_autograd*: the gradient stays in `parameter.grad`, and the update reads it there (nothing is copied); where the
  update is *after_backward*, it is only looked for when backward has ended, and the parameter has no hook;
- *owned*: the engine takes `parameter.grad` and adds it to an fp32 sum in the state's tier;
- *bucketed*: it is copied into a slot of its chunk, in the storage dtype, which goes down to the host when full; or
  (*sums_on_device*) added to an fp32 sum on the device, which goes down with the last micro-batch.

Invariant: a slot or a gradient taken here has one owner at a time: the hook until the chunk's `BACKWARD` is complete,
then the one task that waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.engine.devices.buffers import SlotPool
from workbench.engine.devices.device import Device, Event
from workbench.engine.execution import StepExecution
from workbench.engine.precision import DTYPES
from workbench.engine.report import ComputeClock
from workbench.engine.unit_memory import UnitMemory
from workbench.sizes import BufferSizes
from workbench.timeline import Kind


@dataclass(frozen=True)
class FullSlot:
    """The gradient of a chunk that is final, as bytes in `slot`, or its sum on the device. `event`: of what was written
    there."""

    slot: Tensor
    event: Event


class GradientHooks:
    """The post-accumulate hooks of all trainable parameters, and what they have taken so far."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        parameters: Sequence[Sequence[nn.Parameter]],
        device: Device,
        clock: ComputeClock,
        sizes: BufferSizes,
    ) -> None:
        self.parameters = parameters
        self.has_gradient = [[False] * len(m.unit.segments) for m in memories]
        self._memories = memories
        self._device = device
        self._clock = clock
        self._execution: StepExecution | None = None
        self._micro_batch = 0
        self._is_last = False
        self._arrived = [[False] * len(m.unit.segments) for m in memories]
        self._missing = [_slices_to_come(memory) for memory in memories]
        self._calls = [0] * len(memories)
        self._called = [False] * len(memories)
        self._owned: dict[tuple[int, int, int], tuple[Tensor, int]] = {}
        """Gradients of one micro-batch, each with how many of its slices are still to be summed."""
        self._open: dict[tuple[int, int], Tensor] = {}
        self._full: dict[tuple[int, int, int], FullSlot] = {}
        self._summed: dict[tuple[int, int, int], tuple[bool, ...]] = {}
        """For chunks that are final and to be summed: which of their slices a micro-batch brought."""
        self.over_events: dict[int, Event] = {}
        self.release_unit: Callable[[int, Callable[[], None]], None] | None = None
        """Called with each unit that a step's last backward is done with, and with what then lets its update begin."""
        self._ring = threading.Lock()
        self._over: set[int] = set()
        self._returning_later: dict[int, int] = {}
        self._make_pools(sizes)
        self._reduced = [
            (memory.unit.index, chunk.index)
            for memory in reversed(memories)
            if memory.route.partitioned
            for chunk in reversed(memory.unit.chunks)
        ]
        """The chunks in the order in which ranks reduce them."""
        self._final = 0
        """How many of them, from the first on, are final."""
        # Which chunks a segment has slices in: (chunk, where the slice starts in the chunk, start, count).
        self._places: list[list[list[tuple[int, int, int, int]]]] = []
        for memory in memories:
            places: list[list[tuple[int, int, int, int]]] = [[] for _ in memory.unit.segments]
            for chunk in memory.unit.chunks:
                for part in chunk.slices:
                    at = memory.unit.segments[part.segment].offset + part.start - chunk.start
                    places[part.segment].append((chunk.index, at, part.start, part.count))
            self._places.append(places)
        # Python's collector does not see what a parameter's hooks hold: a strong reference would never be let go.
        hooks = weakref.ref(self)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(functools.partial(_arrive, hooks, unit, segment))
            for unit, members in enumerate(parameters)
            if not memories[unit].route.after_backward
            for segment, parameter in enumerate(members)
        ]

    def _make_pools(self, sizes: BufferSizes) -> None:
        """Make the slots of buckets, and those in which they arrive on the host: the same in one memory.

        On a device of its own they are allocated now: taken one by one in the first backward, they would lie scattered
        in what is free at its peak, for as long as the engine lives.
        """
        device, apart = self._device, not self._device.shared_memory
        self.device_slots = self.host_slots = SlotPool(device.pinned_pages, sizes.host_slots, at_once=apart)
        if apart:
            self.device_slots = SlotPool(
                lambda nbytes: device.empty(nbytes, torch.uint8), sizes.device_slots, at_once=True
            )

    # From the first gradient to the last

    def begin_step(self, execution: StepExecution) -> None:
        """Gradients belong to this step from now on.

        Raises:
            RuntimeError: a parameter has a gradient already, which would be added to the step's.
        """
        self._execution = execution
        for flags in self.has_gradient:
            flags[:] = [False] * len(flags)
        for memory, members in zip(self._memories, self.parameters, strict=True):
            if memory.route.after_backward:
                for segment, parameter in zip(memory.unit.segments, members, strict=True):
                    if parameter.grad is not None:
                        raise _outside(segment.name)

    def begin_micro_batch(self, micro_batch: int, *, last: bool) -> None:
        """Backward begins."""
        self._micro_batch = micro_batch
        self._is_last = last
        self._over.clear()
        self._final = 0
        for unit, memory in enumerate(self._memories):
            self._arrived[unit][:] = [False] * len(self._arrived[unit])
            self._missing[unit][:] = _slices_to_come(memory)

    def _arrive(self, unit: int, segment: int, parameter: Tensor) -> None:
        execution = self._execution
        memory = self._memories[unit]
        name = memory.unit.segments[segment].name
        gradient = parameter.grad
        if execution is None or gradient is None:
            raise _outside(name)
        if self._arrived[unit][segment]:
            raise RuntimeError(
                f"{name} received its gradient twice in one backward, as re-entrant checkpointing does; "
                "use the engine's activation checkpointing"
            )
        if gradient.layout != torch.strided:
            raise _sparse(name)
        self._arrived[unit][segment] = True
        begins, self.has_gradient[unit][segment] = not self.has_gradient[unit][segment], True
        if memory.route.sums_on_device:
            parameter.grad = None
            self._sum_up(memory, segment, gradient.detach().reshape(-1), begins=begins)
        elif memory.route.gradients != "in_autograd":
            parameter.grad = None
            self._keep(unit, segment, gradient.detach().reshape(-1))
        missing = self._missing[unit]
        # Chunks hold a unit's end first when backward runs through it: complete the later one first.
        for chunk, *_ in reversed(self._places[unit][segment]):
            missing[chunk] -= 1
            if not missing[chunk]:
                self._chunk_is_final(unit, chunk)

    @staticmethod
    def _sum_up(memory: UnitMemory, segment: int, gradient: Tensor, *, begins: bool) -> None:
        """Add a gradient to its sum on the device, or begin that: the step before has come down by now."""
        place = memory.unit.segments[segment]
        total = memory.sum_of_segment(place)
        if begins:
            total.copy_(gradient)
        else:
            total.add_(gradient)

    def _keep(self, unit: int, segment: int, gradient: Tensor) -> None:
        memory = self._memories[unit]
        if memory.route.gradients == "owned":
            self._owned[self._micro_batch, unit, segment] = (gradient, len(self._places[unit][segment]))
            return
        storage = DTYPES[memory.unit.segments[segment].dtype]
        for chunk, at, start, count in self._places[unit][segment]:
            slot = self._open.get((unit, chunk))
            if slot is None:
                with self._clock.waiting() if self.device_slots.would_wait else contextlib.nullcontext():
                    slot = self._open[unit, chunk] = self.device_slots.take()
            slot.view(storage)[at : at + count].copy_(gradient[start : start + count])

    def _chunk_is_final(self, unit: int, chunk: int) -> None:
        execution = self._execution
        assert execution is not None
        self._missing[unit][chunk] = 0
        memory, place = self._memories[unit], (self._micro_batch, unit, chunk)
        if memory.route.accumulates and not memory.route.sums_on_device:
            arrived = self._arrived[unit]
            self._summed[place] = tuple(arrived[part.segment] for part in memory.unit.chunks[chunk].slices)
        slot = self._open.pop((unit, chunk), None)
        if slot is not None:
            if memory.route.partitioned:
                pass
            elif self._device.shared_memory:
                self.will_return_host_slot(unit)
            else:
                self.device_slots.will_return()
            self._full[place] = FullSlot(slot, self._device.record_event())
        elif self._is_last and memory.route.sums_on_device:
            whole = memory.sums_of_chunk(memory.unit.chunks[chunk])
            self._full[place] = FullSlot(whole, self._device.record_event())
        self._promise_slots_in_order()
        self._complete(execution.timeline.find(Kind.BACKWARD, self._micro_batch, unit, chunk))
        self._end_block(unit)

    def _promise_slots_in_order(self) -> None:
        """Ranks reduce chunks in one order: a slot is on its way back when those before it are final as well. A model
        that waited for another would keep back what that one waits for."""
        while self._final < len(self._reduced):
            unit, chunk = self._reduced[self._final]
            if self._missing[unit][chunk]:
                return
            self._final += 1
            if (
                not self._memories[unit].route.sums_on_device
                and (self._micro_batch, unit, chunk) in self._full
            ):
                self.device_slots.will_return()

    def block_called(self, unit: int, input_with_gradient: Tensor | None) -> None:
        """A block's forward runs. When every such call's input has its gradient, the block is not read again."""
        self._called[unit] = True
        self._calls[unit] += 1
        if input_with_gradient is not None:
            input_with_gradient.register_hook(lambda gradient: self._block_left(unit))

    def _block_left(self, unit: int) -> None:
        self._calls[unit] -= 1
        self._end_block(unit)

    def _end_block(self, unit: int) -> None:
        """Outside the blocks weights may be read until backward ends; a block's are done with when it is left."""
        is_block = self._memories[unit].unit.kind == "block"
        if is_block and self._called[unit] and not self._calls[unit] and not any(self._missing[unit]):
            self._unit_is_over(unit)

    def _unit_is_over(self, unit: int) -> None:
        execution = self._execution
        if execution is None:
            return  # a backward beside training, as torch.autograd.grad's for an input
        with self._ring:
            if unit in self._over:
                return
            self._over.add(unit)
            later = self._returning_later.pop(unit, 0)
        for _ in range(later):
            self.host_slots.will_return()
        self.over_events[unit] = self._device.record_event()
        index = execution.timeline.find(Kind.BACKWARD, self._micro_batch, unit)
        if self.release_unit is not None and self._is_last:
            self.release_unit(unit, lambda: execution.complete(index))
        else:
            execution.complete(index)

    def end_micro_batch(self) -> None:
        """Backward has ended: chunks that some parameter left without a gradient are complete as they are."""
        execution = self._execution
        assert execution is not None
        for unit, memory in enumerate(self._memories):
            if memory.route.after_backward:
                self._find_after_backward(unit)
        for unit in reversed(range(len(self._memories))):
            for chunk in reversed(range(len(self._missing[unit]))):
                index = execution.timeline.find(Kind.BACKWARD, self._micro_batch, unit, chunk)
                if not execution.is_done(index):
                    self._chunk_is_final(unit, chunk)
            self._unit_is_over(unit)
        self._calls = [0] * len(self._memories)
        self._called = [False] * len(self._memories)
        self._complete(execution.timeline.find(Kind.BACKWARD, self._micro_batch))

    def _complete(self, index: int) -> None:
        """Complete a task; the host work that may go on then is done here and now in a serial step."""
        execution = self._execution
        assert execution is not None
        with self._clock.waiting() if execution.inline else contextlib.nullcontext():
            execution.complete(index)

    def _find_after_backward(self, unit: int) -> None:
        """Look for the gradients of a unit that has no hooks."""
        flags = self.has_gradient[unit]
        for segment, parameter in enumerate(self.parameters[unit]):
            if parameter.grad is not None:
                flags[segment] = True
                if parameter.grad.layout != torch.strided:
                    raise _sparse(self._memories[unit].unit.segments[segment].name)

    # Buffers that the step's tasks take and give back

    def take_slot(self, micro_batch: int, unit: int, chunk: int) -> FullSlot | None:
        """Return the slot that a micro-batch filled for a chunk that is final, and keep it no longer."""
        execution = self._execution
        assert execution is None or execution.is_done(
            execution.timeline.find(Kind.BACKWARD, micro_batch, unit, chunk)
        ), "a chunk is copied before its gradient is final"
        return self._full.pop((micro_batch, unit, chunk), None)

    def take_slices(self, micro_batch: int, unit: int, chunk: int) -> tuple[bool, ...]:
        """Return which slices of a chunk a micro-batch brought, and keep it no longer."""
        return self._summed.pop((micro_batch, unit, chunk))

    def owned(self, micro_batch: int, unit: int, segment: int) -> Tensor:
        """Return the gradient that one micro-batch brought, 1-D. Ask once for each of the parameter's slices: with the
        last one it is no longer kept."""
        place = (micro_batch, unit, segment)
        gradient, left = self._owned[place]
        if left > 1:
            self._owned[place] = (gradient, left - 1)
        else:
            del self._owned[place]
        return gradient

    def gradient(self, unit: int, segment: int) -> Tensor | None:
        """Return a gradient in autograd's tensor, contiguous, of the parameter's shape or flat."""
        gradient = self.parameters[unit][segment].grad
        return gradient if gradient is None or gradient.is_contiguous() else gradient.reshape(-1)

    def release(self, unit: int, segment: int) -> None:
        """Let go of a gradient in autograd's tensor: the update has read it."""
        self.parameters[unit][segment].grad = None

    def will_return_host_slot(self, unit: int) -> None:
        """A host slot was filled with gradients of `unit`: it comes back when its tasks have run, of which those of
        a ring wait until the unit's backward is over."""
        with self._ring:
            waits = self._memories[unit].route.waiting == "ring" and unit not in self._over
            if waits:
                self._returning_later[unit] = self._returning_later.get(unit, 0) + 1
        if not waits:
            self.host_slots.will_return()

    # The end

    def end_step(self) -> None:
        """Release every gradient."""
        self._execution = None
        self._owned.clear()
        self._open.clear()
        self._full.clear()
        self._summed.clear()
        self.over_events.clear()
        with self._ring:
            self._over.clear()
            self._returning_later.clear()
        for members in self.parameters:
            for parameter in members:
                parameter.grad = None

    def cancel(self, failure: BaseException) -> None:
        """The step has failed: whoever waits for a slot gets `failure`."""
        self.device_slots.cancel(failure)
        self.host_slots.cancel(failure)

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()


def _arrive(hooks: weakref.ref[GradientHooks], unit: int, segment: int, parameter: Tensor) -> None:
    alive = hooks()
    if alive is not None:
        alive._arrive(unit, segment, parameter)


def _slices_to_come(memory: UnitMemory) -> list[int]:
    """Return the number of slices that a backward has to bring for each chunk before it is final.

    Units whose gradients are found after backward have no such moment.
    """
    return [] if memory.route.after_backward else [len(chunk.slices) for chunk in memory.unit.chunks]


def _outside(name: str) -> RuntimeError:
    return RuntimeError(f"{name} received a gradient outside engine.backward(); call engine.backward(loss)")


def _sparse(name: str) -> RuntimeError:
    return RuntimeError(f"{name} has a sparse gradient; the engine needs dense ones (sparse=False)")
