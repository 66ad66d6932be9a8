"""The tasks of two steps, one after the other, as a simulation of time plays them.

The second includes the work that the first leaves over. Runs of equal blocks are one unit here, for speed: a
plan of a hundred blocks has to be made while a key is pressed. What such a run moves and computes is the sum of its
blocks'; only how finely lanes overlap within it is lost. How long tasks take is not in here, so one `TwoSteps` serves
every plan that differs in rates and sizes only.

Invariant: elements and chunks are those of the engine's own layout; tasks, their order and what they wait for come from
`build_timeline`. Only fetches of streamed weights, which no step's timeline has, are added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.layout import (
    ALIGNMENT,
    Layout,
    ParameterSpec,
    Placement,
    StateFormat,
    Unit,
    UnitSpec,
    build_layout,
    place,
)
from workbench.plan.simulation import Order
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import ModelProfile
from workbench.sizes import UnitRoute, route_unit
from workbench.timeline import Kind, Lane, StepShape, Task, Timeline, UnitFlow, build_timeline

LANES = tuple(Lane)
AHEAD = 2
"""Units that are fetched while another is in use (see engine/blocks/weight_prefetcher.py)."""
PLAYED_MICRO_BATCHES = 3
"""The first, one in the middle and the last; further ones in the middle take as long as that one."""
MOST_GROUPS = 16
"""Runs of blocks; a step has some ten tasks for each."""
FIRST_CHUNKS = 4
"""Chunks of what forward needs first."""
WHOLE = 1 << 62
CRUMB = 100
"""A part below 1 / CRUMB of a unit counts as the rest of it does."""


class _SameObject:
    """A large value as part of a key, by identity: hashing its thousands of parameters would take longer."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


# Runs of alike units


@dataclass(frozen=True)
class Group:
    """A run of alike units. `kind`: of its blocks, None for what is outside of them. `chunks`: the engine's."""

    kind: int | None
    count: int
    placement: Placement
    chunks: int


@dataclass(frozen=True)
class GroupedLayout:
    """`layout` has one unit a group, in forward order. `alike`: for each group the first that takes the same.

    `weight_bytes`: of the engine's layout.
    """

    layout: Layout
    groups: tuple[Group, ...]
    alike: tuple[int, ...]
    weight_bytes: int


def group_layout(
    layout: Layout, placements: Sequence[Placement], model_profile: ModelProfile, chunk_bytes: int
) -> GroupedLayout:
    """Group the units of the engine's `layout` and `placements`."""
    first_block = bool(model_profile.before)
    longest = -(-len(model_profile.blocks) // MOST_GROUPS)
    groups: list[Group] = []
    specs: list[UnitSpec] = []
    runs: list[list[Unit]] = []
    keys: list[tuple[int | None, Placement]] = []
    for unit in layout.units:
        number = unit.index - first_block
        kind = model_profile.blocks[number][1] if 0 <= number < len(model_profile.blocks) else None
        key = kind, placements[unit.index]
        # Blocks of one kind and placement have the same parameters in the same state formats.
        # A run is half as long as what lies before it: a lane is busy with a few blocks, and not with a whole run, when
        # the first ones are wanted at the start of a step.
        most = min(longest, (number - len(runs[-1])) // 2) if runs else 0
        if kind is not None and keys and keys[-1] == key and len(runs[-1]) < most:
            runs[-1].append(unit)
        else:
            runs.append([unit])
            keys.append(key)
    for (kind, placement), run in zip(keys, runs, strict=True):
        count, unit = len(run), run[0]
        groups.append(Group(kind, count, placement, count * len(unit.chunks)))
        parameters = tuple(
            ParameterSpec(str(number), (count * elements, 1), dtype, trainable, kept)
            for number, ((dtype, kept, trainable), elements) in enumerate(_sums(unit).items())
        )
        specs.append(UnitSpec(str(unit.index), "outer" if kind is None else "block", parameters))
    total = sum(spec.bytes for each in specs for spec in each.parameters if spec.trainable)
    # A model of few units still overlaps chunk by chunk. Of a run one half is handed on while the other is worked on.
    size = max(chunk_bytes, total // MOST_GROUPS) if len(specs) < MOST_GROUPS else WHOLE
    sizes = [max(chunk_bytes, min(size, -(-len(run) // 2) * run[0].weight_bytes)) for run in runs]
    for at in range(1 + first_block):
        # Lanes overlap chunk by chunk, which is seen where forward waits for the first of a step's weights.
        sizes[at] = max(chunk_bytes, min(size, -(-runs[at][0].weight_bytes // FIRST_CHUNKS)))
    units = [
        replace(build_layout([spec], size).units[0], index=index)
        for index, (spec, size) in enumerate(zip(specs, sizes, strict=True))
    ]
    # The last group has head and loss beside it.
    likes = [
        (group, spec.parameters, sizes[at], at == len(specs) - 1)
        for at, (group, spec) in enumerate(zip(groups, specs, strict=True))
    ]
    return GroupedLayout(
        Layout(tuple(units)),
        tuple(groups),
        tuple(map(likes.index, likes)),
        sum(len(alike) * alike[0].weight_bytes for alike in layout.alike),
    )


def _sums(unit: Unit) -> dict[tuple[str, StateFormat, bool], int]:
    """Return the elements of a unit by (dtype, state format, trainable), the largest first.

    Gains and biases, kept exact beside matrices, would double the tasks for a thousandth of the work: they count as the
    matrices do.
    """
    sums: dict[tuple[str, StateFormat, bool], int] = {}
    for region in unit.regions:
        key = (region.dtype, region.state_format, True)
        sums[key] = sums.get(key, 0) + region.elements
    for spec in unit.frozen:
        frozen: tuple[str, StateFormat, bool] = (spec.dtype, "exact", False)
        sums[frozen] = sums.get(frozen, 0) + -(-spec.numel // ALIGNMENT) * ALIGNMENT
    whole = sum(sums.values())
    kept: dict[tuple[str, StateFormat, bool], int] = {}
    for key, elements in sorted(sums.items(), key=lambda item: -item[1]):
        alike = next((k for k in kept if (k[0], k[2]) == (key[0], key[2])), None)
        if alike is not None and elements * CRUMB < whole:
            kept[alike] += elements
        else:
            kept[key] = elements
    return kept


# The tasks


@dataclass(frozen=True)
class Fetch:
    """A streamed unit's weights on their way into a slot: read from the disk, or copied up."""

    unit: int
    lane: Lane


Piece = Task | Fetch
"""A task of the simulation that takes time."""


class TwoSteps:
    """A first step of one micro-batch and a second of as many as the run has, at most `PLAYED_MICRO_BATCHES`.

    `grouped`, `routes`: of the units that the tasks are about. `pieces`: all that take a time of their own, None for
    one that takes none; task `n` of `order` takes as long as `pieces[order.alike[n]]`. `begin`, `end`: the second
    step's first task and the one at which its backward has ended; `backward_ends`: those of its micro-batches.
    `forwards`: the second step's in its first micro-batch. `middle`: tasks of its second micro-batch, without
    fetches. `written_state` and `written_gradients`: bytes to the disk tier, of a step and of a micro-batch.
    """

    def __init__(self, grouped: GroupedLayout, work: Workload) -> None:
        layout = grouped.layout
        conditions = work.conditions(grouped.weight_bytes)
        self.grouped = grouped
        self.routes: list[UnitRoute] = [
            route_unit(unit, group.placement, conditions)
            for unit, group in zip(layout.units, grouped.groups, strict=True)
        ]
        self._streamed = [index for index, route in enumerate(self.routes) if route.streamed]
        self._overlap = work.overlap
        self._lanes: list[int] = []
        self._waits: list[tuple[int, ...]] = []
        self._pieces: list[int] = []
        self._pairs: list[tuple[int, int]] = []
        self._numbers: dict[object, int] = {}
        self.pieces: list[Piece | None] = []
        flows: tuple[UnitFlow, ...] = tuple(route.flow() for route in self.routes)
        micro_batches = min(work.gradient_accumulation, PLAYED_MICRO_BATCHES)
        before, timeline = (
            build_timeline(
                layout,
                StepShape(
                    count,
                    flows,
                    global_quantity=work.needs_global_quantity,
                    overlap=work.overlap,
                    speculates=any(flow.speculates for flow in flows),
                    ranks=work.ranks,
                ),
            )
            for count in (1, micro_batches)
        )
        first = self._append(before, {}, ())
        self.begin = first[before.find(Kind.BACKWARD, 0)] + 1
        last = self._append(timeline, *self._after(before, first))
        self.backward_ends = [last[timeline.find(Kind.BACKWARD, m)] for m in range(micro_batches)]
        self.end = self.backward_ends[-1]
        # See engine/execution.py: updates go in forward order, whatever came first.
        by_number = () if work.overlap == "delayed" else (LANES.index(Lane.UPDATE),)
        self.order = Order(len(LANES), self._lanes, self._waits, self._pieces, by_number, self._pairs)
        tasks = timeline.tasks
        self.forwards = [last[t.index] for t in tasks if t.kind is Kind.FORWARD and t.micro_batch == 0]
        self.middle = [last[t.index] for t in tasks if t.micro_batch == 1]
        self.written_state = sum(t.bytes for t in tasks if t.kind is Kind.WRITE_STATE)
        self.written_gradients = sum(
            t.bytes for t in tasks if t.kind is Kind.WRITE_GRADIENT and t.micro_batch == 0
        )

    def _append(
        self, timeline: Timeline, forward_waits: dict[int, tuple[int, ...]], step_waits: tuple[int, ...]
    ) -> list[int]:
        """Add one step, and return the numbers of its tasks.

        `forward_waits`: what each unit's first forward waits for; `step_waits`: what the first backward does.
        """
        numbers: list[int] = []
        ends: dict[tuple[Kind, int, int], int] = {}
        last_forward = timeline.find(Kind.FORWARD, 0, len(self.routes) - 1)
        ready = timeline.ready if self._overlap == "delayed" else ()
        for task in timeline.tasks:
            waits = [numbers[earlier] for earlier in task.waits]
            if task.unit is not None and task.kind in (Kind.FORWARD, Kind.BACKWARD):
                unit = task.unit
                if task.kind is Kind.FORWARD and task.micro_batch == 0:
                    waits += forward_waits.get(unit, ())
                    if ready:
                        waits += [numbers[index] for index in ready[unit]]
                if unit in self._streamed and (task.kind, task.micro_batch, unit) not in ends:
                    waits += self._fetch(task, unit, forward_waits, ends)
            if (task.kind is Kind.BACKWARD and task.waits == (last_forward,)) or (
                not task.waits and task.lane is not Lane.COMPUTE
            ):
                waits += step_waits
            if self._overlap == "serial":
                # The engine copies a chunk down as soon as it is final; the sum of all is the same.
                waits += numbers[-1:]
            numbers.append(self._add(task, waits))
            if task.unit is not None and task.kind in (Kind.FORWARD, Kind.BACKWARD):
                ends[task.kind, task.micro_batch, task.unit] = numbers[-1]
            if task.kind is Kind.SPECULATE:
                update = timeline.find(Kind.UPDATE, task.micro_batch, task.unit, task.chunk)
                self._pairs.append((numbers[update], numbers[-1]))
        return numbers

    def _after(
        self, timeline: Timeline, numbers: list[int]
    ) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
        """Return what the step after the one with these task numbers waits for; see `_append`."""
        ends = [
            number for number, followers in zip(numbers, timeline.followers, strict=True) if not followers
        ]
        last = (self._add(None, ends),)
        if self._overlap in ("serial", "delayed"):
            return dict.fromkeys(range(len(self.routes)), last), last
        ready = {
            unit: tuple(numbers[index] for index in indices) for unit, indices in enumerate(timeline.ready)
        }
        return ready, last

    def _fetch(
        self,
        task: Task,
        unit: int,
        forward_waits: dict[int, tuple[int, ...]],
        ends: dict[tuple[Kind, int, int], int],
    ) -> list[int]:
        """Add the fetch of a streamed unit's weights ahead of `task`; the last of forward are there in backward."""
        streamed = self._streamed
        place = streamed.index(unit)
        order = place if task.kind is Kind.FORWARD else len(streamed) - 1 - place
        if task.kind is Kind.BACKWARD and order < AHEAD:
            return []
        first_forward = task.kind is Kind.FORWARD and task.micro_batch == 0
        waits = list(forward_waits.get(unit, ())) if first_forward else []
        if order >= AHEAD:
            earlier = streamed[place - AHEAD if task.kind is Kind.FORWARD else place + AHEAD]
            waits.append(ends[task.kind, task.micro_batch, earlier])
        elif task.micro_batch:
            waits.append(ends[Kind.BACKWARD, task.micro_batch - 1, streamed[0]])
        if self.routes[unit].placement.weights == "disk":
            waits = [self._add(Fetch(unit, Lane.READ), waits)]
        return [self._add(Fetch(unit, Lane.UPLOAD), waits)]

    def _add(self, piece: Piece | None, waits: Sequence[int]) -> int:
        self._lanes.append(LANES.index(Lane.COMPUTE if piece is None else piece.lane))
        self._waits.append(tuple(dict.fromkeys(waits)))
        self._pieces.append(self._number_of(piece))
        return len(self._lanes) - 1

    def _number_of(self, piece: Piece | None) -> int:
        """Return the number of a piece like it: a task takes the same in every micro-batch, in both steps, and for a
        unit like another."""
        like: object = None
        if piece is not None:
            unit = None if piece.unit is None else self.grouped.alike[piece.unit]
            task = (piece.kind, piece.chunk, piece.bytes) if isinstance(piece, Task) else piece.lane
            like = (unit, task)
        number = self._numbers.setdefault(like, len(self.pieces))
        if number == len(self.pieces):
            self.pieces.append(piece)
        return number


_cache: dict[tuple[object, ...], TwoSteps] = {}
MOST_CACHED = 256


def two_steps(layout: Layout, model_profile: ModelProfile, work: Workload) -> TwoSteps:
    """Return the two steps of `work` on the engine's `layout`, cached for plans that differ in sizes and rates only.

    Raises:
        ValueError: the placement contradicts itself.
    """
    placement = (work.weights, work.state, work.device_fraction, work.speculation)
    key = (
        _SameObject(layout),
        placement,
        work.shared_memory,
        tuple(work.compute_dtypes.items()),
        min(work.gradient_accumulation, PLAYED_MICRO_BATCHES),
        work.needs_global_quantity,
        work.overlap,
        work.gradient_sums,
        work.ranks,
    )
    found = _cache.get(key)
    if found is None:
        if len(_cache) >= MOST_CACHED:
            _cache.clear()
        grouped = group_layout(layout, place(layout, *placement), model_profile, work.chunk_bytes)
        found = _cache[key] = TwoSteps(grouped, work)
    return found
