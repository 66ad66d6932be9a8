"""Takes each parameter's gradient as it becomes final and tells the step when a chunk's are complete.

Three ways, chosen once by where gradients have to go:

- *referenced*: the gradient stays in `parameter.grad`, and the update reads it there (nothing is copied);
- *accumulated*: the engine takes `parameter.grad` and adds it to an fp32 sum in the state's tier;
- *travelling*: it is copied into a device slot of its chunk, which goes down to the host when full, and is released.

Invariant: a slot or a gradient taken here has one owner at a time: the hook until the chunk's `BACKWARD` is complete,
then the one task that waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.engine.device import Device, Mark
from workbench.engine.execution import StepExecution
from workbench.engine.memory import ShardMemory
from workbench.timeline import Kind


class SlotPool:
    """Reusable buffers of one size. `take` waits for one that is on its way back; it grows only where none is.

    So memory stays at `limit` slots while they circulate, and a step whose slots all wait for something later (a
    chunk half full, a serial step) never deadlocks.
    """

    def __init__(self, allocate: Callable[[], Tensor], limit: int) -> None:
        self._allocate = allocate
        self._limit = limit
        self._free: list[Tensor] = []
        self._made = 0
        self._returning = 0
        self._broken = False
        self._changed = threading.Condition()

    def take(self) -> Tensor:
        with self._changed:
            self._changed.wait_for(
                lambda: self._free or self._made < self._limit or not self._returning or self._broken
            )
            if self._free:
                return self._free.pop()
            self._made += 1
        return self._allocate()

    def will_return(self) -> None:
        """Promise that one taken slot will come back without anything further from the taker's thread."""
        with self._changed:
            self._returning += 1

    def give_back(self, slot: Tensor) -> None:
        """Return a slot for which `will_return` was called."""
        with self._changed:
            self._free.append(slot)
            self._returning -= 1
            self._changed.notify()

    def break_off(self) -> None:
        """Let every waiter go on: the step has failed and nothing will come back."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


@dataclass(frozen=True)
class ClosedChunk:
    """What one micro-batch brought for a chunk: which of its slices, and their bytes in a slot where they travel."""

    slices: tuple[bool, ...]
    slot: Tensor | None
    mark: Mark


class GradientIntake:
    """The post-accumulate hooks of all trainable parameters, and what they have taken so far."""

    def __init__(
        self,
        memories: Sequence[ShardMemory],
        parameters: Sequence[Sequence[nn.Parameter]],
        device: Device,
        *,
        referenced: bool,
        accumulates: bool,
        travels: bool,
        bounded: bool,
    ) -> None:
        self.parameters = parameters
        self.referenced = referenced
        self.accumulates = accumulates
        self.travels = travels
        self.has_gradient = [[False] * len(m.shard.segments) for m in memories]
        self._memories = memories
        self._device = device
        self._execution: StepExecution | None = None
        self._micro_batch = 0
        self._arrived = [[False] * len(m.shard.segments) for m in memories]
        self._missing = [[len(c.slices) for c in m.shard.chunks] for m in memories]
        self._calls = [0] * len(memories)
        self._called = [False] * len(memories)
        self._taken: dict[tuple[int, int, int], Tensor] = {}
        self._open: dict[tuple[int, int], Tensor] = {}
        self._closed: dict[tuple[int, int, int], ClosedChunk] = {}
        self.over_marks: dict[int, Mark] = {}
        chunks = [chunk for m in memories for chunk in m.shard.chunks]
        self._slot_bytes = max((chunk.weight_bytes for chunk in chunks), default=0)
        largest = max((len(m.shard.chunks) for m in memories), default=0)
        # A serial step lets no slot go before its backward has ended: waiting for one would be waiting for ever.
        limit = 2 * largest + 2 if bounded else len(chunks)
        self.device_slots = SlotPool(lambda: device.empty(self._slot_bytes, torch.uint8), limit)
        self.host_slots = SlotPool(lambda: device.empty_host(self._slot_bytes, torch.uint8), 4)
        # Which chunks a segment has slices in: (chunk, where the slice starts in the chunk, start, count).
        self._places: list[list[list[tuple[int, int, int, int]]]] = []
        for memory in memories:
            places: list[list[tuple[int, int, int, int]]] = [[] for _ in memory.shard.segments]
            for chunk in memory.shard.chunks:
                for part in chunk.slices:
                    at = memory.shard.segments[part.segment].offset + part.start - chunk.start
                    places[part.segment].append((chunk.index, at, part.start, part.count))
            self._places.append(places)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(shard, segment))
            for shard, members in enumerate(parameters)
            for segment, parameter in enumerate(members)
        ]

    def begin_step(self, execution: StepExecution) -> None:
        self._execution = execution
        for flags in self.has_gradient:
            flags[:] = [False] * len(flags)

    def begin_micro_batch(self, micro_batch: int) -> None:
        self._micro_batch = micro_batch
        for flags in self._arrived:
            flags[:] = [False] * len(flags)
        for memory, missing in zip(self._memories, self._missing, strict=True):
            missing[:] = [len(chunk.slices) for chunk in memory.shard.chunks]

    def end_micro_batch(self) -> None:
        """Backward has ended: what has not come will not come. Completes all that is still open."""
        assert self._execution is not None
        for shard in reversed(range(len(self._memories))):
            for chunk in reversed(self._memories[shard].shard.chunks):
                if self._missing[shard][chunk.index]:
                    self._chunk_is_final(shard, chunk.index)
            self._calls[shard] = 0
            self._called[shard] = False
            self._shard_is_over(shard)
        self._execution.complete(self._execution.timeline.find(Kind.BACKWARD, self._micro_batch))

    def block_called(self, shard: int, hidden: Tensor | None) -> None:
        """A block runs forward on `hidden`; when the gradient of that is known its weights are no longer read."""
        self._calls[shard] += 1
        self._called[shard] = True
        if hidden is not None:
            hidden.register_hook(lambda gradient: self._block_left(shard))

    def _block_left(self, shard: int) -> None:
        self._calls[shard] -= 1
        self._end_block(shard)

    def _end_block(self, shard: int) -> None:
        """Outside the blocks weights may be read until backward ends; a block's are done with when it is left."""
        is_block = self._memories[shard].shard.kind == "block"
        if is_block and self._called[shard] and not self._calls[shard] and not any(self._missing[shard]):
            self._shard_is_over(shard)

    def _hook(self, shard: int, segment: int) -> Callable[[Tensor], None]:
        def arrive(parameter: Tensor) -> None:
            self._arrive(shard, segment, parameter)

        return arrive

    def _arrive(self, shard: int, segment: int, parameter: Tensor) -> None:
        execution = self._execution
        name = self._memories[shard].shard.segments[segment].name
        gradient = parameter.grad
        if execution is None or gradient is None:
            raise RuntimeError(
                f"{name} received a gradient outside engine.backward(); call engine.backward(loss)"
            )
        if self._arrived[shard][segment]:
            raise RuntimeError(
                f"{name} received its gradient twice in one backward, as re-entrant checkpointing does; "
                "use the engine's activation checkpointing"
            )
        if gradient.layout != torch.strided:
            raise RuntimeError(f"{name} has a sparse gradient; the engine needs dense ones (sparse=False)")
        self._arrived[shard][segment] = True
        self.has_gradient[shard][segment] = True
        if not self.referenced:
            parameter.grad = None
            self._take(shard, segment, gradient.detach().reshape(-1))
        missing = self._missing[shard]
        # Chunks hold a shard's end first when backward runs through it: complete the later one first.
        for chunk, *_ in reversed(self._places[shard][segment]):
            missing[chunk] -= 1
            if not missing[chunk]:
                self._chunk_is_final(shard, chunk)

    def _take(self, shard: int, segment: int, gradient: Tensor) -> None:
        if not self.travels:
            self._taken[self._micro_batch, shard, segment] = gradient
            return
        for chunk, at, start, count in self._places[shard][segment]:
            slot = self._open.get((shard, chunk))
            if slot is None:
                slot = self._open[shard, chunk] = self.device_slots.take()
            slot.view(gradient.dtype)[at : at + count].copy_(gradient[start : start + count])

    def _chunk_is_final(self, shard: int, chunk: int) -> None:
        execution = self._execution
        assert execution is not None
        self._missing[shard][chunk] = 0
        arrived = self._arrived[shard]
        slices = tuple(arrived[part.segment] for part in self._memories[shard].shard.chunks[chunk].slices)
        slot = self._open.pop((shard, chunk), None)
        if slot is not None:
            self.device_slots.will_return()
        mark = self._device.mark() if self.travels else None
        self._closed[self._micro_batch, shard, chunk] = ClosedChunk(slices, slot, mark)
        execution.complete(execution.timeline.find(Kind.BACKWARD, self._micro_batch, shard, chunk))
        self._end_block(shard)

    def _shard_is_over(self, shard: int) -> None:
        execution = self._execution
        assert execution is not None
        index = execution.timeline.find(Kind.BACKWARD, self._micro_batch, shard)
        if not execution.is_done(index):
            self.over_marks[shard] = self._device.mark()
            execution.complete(index)

    def closed(self, micro_batch: int, shard: int, chunk: int) -> ClosedChunk:
        """What a micro-batch brought for a chunk; its `BACKWARD` is complete."""
        return self._closed[micro_batch, shard, chunk]

    def taken(self, micro_batch: int, shard: int, segment: int) -> Tensor | None:
        """The gradient that one micro-batch brought, 1-D; None where none came."""
        return self._taken.get((micro_batch, shard, segment))

    def gradient(self, shard: int, segment: int) -> Tensor | None:
        """A referenced gradient, 1-D."""
        gradient = self.parameters[shard][segment].grad
        return None if gradient is None else gradient.reshape(-1)

    def release(self, shard: int, segment: int) -> None:
        """Let a referenced gradient go: the update has read it."""
        self.parameters[shard][segment].grad = None

    def end_step(self) -> None:
        """Release every gradient."""
        self._execution = None
        self._taken.clear()
        self._open.clear()
        self._closed.clear()
        self.over_marks.clear()
        for members in self.parameters:
            for parameter in members:
                parameter.grad = None

    def break_off(self) -> None:
        """Let whoever waits for a slot go on: none will come back."""
        self.device_slots.break_off()
        self.host_slots.break_off()

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
