"""The tables by which the arithmetic of a tier reads gradients and updates state: one a chunk, one for all collected
shards.

Invariant: a table's gradients are set by the task that measures or applies them, and by nobody else meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic, Table
from workbench.engine.gradients.arrival import GradientIntake
from workbench.engine.gradients.collected import CollectedShards
from workbench.engine.gradients.gradient_set import GradientSet, NotFinite
from workbench.engine.storage.shard_memory import ShardMemory
from workbench.layout import Chunk
from workbench.timeline import Task


class StateTables:
    """The tables of `memories`, and the arithmetic of each: `on_host` where the state is in host memory or on disk,
    `on_device` where it is on a device of its own. `staging` is a buffer for chunks whose state is on disk."""

    def __init__(
        self,
        memories: Sequence[ShardMemory],
        intake: GradientIntake,
        on_host: Arithmetic,
        on_device: Arithmetic,
        staging: Tensor | None,
    ) -> None:
        self._memories = memories
        self._intake = intake
        self._arithmetics = [on_device if m.route.on_device else on_host for m in memories]
        self._tables: dict[tuple[int, int], Table] = {}
        for memory, arithmetic in zip(memories, self._arithmetics, strict=True):
            for chunk in () if memory.route.collected else memory.shard.chunks:
                staged = {} if staging is None or not memory.files else memory.stage(chunk, staging)
                table = arithmetic.table(memory.views(chunk, staged))
                self._tables[memory.shard.index, chunk.index] = table
        collected = [memory for memory in memories if memory.route.collected]
        self.collected: CollectedShards | None = None
        if collected:
            # Of one kind: in one memory or on a device of its own, all state that compute updates is in one tier.
            self.collected = CollectedShards(collected, intake, self._arithmetics[collected[0].shard.index])

    def place(self, task: Task) -> tuple[ShardMemory, Chunk]:
        """What a task is about."""
        assert task.shard is not None and task.chunk is not None
        memory = self._memories[task.shard]
        return memory, memory.shard.chunks[task.chunk]

    def of(self, memory: ShardMemory, chunk: Chunk) -> tuple[Arithmetic, Table]:
        """A chunk's arithmetic and table."""
        shard = memory.shard.index
        return self._arithmetics[shard], self._tables[shard, chunk.index]

    def set_gradients(
        self, memory: ShardMemory, chunk: Chunk, whole: Tensor | None, gradients: GradientSet
    ) -> None:
        """Give a chunk's table its gradients: `whole` cut into slices, or autograd's own where they are referenced."""
        _, table = self.of(memory, chunk)
        has = gradients.has_gradient[memory.shard.index]
        if memory.route.gradients == "referenced":
            table.set_gradients(
                [self._referenced(memory, chunk, i, gradients) for i in range(len(chunk.slices))]
            )
            return
        assert whole is not None or not any(has[part.segment] for part in chunk.slices)
        if whole is None:
            table.set_gradients([None] * len(chunk.slices))
            return
        slices = memory.slices(whole, chunk)
        table.set_gradients(
            [part if has[s.segment] else None for s, part in zip(chunk.slices, slices, strict=True)]
        )

    def _referenced(
        self, memory: ShardMemory, chunk: Chunk, index: int, gradients: GradientSet
    ) -> Tensor | None:
        shard, part = memory.shard, chunk.slices[index]
        if not gradients.has_gradient[shard.index][part.segment]:
            return None
        if gradients.held is None:
            gradient = self._intake.gradient(shard.index, part.segment)
        else:
            gradient = gradients.held.get((shard.index, part.segment))
        if gradient is None or part.count == shard.segments[part.segment].numel:
            return gradient
        return gradient.view(-1)[part.start : part.start + part.count]

    def sum_of_squares(self) -> float:
        """Of all gradients that were measured, whatever the order in which they were; not finite where one of them is
        not."""
        by_arithmetic: dict[int, list[Table]] = {}
        for (shard, _), table in self._tables.items():
            by_arithmetic.setdefault(id(self._arithmetics[shard]), []).append(table)
        arithmetics = {id(arithmetic): arithmetic for arithmetic in self._arithmetics}
        if self.collected is not None:
            by_arithmetic.setdefault(id(self.collected.arithmetic), []).append(self.collected.table)
        return math.fsum(
            value for key, tables in by_arithmetic.items() for value in arithmetics[key].read_partials(tables)
        )

    def not_finite(self) -> NotFinite | None:
        """Where gradients that were measured are not finite; None where all are."""
        found = sorted(set(self._not_finite()))
        if not found:
            return None
        (first, segment), (last, _) = found[0], found[-1]
        return NotFinite(
            parameter=self._memories[first].shard.segments[segment].name,
            shard=self._memories[first].shard.name,
            met_in=self._memories[last].shard.name,
            shards=len({shard for shard, _ in found}),
            of=len(self._memories),
        )

    def _not_finite(self) -> Iterator[tuple[int, int]]:
        """Shard and segment of every piece whose sum of squares is not finite."""
        for (shard, number), table in self._tables.items():
            for index, part in enumerate(self._memories[shard].shard.chunks[number].slices):
                if not all(map(math.isfinite, table.piece_partials(index).tolist())):
                    yield shard, part.segment
        if self.collected is not None:
            yield from self.collected.not_finite()
