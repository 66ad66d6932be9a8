"""Tables of pointers: by them a tier's arithmetic finds the gradients and the state that an update reads and writes.

There is one table a chunk, and one for all units whose gradients are found after backward.

Invariant: a table's gradients are set by the task that measures or applies them, and by nobody else meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from workbench.engine.arithmetic import Arithmetic, Table
from workbench.engine.device_arithmetic import DeviceArithmetic, DeviceTable, Verdict
from workbench.engine.grad_hooks import GradientHooks
from workbench.engine.report import GradCheck, NotFinite
from workbench.engine.unit_memory import UnitMemory
from workbench.layout import Chunk, Segment, Slice
from workbench.optimizer import AdamW
from workbench.timeline import Task


@dataclass
class GradientSet:
    """The gradients of one step, from their arrival to the update by them.

    `number`: which of the engine's buffers they wait in. `scale`: what an update multiplies them by; `unscale`: what
    turns their sum into the step's mean. `in_autograd`: autograd's own tensors, by (unit, segment), where the next
    backward comes before their update. `arrived`: host slots by (unit, chunk) of those that wait in a ring. `blocked`:
    they are not to be applied. `written`: something was updated by them. `check`: None until it is known.
    `summed`: the parameters, by (unit, segment), of which a sum over micro-batches has begun; of units updated after
    backward. `verdict`: what the device has decided by itself, where all state is there; the check follows from it.
    """

    number: int
    settings: AdamW
    has_gradient: list[list[bool]] = field(default_factory=list)
    unscale: float = 1.0
    scale: float = 1.0
    in_autograd: dict[tuple[int, int], Tensor] | None = None
    arrived: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    blocked: bool = False
    written: bool = False
    check: GradCheck | None = None
    summed: set[tuple[int, int]] = field(default_factory=set)
    verdict: Verdict | None = None

    @property
    def as_it_is(self) -> bool:
        """The gradients, which are checked, are applied as they are: all finite, and not clipped."""
        return not self.blocked and self.scale == self.unscale


class StatePointers:
    """The tables of `memories`, and the arithmetic of each: `on_host` where the state is in host memory or on disk,
    `on_device` where it is on a device of its own. `staging` is a buffer for chunks whose state is on disk."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        grad_hooks: GradientHooks,
        on_host: Arithmetic,
        on_device: DeviceArithmetic,
        staging: Tensor | None,
    ) -> None:
        self._memories = memories
        self._grad_hooks = grad_hooks
        self._arithmetics: list[Arithmetic] = [on_device if m.route.on_device else on_host for m in memories]
        self._tables: dict[tuple[int, int], Table] = {}
        for memory, arithmetic in zip(memories, self._arithmetics, strict=True):
            for chunk in () if memory.route.after_backward else memory.chunks:
                staged = {} if staging is None or not memory.files else memory.stage(chunk, staging)
                table = arithmetic.table(memory.views(chunk, staged))
                self._tables[memory.unit.index, chunk.index] = table
        found_late = [memory for memory in memories if memory.route.after_backward]
        self.after_backward: UnitsAfterBackward | None = None
        if found_late:
            # Of one kind: in one memory or on a device of its own, all state that compute updates is in one tier.
            if found_late[0].route.on_device:
                self.after_backward = UnitsOnDevice(
                    found_late, grad_hooks, on_device, decides=len(found_late) == len(memories)
                )
            else:
                self.after_backward = UnitsAfterBackward(found_late, grad_hooks, on_host)

    def place(self, task: Task) -> tuple[UnitMemory, Chunk]:
        """Return the unit and the chunk of a task: this rank's part of it, where ranks share it."""
        assert task.unit is not None and task.chunk is not None
        memory = self._memories[task.unit]
        return memory, memory.chunks[task.chunk]

    def of(self, memory: UnitMemory, chunk: Chunk) -> tuple[Arithmetic, Table]:
        """Return a chunk's arithmetic and table."""
        unit = memory.unit.index
        return self._arithmetics[unit], self._tables[unit, chunk.index]

    def set_gradients(
        self, memory: UnitMemory, chunk: Chunk, whole: Tensor | None, gradients: GradientSet
    ) -> None:
        """Give a chunk's table its gradients: `whole` cut into slices, or autograd's own where they stay there."""
        _, table = self.of(memory, chunk)
        has = gradients.has_gradient[memory.unit.index]
        if memory.route.gradients == "in_autograd":
            table.set_gradients([self._slice(memory, part, gradients) for part in chunk.slices])
            return
        assert whole is not None or not any(has[part.segment] for part in chunk.slices)
        if whole is None:
            table.set_gradients([None] * len(chunk.slices))
            return
        slices = memory.slices(whole, chunk)
        table.set_gradients(
            [part if has[s.segment] else None for s, part in zip(chunk.slices, slices, strict=True)]
        )

    def _slice(self, memory: UnitMemory, part: Slice, gradients: GradientSet) -> Tensor | None:
        unit = memory.unit.index
        if not gradients.has_gradient[unit][part.segment]:
            return None
        if gradients.in_autograd is None:
            return _cut(memory, part, self._grad_hooks.gradient(unit, part.segment))
        return _cut(memory, part, gradients.in_autograd.get((unit, part.segment)))

    def partials(self) -> list[float]:
        """Return the partial sums of squares of all gradients that were measured; not finite where one of them is not.

        Their exact sum, `math.fsum`, does not depend on their order.
        """
        by_arithmetic: dict[int, list[Table]] = {}
        for (unit, _), table in self._tables.items():
            by_arithmetic.setdefault(id(self._arithmetics[unit]), []).append(table)
        arithmetics = {id(arithmetic): arithmetic for arithmetic in self._arithmetics}
        if self.after_backward is not None:
            by_arithmetic.setdefault(id(self.after_backward.arithmetic), []).append(self.after_backward.table)
        return [
            value for key, tables in by_arithmetic.items() for value in arithmetics[key].read_partials(tables)
        ]

    def not_finite(
        self, join: Callable[[set[tuple[int, int]]], set[tuple[int, int]]] | None = None
    ) -> NotFinite | None:
        """Return where gradients that were measured are not finite; None where all are. `join` adds other ranks' places
        to this one's."""
        here = set(self._not_finite())
        found = sorted(here if join is None else join(here))
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
        """Return unit and segment of every piece whose sum of squares is not finite."""
        for (unit, number), table in self._tables.items():
            yield from _not_finite_pieces(
                table, [(unit, part.segment) for part in self._memories[unit].chunks[number].slices]
            )
        late = self.after_backward
        if late is not None:
            yield from _not_finite_pieces(late.table, [(m.unit.index, s.segment) for m, s in late.pieces])


class UnitsAfterBackward:
    """All chunks of `memories`, whose gradients are found in autograd's tensors when backward has ended, as one table:
    their norm and their update are one call each.

    Invariant: gradients are autograd's until the end of their step's last backward, and nobody reads them after the
    update.
    """

    def __init__(
        self, memories: Sequence[UnitMemory], grad_hooks: GradientHooks, arithmetic: Arithmetic
    ) -> None:
        self._memories = memories
        self._grad_hooks = grad_hooks
        self.arithmetic = arithmetic
        self.pieces: list[tuple[UnitMemory, Slice]] = []
        views = []
        for memory in memories:
            for chunk in self._chunks(memory):
                self.pieces += [(memory, part) for part in chunk.slices]
                views += memory.views(chunk, {})
        self.table: Table = arithmetic.table(views)

    def _chunks(self, memory: UnitMemory) -> Iterable[Chunk]:
        return memory.unit.chunks

    def measure(self, gradients: GradientSet) -> None:
        """Find the gradients, and their sums of squares."""
        self._find_gradients()
        self.arithmetic.sum_of_squares(self.table)

    def update(self, gradients: GradientSet) -> None:
        """Update by the gradients: those that were measured where their check is known, else measured on the way."""
        self.table.set_steps([memory.steps[part.segment] + 1 for memory, part in self.pieces])
        self._apply(gradients)
        self.table.release_gradients()
        for memory in self._memories:
            for segment in range(len(memory.unit.segments)):
                self._grad_hooks.release(memory.unit.index, segment)

    def _apply(self, gradients: GradientSet) -> None:
        settings, scale = gradients.settings, gradients.scale
        if gradients.check is not None and not gradients.blocked:
            gradients.written = True
            self.arithmetic.update(self.table, settings, scale)
        elif gradients.check is None and gradients.blocked:
            # Some other unit's gradient is known not to be finite: the check needs the sums all the same.
            self.measure(gradients)
        elif gradients.check is None:
            self._find_gradients()
            gradients.written |= self.arithmetic.measure_and_update(self.table, settings, scale)

    def wrote(self) -> bool:
        """Return whether an update that measured on its way has written by gradients of its own that are finite, where
        that is not known before; waits for the device."""
        return False

    def _find_gradients(self) -> None:
        self.table.set_gradients([self._gradient(memory, part) for memory, part in self.pieces])

    def _gradient(self, memory: UnitMemory, part: Slice) -> Tensor | None:
        return _cut(memory, part, self._grad_hooks.gradient(memory.unit.index, part.segment))


class UnitsOnDevice(UnitsAfterBackward):
    """The same on a device of its own. Parameters are whole; sums over micro-batches are taken here, too.

    Where it `decides`, for all state is there, the device itself finds what is applied, and the host does not wait.
    """

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        grad_hooks: GradientHooks,
        arithmetic: DeviceArithmetic,
        *,
        decides: bool,
    ) -> None:
        super().__init__(memories, grad_hooks, arithmetic)
        self._on_device = arithmetic
        assert isinstance(self.table, DeviceTable)
        self._device_table = self.table
        self._decides = decides
        self._measured_on_the_way = False

    def _chunks(self, memory: UnitMemory) -> Iterable[Chunk]:
        return memory.whole_regions()

    def accumulate(self, gradients: GradientSet) -> None:
        """Add a micro-batch's gradients to the fp32 sums, where the engine sums."""
        sums: dict[bool, list[Tensor]] = {True: [], False: []}
        added: dict[bool, list[Tensor]] = {True: [], False: []}
        for memory in self._memories:
            if not memory.route.accumulates:
                continue
            for number, segment in enumerate(memory.unit.segments):
                place = (memory.unit.index, number)
                gradient = self._grad_hooks.gradient(*place)
                if gradient is not None:
                    begins = place not in gradients.summed
                    sums[begins].append(self._sum(memory, segment))
                    added[begins].append(gradient.view(-1))
                    gradients.summed.add(place)
                    self._grad_hooks.release(*place)
        for begins in (True, False):
            self._on_device.sum_up(sums[begins], added[begins], overwrite=begins)

    def decide(self, gradients: GradientSet, clipping: float) -> bool:
        """Let the device decide what is applied of the gradients that were measured; return False where it may not."""
        if self._decides and gradients.verdict is None:
            gradients.verdict = self._on_device.judge(self._device_table, gradients.unscale, clipping)
        return self._decides

    def check(self, gradients: GradientSet) -> GradCheck:
        """Return the check of gradients that the device has decided about; waits until their norm is known."""
        norm = self._device_table.read_norm()
        return GradCheck(norm * gradients.unscale, finite=math.isfinite(norm))

    def _apply(self, gradients: GradientSet) -> None:
        if self._decides and gradients.verdict is None:
            self.measure(gradients)
            self.decide(gradients, clipping=0.0)
        if gradients.verdict is not None:
            self._on_device.apply(self._device_table, gradients.settings, gradients.verdict)
            return
        self._measured_on_the_way = gradients.check is None and not gradients.blocked
        super()._apply(gradients)

    def wrote(self) -> bool:
        return self._measured_on_the_way and all(
            map(math.isfinite, self._on_device.read_partials([self._device_table]))
        )

    def _gradient(self, memory: UnitMemory, part: Slice) -> Tensor | None:
        if not memory.route.accumulates:
            return super()._gradient(memory, part)
        if not self._grad_hooks.has_gradient[memory.unit.index][part.segment]:
            return None
        whole = self._sum(memory, memory.unit.segments[part.segment])
        return whole[part.start : part.start + part.count]

    @staticmethod
    def _sum(memory: UnitMemory, segment: Segment) -> Tensor:
        return memory.of_segment(memory.regions[segment.region].gradients[0], segment)


def _cut(memory: UnitMemory, part: Slice, gradient: Tensor | None) -> Tensor | None:
    """Return the slice `part` of a parameter's gradient, which is returned as it is where the slice is all of it."""
    if gradient is None or part.count == memory.unit.segments[part.segment].numel:
        return gradient
    return gradient.view(-1)[part.start : part.start + part.count]


def _not_finite_pieces(table: Table, places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for index, place in enumerate(places):
        if not all(map(math.isfinite, table.piece_partials(index).tolist())):
            yield place
