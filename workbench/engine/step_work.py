"""What each task of a step does: gradients down, their sum and norm, the verdict, the update, weights up.

Which thread calls is the execution's business; what is right to do, and on which buffer, is decided here.

Invariant: nothing is written to a shard for a step whose verdict is not finite. Where updates run before the verdict
(no global quantity is needed), nothing is written from the first chunk on that is not finite, and the step is `torn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from workbench.engine.arithmetic import Arithmetic, Table
from workbench.engine.device import Device
from workbench.engine.gradients import GradientIntake
from workbench.engine.memory import ShardMemory
from workbench.layout import Chunk
from workbench.optimizer.settings import AdamW
from workbench.timeline import Kind, Lane, Task

NORM_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6


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


class StepWork:
    """Performs the tasks of one step after the other on the shards' memories."""

    def __init__(
        self,
        memories: Sequence[ShardMemory],
        intake: GradientIntake,
        device: Device,
        arithmetic: Arithmetic,
        gradient_clipping: float,
    ) -> None:
        self._memories = memories
        self._intake = intake
        self._device = device
        self._arithmetic = arithmetic
        self._clipping = gradient_clipping
        self._tables: dict[tuple[int, int], Table] = {
            (m.shard.index, chunk.index): arithmetic.table(m.views(chunk))
            for m in memories
            for chunk in m.shard.chunks
        }
        self._staged: dict[tuple[int, int, int], Tensor] = {}
        self._summed: dict[tuple[int, int], list[bool]] = {}
        self._unread: list[list[int]] = []
        self._settings = AdamW()
        self._unscale = 1.0
        self._scale = 1.0
        self._written = False
        self._blocked = False
        self.verdict: Verdict | None = None
        self._perform = {
            Kind.DOWNLOAD: self._download,
            Kind.ACCUMULATE: self._accumulate,
            Kind.NORM: self._norm,
            Kind.VERDICT: self._judge,
            Kind.UPDATE: self._update,
            Kind.UPLOAD: self._upload,
        }

    def begin(self, settings: AdamW) -> None:
        """Start a step that updates with `settings`."""
        self._settings = replace(settings)
        self._summed = {place: [False] * len(self._chunk(*place).slices) for place in self._tables}
        self._unread = [[0] * len(m.shard.segments) for m in self._memories]
        for memory in self._memories:
            for chunk in memory.shard.chunks:
                for part in chunk.slices:
                    self._unread[memory.shard.index][part.segment] += 1
        self._written = self._blocked = False
        self.verdict = None

    def set_unscale(self, unscale: float) -> None:
        """What turns the sum over micro-batches into the step's mean; known before the first update."""
        self._unscale = self._scale = unscale

    def perform(self, task: Task) -> None:
        try:
            self._perform[task.kind](task)
        except BaseException:
            # Whoever waits for a slot that this task would have freed must not wait for ever.
            self._intake.break_off()
            raise

    def _chunk(self, shard: int, chunk: int) -> Chunk:
        return self._memories[shard].shard.chunks[chunk]

    def _place(self, task: Task) -> tuple[int, int, ShardMemory, Chunk]:
        assert task.shard is not None and task.chunk is not None
        memory = self._memories[task.shard]
        return task.shard, task.chunk, memory, memory.shard.chunks[task.chunk]

    def _download(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        closed = self._intake.closed(task.micro_batch, shard, number)
        if closed.slot is None:
            return
        region = memory.regions[chunk.region]
        source = closed.slot.view(region.weights.dtype)[: chunk.elements]
        if self._intake.accumulates:
            staging = self._intake.host_slots.take()
            self._intake.host_slots.will_return()
            self._staged[task.micro_batch, shard, number] = staging
            target = staging.view(region.weights.dtype)[: chunk.elements]
        else:
            assert region.gradient is not None
            target = memory.of_chunk(region.gradient, chunk)
        self._device.copy(Lane.DOWNLOAD, target, source, closed.mark)
        self._intake.device_slots.give_back(closed.slot)

    def _accumulate(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        closed = self._intake.closed(task.micro_batch, shard, number)
        region = memory.regions[chunk.region]
        assert region.gradient is not None
        sums = memory.slices(region.gradient, chunk)
        summed = self._summed[shard, number]
        staging = self._staged.pop((task.micro_batch, shard, number), None)
        arrived = None if staging is None else staging.view(region.weights.dtype)[: chunk.elements]
        for index, part in enumerate(chunk.slices):
            if not closed.slices[index]:
                continue
            if arrived is not None:
                at = memory.shard.segments[part.segment].offset + part.start - chunk.start
                source = arrived[at : at + part.count]
            else:
                whole = self._intake.taken(task.micro_batch, shard, part.segment)
                assert whole is not None
                source = whole[part.start : part.start + part.count]
            self._arithmetic.accumulate(sums[index], source, overwrite=not summed[index])
            summed[index] = True
        if staging is not None:
            self._intake.host_slots.give_back(staging)

    def _norm(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        table = self._tables[shard, number]
        waiting = memory.regions[chunk.region].gradient
        views = None if waiting is None else memory.slices(waiting, chunk)
        for index, part in enumerate(chunk.slices):
            gradient: Tensor | None = None
            if self._intake.has_gradient[shard][part.segment]:
                if views is not None:
                    gradient = views[index]
                else:
                    whole = self._intake.gradient(shard, part.segment)
                    gradient = None if whole is None else whole[part.start : part.start + part.count]
            table.set_gradient(index, gradient)
        self._arithmetic.sum_of_squares(table)

    def _judge(self, task: Task) -> None:
        partials = self._arithmetic.read_partials(self._tables.values())
        total = math.fsum(partials)
        if math.isfinite(total):
            norm = math.sqrt(total) * self._unscale
            if self._clipping > 0:
                self._scale = self._unscale * min(1.0, self._clipping / (norm + NORM_EPSILON))
            self.verdict = Verdict(norm, finite=True)
        else:
            self._blocked = True
            self.verdict = Verdict(total, finite=False, offender=self._offender(), torn=self._written)

    def _offender(self) -> str | None:
        for (shard, number), table in self._tables.items():
            for index, part in enumerate(self._chunk(shard, number).slices):
                if not all(map(math.isfinite, table.piece_partials(index).tolist())):
                    return self._memories[shard].shard.segments[part.segment].name
        return None

    def _update(self, task: Task) -> None:
        shard, number, memory, chunk = self._place(task)
        table = self._tables[shard, number]
        if self.verdict is None and not self._blocked:
            self._blocked = not math.isfinite(math.fsum(self._arithmetic.read_partials([table])))
        if not self._blocked:
            self._written = True
            for index, part in enumerate(chunk.slices):
                table.set_step(index, memory.steps[part.segment] + 1)
            self._arithmetic.update(table, self._settings, self._scale)
        for index, part in enumerate(chunk.slices):
            table.set_gradient(index, None)
            self._unread[shard][part.segment] -= 1
            if self._intake.referenced and not self._unread[shard][part.segment]:
                self._intake.release(shard, part.segment)

    def _upload(self, task: Task) -> None:
        shard, _, memory, chunk = self._place(task)
        if self._blocked:
            return
        region = memory.regions[chunk.region]
        source, target = memory.of_chunk(region.emitted, chunk), memory.of_chunk(region.weights, chunk)
        self._device.copy(Lane.UPLOAD, target, source, self._intake.over_marks.get(shard))

    @property
    def learning_rate(self) -> float:
        """That the step updates with."""
        return self._settings.lr

    def finish(self) -> None:
        """The step is over and was not skipped: every parameter that got a gradient is one step older."""
        for memory, flags in zip(self._memories, self._intake.has_gradient, strict=True):
            for segment, had in enumerate(flags):
                memory.steps[segment] += had
