"""What each task of a step does: gradients down, their sum and norm, the verdict, the update, weights up.

Which thread calls is the execution's business; what is right to do, and on which buffer, is decided here.

Invariant: nothing is written to a shard for a step whose verdict is not finite. Where updates run before the verdict
(no global quantity is needed), nothing is written from the first chunk on that is not finite, and the step is `torn`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.engine.arithmetic import Arithmetic, Table
from workbench.engine.collected import CollectedShards
from workbench.engine.device import Device
from workbench.engine.disk import padded
from workbench.engine.gradients import GradientIntake
from workbench.engine.memory import ShardMemory
from workbench.engine.precision import DTYPES
from workbench.engine.slot_pool import SlotPool
from workbench.layout import Chunk
from workbench.optimizer.settings import AdamW
from workbench.timeline import Kind, Lane, Task

NORM_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6
STAGING_BUFFERS = 4


@dataclass(frozen=True)
class Verdict:
    """What a step's gradients came to. `grad_norm`: of the step's mean gradient, before clipping.

    `offender` is the first parameter, in layout order, whose gradient is not finite. `torn`: shards were updated
    before that was known.
    """

    grad_norm: float
    finite: bool
    offender: str | None = None
    torn: bool = False


@dataclass
class GradientSet:
    """The gradients of one step, from their arrival to the update by them.

    `number`: which of the engine's buffers they wait in. `scale`: what an update multiplies them by; `unscale`: what
    turns their sum into the step's mean. `held`: autograd's own tensors, by (shard, segment), where the next backward
    comes before their update. `arrived`: host slots by (shard, chunk) of those that wait in a ring.
    """

    number: int
    settings: AdamW
    has_gradient: list[list[bool]] = field(default_factory=list)
    unscale: float = 1.0
    scale: float = 1.0
    held: dict[tuple[int, int], Tensor] | None = None
    arrived: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    blocked: bool = False
    written: bool = False


@dataclass
class _Staged:
    """The buffers of one chunk's update: its state's, and its gradient's where that waited on disk."""

    state: Tensor
    gradient: Tensor | None
    updated: bool = False


class StepWork:
    """Performs the tasks of one step after the other on the shards' memories.

    `on_host` works where the state is in host memory or on disk, `on_device` where it is on a device of its own.
    """

    def __init__(
        self,
        memories: Sequence[ShardMemory],
        intake: GradientIntake,
        device: Device,
        on_host: Arithmetic,
        on_device: Arithmetic,
        gradient_clipping: float,
    ) -> None:
        self._memories = memories
        self._intake = intake
        self._device = device
        self._clipping = gradient_clipping
        self._any_on_device = any(m.route.on_device for m in memories)
        self._arithmetics = [on_device if m.route.on_device else on_host for m in memories]
        staging_bytes = max(
            (m.staging_bytes(c) for m in memories if m.files for c in m.shard.chunks), default=0
        )
        self._staging = SlotPool(lambda: device.empty_pages(staging_bytes), STAGING_BUFFERS)
        waiting_bytes = max(
            (
                padded(c.elements * m.waiting_dtype(c).itemsize)
                for m in memories
                if m.gradient_files
                for c in m.shard.chunks
            ),
            default=0,
        )
        self._waiting = SlotPool(lambda: device.empty_pages(waiting_bytes), STAGING_BUFFERS)
        # The update lane may wait only for buffers that come back without it: those of first sums, which go straight
        # to disk, and not those that are read and wait for the update lane's next task.
        self._first_sums = SlotPool(lambda: device.empty_pages(waiting_bytes), STAGING_BUFFERS)
        first = device.empty_pages(staging_bytes) if staging_bytes else None
        self._tables: dict[tuple[int, int], Table] = {}
        for memory, arithmetic in zip(memories, self._arithmetics, strict=True):
            for chunk in () if memory.route.collected else memory.shard.chunks:
                staged = {} if first is None or not memory.files else memory.stage(chunk, first)
                table = arithmetic.table(memory.views(chunk, staged))
                self._tables[memory.shard.index, chunk.index] = table
        self._first_staging = first
        collected = [memory for memory in memories if memory.route.collected]
        self._collected: CollectedShards | None = None
        if collected:
            # Of one kind: in one memory or on a device of its own, all state that compute updates is in one tier.
            self._collected = CollectedShards(collected, intake, self._arithmetics[collected[0].shard.index])
        self._accumulated = {
            (m.shard.index, c.index): len(c.slices)
            for m in memories
            if m.route.accumulates
            for c in m.shard.chunks
        }
        self._slice_counts = [_slice_counts(m) for m in memories]
        self._summed: dict[tuple[int, int], list[bool]] = {}
        self._unread: list[list[int]] = []
        self._in_hand: dict[tuple[int, int], Tensor] = {}
        """Host slots between the tasks of one chunk: what came down."""
        self._sums: dict[tuple[int, int], tuple[Tensor, SlotPool]] = {}
        """Buffers between the tasks of one chunk: its sum, where that waits on disk."""
        self._staged: dict[tuple[int, int], _Staged] = {}
        self._current = GradientSet(0, AdamW())
        self._applied = self._current
        self.verdict: Verdict | None = None
        self._perform = {
            Kind.DOWNLOAD: self._download,
            Kind.READ_GRADIENT: self._read_gradient,
            Kind.ACCUMULATE: self._accumulate,
            Kind.NORM: self._norm,
            Kind.WRITE_GRADIENT: self._write_gradient,
            Kind.VERDICT: self._judge,
            Kind.READ_STATE: self._read_state,
            Kind.UPDATE: self._update,
            Kind.WRITE_STATE: self._write_state,
            Kind.UPLOAD: self._upload,
        }

    # The step

    def begin(self, settings: AdamW, *, delayed: bool = False, applies: GradientSet | None = None) -> None:
        """Start a step. Its update is by its own gradients, with `settings`; where delayed, by those of `applies`,
        if there are any."""
        number = 0 if applies is None else 1 - applies.number
        self._current = GradientSet(number, replace(settings), self._intake.has_gradient)
        self._applied = self._current
        if delayed:
            self._applied = applies or GradientSet(1, settings, blocked=True)
        self._summed = {place: [False] * count for place, count in self._accumulated.items()}
        self._unread = [list(counts) for counts in self._slice_counts]
        self.verdict = None

    def set_settings(self, settings: AdamW) -> None:
        """What the gradients of this step will be applied with."""
        self._current.settings = replace(settings)

    def set_unscale(self, unscale: float) -> None:
        """What turns the sum over micro-batches into the step's mean; known before the first update."""
        self._current.unscale = self._current.scale = unscale

    def set_aside(self) -> GradientSet:
        """The gradients of the step that has ended, to be applied during the next one."""
        kept = self._current
        kept.has_gradient = [list(flags) for flags in kept.has_gradient]
        kept.held = {}
        for memory in self._memories:
            if memory.route.gradients == "referenced":
                shard = memory.shard.index
                for segment in range(len(memory.shard.segments)):
                    gradient = self._intake.gradient(shard, segment)
                    if gradient is not None:
                        kept.held[shard, segment] = gradient
                        self._intake.release(shard, segment)
        return kept

    def finish(self) -> None:
        """The update has run and was not left out: every parameter that got a gradient is one step older."""
        if self._applied.blocked:
            return
        for memory, flags in zip(self._memories, self._applied.has_gradient, strict=True):
            for segment, had in enumerate(flags):
                memory.steps[segment] += had

    def perform(self, task: Task) -> None:
        try:
            with self._device.computing() if self._computes(task) else nullcontext():
                self._perform[task.kind](task)
        except BaseException:
            # Whoever waits for a slot that this task would have freed must not wait for ever.
            self.break_off()
            raise

    def _computes(self, task: Task) -> bool:
        """Whether a task works on a device of its own, whose operations belong on the stream of compute."""
        return self._any_on_device if task.shard is None else self._memories[task.shard].route.on_device

    def break_off(self) -> None:
        """Let whoever waits for a buffer go on: the step has failed."""
        self._intake.break_off()
        self._staging.break_off()
        self._waiting.break_off()
        self._first_sums.break_off()

    @property
    def learning_rate(self) -> float:
        """Of this step's gradients."""
        return self._current.settings.lr

    @property
    def buffer_bytes(self) -> int:
        """Host buffers between memory and disk."""
        first = 0 if self._first_staging is None else self._first_staging.nbytes
        return self._staging.nbytes + self._waiting.nbytes + self._first_sums.nbytes + first

    def take_buffer(self) -> Tensor | None:
        """A staging buffer for use while no step is under way."""
        return self._first_staging

    def _chunk(self, shard: int, chunk: int) -> Chunk:
        return self._memories[shard].shard.chunks[chunk]

    def _place(self, task: Task) -> tuple[int, int, ShardMemory, Chunk]:
        assert task.shard is not None and task.chunk is not None
        memory = self._memories[task.shard]
        return task.shard, task.chunk, memory, memory.shard.chunks[task.chunk]

    # Gradients

    def _download(self, task: Task) -> None:
        """A gathered chunk arrives on the host: in the slot it was gathered in, where memory is one."""
        shard, number, memory, chunk = self._place(task)
        closed = self._intake.closed(task.micro_batch, shard, number)
        if closed.slot is None:
            return
        storage = DTYPES[chunk.dtype]
        in_place = memory.route.waiting == "memory" and not memory.route.accumulates
        waiting = self._in_memory(memory, chunk, self._current.number) if in_place else None
        if waiting is not None:
            source = closed.slot.view(storage)[: chunk.elements]
            self._device.copy(Lane.DOWNLOAD, waiting, source, closed.mark)
            self._intake.device_slots.give_back(closed.slot)
        elif self._device.shared_memory:
            self._in_hand[shard, number] = closed.slot
        else:
            slot = self._intake.host_slots.take()
            self._intake.will_return_host_slot(shard)
            target = slot.view(storage)[: chunk.elements]
            self._device.copy(Lane.DOWNLOAD, target, closed.slot.view(storage)[: chunk.elements], closed.mark)
            self._intake.device_slots.give_back(closed.slot)
            self._in_hand[shard, number] = slot

    def _read_gradient(self, task: Task) -> None:
        """The sum so far comes from disk."""
        shard, number, memory, _ = self._place(task)
        buffer = self._waiting.take()
        self._waiting.will_return()
        file = memory.gradient_files[self._current.number]
        file.read(number, buffer[: padded(file.record_bytes[number])])
        self._sums[shard, number] = (buffer, self._waiting)

    def _accumulate(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        closed = self._intake.closed(task.micro_batch, shard, number)
        summed = self._summed[shard, number]
        if memory.route.waiting == "disk":
            if (shard, number) not in self._sums:
                self._sums[shard, number] = (self._first_sums.take(), self._first_sums)
                self._first_sums.will_return()
            whole = self._sums[shard, number][0].view(torch.float32)[: chunk.elements]
        else:
            in_memory = self._in_memory(memory, chunk, self._current.number)
            assert in_memory is not None
            whole = in_memory
        sums = memory.slices(whole, chunk)
        slot = self._in_hand.pop((shard, number), None)
        arrived = None
        if slot is not None:
            arrived = memory.slices(slot.view(DTYPES[chunk.dtype])[: chunk.elements], chunk)
        arithmetic = self._arithmetics[shard]
        for index, part in enumerate(chunk.slices):
            if not closed.slices[index]:
                continue
            if arrived is not None:
                source = arrived[index]
            else:
                taken = self._intake.taken(task.micro_batch, shard, part.segment)
                source = taken[part.start : part.start + part.count]
            arithmetic.accumulate(sums[index], source, overwrite=not summed[index])
            summed[index] = True
        if slot is not None:
            self._intake.host_slots.give_back(slot)

    def _norm(self, task: Task) -> None:
        if task.shard is None:
            assert self._collected is not None
            self._collected.measure()
            return
        shard, number, memory, chunk = self._place(task)
        table = self._tables[shard, number]
        self._set_gradients(table, memory, chunk, self._whole_gradient(memory, chunk), self._current)
        self._arithmetics[shard].sum_of_squares(table)
        if memory.route.waiting == "disk" or memory.route.delayed:
            # The update finds them elsewhere, or later.
            table.release_gradients()
        if memory.route.waiting == "ring":
            slot = self._in_hand.pop((shard, number), None)
            if slot is not None:
                self._current.arrived[shard, number] = slot

    def _whole_gradient(self, memory: ShardMemory, chunk: Chunk) -> Tensor | None:
        """The chunk's gradient as it is at its norm; None where it is in autograd's tensors or there is none."""
        place = (memory.shard.index, chunk.index)
        if place in self._sums:
            return self._sums[place][0].view(torch.float32)[: chunk.elements]
        if place in self._in_hand:
            return self._in_hand[place].view(DTYPES[chunk.dtype])[: chunk.elements]
        return self._in_memory(memory, chunk, self._current.number)

    def _set_gradients(
        self, table: Table, memory: ShardMemory, chunk: Chunk, whole: Tensor | None, gradients: GradientSet
    ) -> None:
        shard = memory.shard.index
        has = gradients.has_gradient[shard]
        found: list[Tensor | None]
        if memory.route.gradients != "referenced":
            assert whole is not None or not any(has[part.segment] for part in chunk.slices)
            slices = [] if whole is None else memory.slices(whole, chunk)
            found = [
                s if has[part.segment] else None for part, s in zip(chunk.slices, slices, strict=bool(slices))
            ]
            found = found or [None] * len(chunk.slices)
        else:
            held, segments = gradients.held, memory.shard.segments
            found = []
            for part in chunk.slices:
                gradient = None
                if has[part.segment]:
                    gradient = (
                        self._intake.gradient(shard, part.segment)
                        if held is None
                        else held.get((shard, part.segment))
                    )
                if gradient is not None and part.count != segments[part.segment].numel:
                    gradient = gradient.view(-1)[part.start : part.start + part.count]
                found.append(gradient)
        table.set_gradients(found)

    @staticmethod
    def _in_memory(memory: ShardMemory, chunk: Chunk, number: int) -> Tensor | None:
        gradients = memory.regions[chunk.region].gradients
        return memory.of_chunk(gradients[number], chunk) if gradients else None

    def _write_gradient(self, task: Task) -> None:
        """What came, or the sum, goes to disk to wait for the update."""
        shard, number, memory, _ = self._place(task)
        file = memory.gradient_files[self._current.number]
        size = padded(file.record_bytes[number])
        if (shard, number) in self._sums:
            buffer, pool = self._sums.pop((shard, number))
            file.write(number, buffer[:size])
            pool.give_back(buffer)
        elif (shard, number) in self._in_hand:
            slot = self._in_hand.pop((shard, number))
            file.write(number, slot[:size])
            self._intake.host_slots.give_back(slot)

    # The verdict

    def _judge(self, task: Task) -> None:
        current = self._current
        by_arithmetic: dict[int, list[Table]] = {}
        for (shard, _), table in self._tables.items():
            by_arithmetic.setdefault(id(self._arithmetics[shard]), []).append(table)
        if self._collected is not None:
            by_arithmetic.setdefault(id(self._collected.arithmetic), []).append(self._collected.table)
        arithmetics = {id(arithmetic): arithmetic for arithmetic in self._arithmetics}
        total = math.fsum(
            value for key, tables in by_arithmetic.items() for value in arithmetics[key].read_partials(tables)
        )
        if math.isfinite(total):
            norm = math.sqrt(total) * current.unscale
            if self._clipping > 0:
                current.scale = current.unscale * min(1.0, self._clipping / (norm + NORM_EPSILON))
            self.verdict = Verdict(norm, finite=True)
        else:
            current.blocked = True
            self.verdict = Verdict(total, finite=False, offender=self._offender(), torn=current.written)

    def _offender(self) -> str | None:
        first = min(self._not_finite(), default=None)
        return None if first is None else self._memories[first[0]].shard.segments[first[1]].name

    def _not_finite(self) -> Iterator[tuple[int, int]]:
        """Shard and segment of every piece whose sum of squares is not finite."""
        for (shard, number), table in self._tables.items():
            for index, part in enumerate(self._chunk(shard, number).slices):
                if not all(map(math.isfinite, table.piece_partials(index).tolist())):
                    yield shard, part.segment
        if self._collected is not None:
            yield from self._collected.not_finite()

    # The update

    def _read_state(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        if self._applied.blocked:
            return
        buffer = self._staging.take()
        self._staging.will_return()
        for kind, place in memory.stage(chunk, buffer).items():
            memory.files[kind].read(number, place)
        waiting = None
        if memory.gradient_files:
            file = memory.gradient_files[self._applied.number]
            waiting = self._waiting.take()
            self._waiting.will_return()
            file.read(number, waiting[: padded(file.record_bytes[number])])
        self._staged[shard, number] = _Staged(buffer, waiting)

    def _update(self, task: Task) -> None:
        if task.shard is None:
            self._update_collected()
            return
        shard, number, memory, chunk = self._place(task)
        table, applied = self._tables[shard, number], self._applied
        arithmetic = self._arithmetics[shard]
        staged = self._staged.get((shard, number))
        if applied is self._current and self.verdict is None and not applied.blocked:
            applied.blocked = not math.isfinite(math.fsum(arithmetic.read_partials([table])))
        if not applied.blocked:
            applied.written = True
            if staged is not None:
                staged.updated = True
                table.set_state(memory.views(chunk, memory.stage(chunk, staged.state)))
            if staged is not None and staged.gradient is not None:
                whole = staged.gradient.view(memory.waiting_dtype(chunk))[: chunk.elements]
                self._set_gradients(table, memory, chunk, whole, applied)
            elif memory.route.delayed:
                self._set_gradients(
                    table, memory, chunk, self._in_memory(memory, chunk, applied.number), applied
                )
            table.set_steps([memory.steps[part.segment] + 1 for part in chunk.slices])
            arithmetic.update(table, applied.settings, applied.scale)
        table.release_gradients()
        if staged is not None and staged.gradient is not None:
            self._waiting.give_back(staged.gradient)
        slot = applied.arrived.pop((shard, number), None)
        if slot is not None:
            self._intake.host_slots.give_back(slot)
        if memory.route.gradients == "referenced":
            for part in chunk.slices:
                self._unread[shard][part.segment] -= 1
                if not self._unread[shard][part.segment]:
                    if applied.held is None:
                        self._intake.release(shard, part.segment)
                    else:
                        applied.held.pop((shard, part.segment), None)

    def _update_collected(self) -> None:
        collected, applied = self._collected, self._applied
        assert collected is not None
        if self.verdict is None:
            applied.written |= collected.measure_and_update(applied.settings, applied.scale)
        elif not applied.blocked:
            applied.written = True
            collected.update(applied.settings, applied.scale)
        collected.release()

    def _write_state(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        staged = self._staged.pop((shard, number), None)
        if staged is None:
            return
        if staged.updated:
            for kind, place in memory.stage(chunk, staged.state).items():
                memory.files[kind].write(number, place)
        self._staging.give_back(staged.state)

    def _upload(self, task: Task) -> None:
        shard, _, memory, chunk = self._place(task)
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
            self._device.copy(Lane.UPLOAD, target, source, self._intake.over_marks.get(shard))


def _slice_counts(memory: ShardMemory) -> list[int]:
    """Into how many slices each parameter of a shard is cut."""
    counts = [0] * len(memory.shard.segments)
    for chunk in memory.shard.chunks:
        for part in chunk.slices:
            counts[part.segment] += 1
    return counts
