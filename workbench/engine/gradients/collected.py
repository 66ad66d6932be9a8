"""Units whose gradients are found in autograd's tensors when backward has ended: their norm and their update, in one
call each.

Invariant: gradients are autograd's until the end of their step's last backward, and nobody reads them after the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic, Table
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.storage.unit_memory import UnitMemory
from workbench.layout import Slice
from workbench.optimizer.settings import AdamW


class CollectedUnits:
    """All chunks of `memories`, whose routes are collected, as one table."""

    def __init__(self, memories: Sequence[UnitMemory], intake: GradientHooks, arithmetic: Arithmetic) -> None:
        self._memories = memories
        self._intake = intake
        self.arithmetic = arithmetic
        self._places: list[tuple[UnitMemory, Slice]] = []
        views = []
        for memory in memories:
            for chunk in memory.unit.chunks:
                self._places += [(memory, part) for part in chunk.slices]
                views += memory.views(chunk, {})
        self.table: Table = arithmetic.table(views)

    def measure(self) -> None:
        """Find the gradients, and their sums of squares."""
        self._find_gradients()
        self.arithmetic.sum_of_squares(self.table)

    def update(self, settings: AdamW, scale: float) -> None:
        """Update by the gradients that were measured, each multiplied by `scale`."""
        self._count_steps()
        self.arithmetic.update(self.table, settings, scale)

    def measure_and_update(self, settings: AdamW, scale: float) -> bool:
        """Both, where the update needs to know nothing beforehand; whether anything may have been written."""
        self._find_gradients()
        self._count_steps()
        return self.arithmetic.measure_and_update(self.table, settings, scale)

    def release(self) -> None:
        """Let the gradients go: what comes next can use their memory."""
        self.table.release_gradients()
        for memory in self._memories:
            for segment in range(len(memory.unit.segments)):
                self._intake.release(memory.unit.index, segment)

    def not_finite(self) -> Iterator[tuple[int, int]]:
        """Unit and segment of every measured piece that is not finite."""
        for index, (memory, part) in enumerate(self._places):
            if not all(map(math.isfinite, self.table.piece_partials(index).tolist())):
                yield memory.unit.index, part.segment

    def _find_gradients(self) -> None:
        self.table.set_gradients([self._gradient(memory, part) for memory, part in self._places])

    def _count_steps(self) -> None:
        self.table.set_steps([memory.steps[part.segment] + 1 for memory, part in self._places])

    def _gradient(self, memory: UnitMemory, part: Slice) -> Tensor | None:
        gradient = self._intake.gradient(memory.unit.index, part.segment)
        if gradient is None or part.count == memory.unit.segments[part.segment].numel:
            return gradient
        return gradient.view(-1)[part.start : part.start + part.count]
