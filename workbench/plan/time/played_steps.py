"""The tasks of two steps, one after the other, and what each waits for: what a step leaves to the next one is in the
second.

How long they take is not in here, so one of these serves every plan that differs in rates and sizes only.

Invariant: tasks, their order and what they wait for come from `build_timeline`; only fetches of streamed weights, which
no step's timeline has, are added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from workbench.plan.time.coarse import CoarseLayout
from workbench.plan.time.simulation import Order
from workbench.timeline import Kind, Lane, Overlap, StepShape, Task, Timeline, UnitFlow, build_timeline

T = TypeVar("T")
LANES = tuple(Lane)
AHEAD = 2
"""Units that are fetched while another is in use (see engine/blocks/weight_prefetcher.py)."""


@dataclass(frozen=True)
class Fetch:
    """A streamed unit's weights on their way into a slot: read from the disk, or copied up."""

    unit: int
    lane: Lane


Piece = Task | Fetch
"""What takes time."""


@dataclass(frozen=True)
class StreamedUnits:
    """The units whose weights are fetched, in forward order; and those of them that come from the disk."""

    units: tuple[int, ...] = ()
    from_disk: frozenset[int] = frozenset()


class PlayedSteps:
    """A first step of one micro-batch and a second of `micro_batches`.

    `pieces`: all that take a time of their own, None for what takes none; task `n` of `order` takes as long as
    `pieces[order.alike[n]]`. `begin`, `end`: the second step's first task and the one at which its backward has ended;
    `backward_ends`: those of its micro-batches. `forwards`: the second step's in its first micro-batch. `middle`: tasks
    of its second one, without what is fetched. `written_state` and `written_gradients`: bytes to the disk tier, of a
    step and of a micro-batch.
    """

    def __init__(
        self,
        coarse: CoarseLayout,
        flows: tuple[UnitFlow, ...],
        micro_batches: int,
        overlap: Overlap,
        limits: bool,
        streamed: StreamedUnits,
    ) -> None:
        layout = coarse.layout
        self._alike = coarse.alike
        self._units = len(layout.units)
        self._streamed = streamed
        self._serial = overlap == "serial"
        self._delayed = overlap == "delayed"
        self._lanes: list[int] = []
        self._waits: list[tuple[int, ...]] = []
        self._pieces: list[int] = []
        self._numbers: dict[object, int] = {}
        self.pieces: list[Piece | None] = []
        before, timeline = (
            build_timeline(layout, StepShape(count, flows, global_quantity=limits, overlap=overlap))
            for count in (1, micro_batches)
        )
        first = self._append(before, {}, ())
        self.begin = first[before.find(Kind.BACKWARD, 0)] + 1
        last = self._append(timeline, *self._after(before, first))
        self.backward_ends = [last[timeline.find(Kind.BACKWARD, m)] for m in range(micro_batches)]
        self.end = self.backward_ends[-1]
        self.order = Order(len(LANES), self._lanes, self._waits, self._pieces)
        tasks = timeline.tasks
        self.forwards = [last[t.index] for t in tasks if t.kind is Kind.FORWARD and t.micro_batch == 0]
        self.middle = [last[t.index] for t in tasks if t.micro_batch == 1]
        self.written_state = sum(t.bytes for t in tasks if t.kind is Kind.WRITE_STATE)
        self.written_gradients = sum(
            t.bytes for t in tasks if t.kind is Kind.WRITE_GRADIENT and t.micro_batch == 0
        )

    def _append(
        self, timeline: Timeline, before: dict[int, tuple[int, ...]], all_before: tuple[int, ...]
    ) -> list[int]:
        """Add one step. `before`: what a unit's first forward waits for; `all_before`: what the first backward does.
        The numbers of its tasks."""
        numbers: list[int] = []
        ends: dict[tuple[Kind, int, int], int] = {}
        previous: int | None = None
        last_forward = timeline.find(Kind.FORWARD, 0, self._units - 1)
        ready = timeline.ready if self._delayed else ()
        for task in timeline.tasks:
            waits = [numbers[earlier] for earlier in task.waits]
            if task.unit is not None and task.kind in (Kind.FORWARD, Kind.BACKWARD):
                unit = task.unit
                if task.kind is Kind.FORWARD and task.micro_batch == 0:
                    waits += before.get(unit, ())
                    if ready:
                        waits += [numbers[index] for index in ready[unit]]
                if unit in self._streamed.units and (task.kind, task.micro_batch, unit) not in ends:
                    waits += self._fetch(task, unit, before, ends)
            if (task.kind is Kind.BACKWARD and task.waits == (last_forward,)) or (
                not task.waits and task.lane is not Lane.COMPUTE
            ):
                waits += all_before
            if self._serial and task.lane is not Lane.COMPUTE:
                waits += [] if previous is None else [previous]
                previous = len(self._lanes)
            numbers.append(self._add(task, waits))
            if task.unit is not None and task.kind in (Kind.FORWARD, Kind.BACKWARD):
                ends[task.kind, task.micro_batch, task.unit] = numbers[-1]
        return numbers

    def _after(
        self, timeline: Timeline, numbers: list[int]
    ) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
        """What the step after the one with these task numbers waits for."""
        ends = [
            number for number, followers in zip(numbers, timeline.followers, strict=True) if not followers
        ]
        last = (self._add(None, ends),)
        if self._serial or self._delayed:
            return dict.fromkeys(range(self._units), last), last
        ready = {
            unit: tuple(numbers[index] for index in indices) for unit, indices in enumerate(timeline.ready)
        }
        return ready, last

    def _fetch(
        self,
        task: Task,
        unit: int,
        before: dict[int, tuple[int, ...]],
        ends: dict[tuple[Kind, int, int], int],
    ) -> list[int]:
        """A streamed unit's weights come into slots ahead of `task`; the last of forward are there in backward."""
        streamed = self._streamed.units
        place = streamed.index(unit)
        order = place if task.kind is Kind.FORWARD else len(streamed) - 1 - place
        if task.kind is Kind.BACKWARD and order < AHEAD:
            return []
        waits = list(before.get(unit, ())) if task.kind is Kind.FORWARD and task.micro_batch == 0 else []
        if order >= AHEAD:
            earlier = streamed[place - AHEAD if task.kind is Kind.FORWARD else place + AHEAD]
            waits.append(ends[task.kind, task.micro_batch, earlier])
        elif task.micro_batch:
            waits.append(ends[Kind.BACKWARD, task.micro_batch - 1, streamed[0]])
        if unit in self._streamed.from_disk:
            waits = [self._add(Fetch(unit, Lane.READ), waits)]
        return [self._add(Fetch(unit, Lane.UPLOAD), waits)]

    def _add(self, piece: Piece | None, waits: Sequence[int]) -> int:
        self._lanes.append(LANES.index(Lane.COMPUTE if piece is None else piece.lane))
        self._waits.append(tuple(dict.fromkeys(waits)))
        self._pieces.append(self._number_of(piece))
        return len(self._lanes) - 1

    def _number_of(self, piece: Piece | None) -> int:
        """Of one like it: a task takes the same in every micro-batch, in both steps, and for a unit like another."""
        like: object = None
        if piece is not None:
            unit = None if piece.unit is None else self._alike[piece.unit]
            task = (piece.kind, piece.chunk, piece.bytes) if isinstance(piece, Task) else piece.lane
            like = (unit, task)
        number = self._numbers.setdefault(like, len(self.pieces))
        if number == len(self.pieces):
            self.pieces.append(piece)
        return number


class SameObject(Generic[T]):
    """A large value as the key of a cache, by identity: hashing its thousands of parameters would take longer."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def played_steps(
    coarse: CoarseLayout,
    flows: tuple[UnitFlow, ...],
    micro_batches: int,
    overlap: Overlap,
    limits: bool,
    streamed: StreamedUnits,
) -> PlayedSteps:
    """As `PlayedSteps`, kept for the next time. `limits`: the update needs a global quantity."""
    return _kept(SameObject(coarse), flows, micro_batches, overlap, limits, streamed)


@lru_cache(maxsize=256)
def _kept(
    coarse: SameObject[CoarseLayout],
    flows: tuple[UnitFlow, ...],
    micro_batches: int,
    overlap: Overlap,
    limits: bool,
    streamed: StreamedUnits,
) -> PlayedSteps:
    return PlayedSteps(coarse.value, flows, micro_batches, overlap, limits, streamed)
