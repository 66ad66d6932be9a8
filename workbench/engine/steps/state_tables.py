"""The tables by which the arithmetic of a tier reads gradients and updates state: one a chunk, one for all collected
units.

Invariant: a table's gradients are set by the task that measures or applies them, and by nobody else meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic, Table
from workbench.engine.gradients.collected import CollectedUnits
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.gradients.gradient_set import GradientSet, NotFinite
from workbench.engine.storage.unit_memory import UnitMemory
from workbench.layout import Chunk
from workbench.timeline import Task


class StateTables:
    """The tables of `memories`, and the arithmetic of each: `on_host` where the state is in host memory or on disk,
    `on_device` where it is on a device of its own. `staging` is a buffer for chunks whose state is on disk."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        intake: GradientHooks,
        on_host: Arithmetic,
        on_device: Arithmetic,
        staging: Tensor | None,
    ) -> None:
        self._memories = memories
        self._intake = intake
        self._arithmetics = [on_device if m.route.on_device else on_host for m in memories]
        self._tables: dict[tuple[int, int], Table] = {}
        for memory, arithmetic in zip(memories, self._arithmetics, strict=True):
            for chunk in () if memory.route.collected else memory.unit.chunks:
                staged = {} if staging is None or not memory.files else memory.stage(chunk, staging)
                table = arithmetic.table(memory.views(chunk, staged))
                self._tables[memory.unit.index, chunk.index] = table
        collected = [memory for memory in memories if memory.route.collected]
        self.collected: CollectedUnits | None = None
        if collected:
            # Of one kind: in one memory or on a device of its own, all state that compute updates is in one tier.
            self.collected = CollectedUnits(collected, intake, self._arithmetics[collected[0].unit.index])

    def place(self, task: Task) -> tuple[UnitMemory, Chunk]:
        """What a task is about."""
        assert task.unit is not None and task.chunk is not None
        memory = self._memories[task.unit]
        return memory, memory.unit.chunks[task.chunk]

    def of(self, memory: UnitMemory, chunk: Chunk) -> tuple[Arithmetic, Table]:
        """A chunk's arithmetic and table."""
        unit = memory.unit.index
        return self._arithmetics[unit], self._tables[unit, chunk.index]

    def set_gradients(
        self, memory: UnitMemory, chunk: Chunk, whole: Tensor | None, gradients: GradientSet
    ) -> None:
        """Give a chunk's table its gradients: `whole` cut into slices, or autograd's own where they are referenced."""
        _, table = self.of(memory, chunk)
        has = gradients.has_gradient[memory.unit.index]
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
        self, memory: UnitMemory, chunk: Chunk, index: int, gradients: GradientSet
    ) -> Tensor | None:
        unit, part = memory.unit, chunk.slices[index]
        if not gradients.has_gradient[unit.index][part.segment]:
            return None
        if gradients.held is None:
            gradient = self._intake.gradient(unit.index, part.segment)
        else:
            gradient = gradients.held.get((unit.index, part.segment))
        if gradient is None or part.count == unit.segments[part.segment].numel:
            return gradient
        return gradient.view(-1)[part.start : part.start + part.count]

    def sum_of_squares(self) -> float:
        """Of all gradients that were measured, whatever the order in which they were; not finite where one of them is
        not."""
        by_arithmetic: dict[int, list[Table]] = {}
        for (unit, _), table in self._tables.items():
            by_arithmetic.setdefault(id(self._arithmetics[unit]), []).append(table)
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
            parameter=self._memories[first].unit.segments[segment].name,
            unit=self._memories[first].unit.name,
            met_in=self._memories[last].unit.name,
            units=len({unit for unit, _ in found}),
            of=len(self._memories),
        )

    def _not_finite(self) -> Iterator[tuple[int, int]]:
        """Unit and segment of every piece whose sum of squares is not finite."""
        for (unit, number), table in self._tables.items():
            for index, part in enumerate(self._memories[unit].unit.chunks[number].slices):
                if not all(map(math.isfinite, table.piece_partials(index).tolist())):
                    yield unit, part.segment
        if self.collected is not None:
            yield from self.collected.not_finite()
