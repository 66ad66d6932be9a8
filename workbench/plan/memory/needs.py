"""What the engine holds in each tier, by name: its own memory breakdown foretold.

Weights, state, waiting gradients and slots are exact. Buffers that circulate (gradient slots, staging) are counted at
their limit, which a small model may not reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.layout import ITEM_BYTES, Chunk, Layout, Region, Unit, padded
from workbench.placement import place
from workbench.plan.memory.model_memory import HEAP_BLOCK_BYTES, Gradients
from workbench.plan.workload import WEIGHT_KINDS, Workload
from workbench.routing import WORKING_KIND, UnitRoute, route_unit
from workbench.state_formats import ITEM_BYTES as MOMENT_ITEM_BYTES
from workbench.state_formats import MOMENTS

Needs = dict[str, dict[str, int]]
"""Bytes by tier ("device", "host", "disk") and by name."""

SLOT_ALIGNMENT = 512
WEIGHT_SLOTS = 3
FETCH_BUFFERS = 3
STAGING_BUFFERS = 4
HOST_SLOTS = 4
ON_THEIR_WAY = 2


def building_bytes(layout: Layout) -> int:
    """The largest unit in fp32, beside all else: while the engine is built, units come one at a time."""
    return 4 * max((unit.parameters for unit in layout.units), default=0)


def checkpoint_bytes(layout: Layout, work: Workload, *, adapter: bool = False) -> int:
    """The weights once for whoever loads the model, and the state with a master that resumes exactly.

    `adapter`: it is saved without the frozen weights beside it.
    """
    return sum(len(units) * _saved_bytes(units[0], work, adapter) for units in layout.alike)


def _saved_bytes(unit: Unit, work: Workload, adapter: bool) -> int:
    size = 0 if adapter else sum(spec.bytes for spec in unit.frozen)
    for region in unit.regions:
        size += region.elements * ITEM_BYTES[region.dtype]
        # What follows from the rest is not saved: the fp16 copy of an fp32 master.
        shares = (share for share in _shares(region) if share[0] != "working")
        size += sum(-(-region.elements // per) * item for _, per, item in shares)
        if work.overlap == "delayed":  # the weights that the next forward reads, one update behind
            size += region.elements * ITEM_BYTES[work.compute_dtype(region.dtype)]
    return size


class EngineNeeds:
    """The engine's memory, unit by unit; units that are alike are looked at once and counted."""

    def __init__(self, layout: Layout, work: Workload) -> None:
        self.work = work
        conditions = work.conditions(sum(unit.weight_bytes for unit in layout.units))
        placements = place(layout, work.weights, work.state, work.device_fraction)
        self.units: list[tuple[Unit, UnitRoute, int]] = []
        for alike in layout.alike:
            counts = Counter(placements[unit.index] for unit in alike)
            self.units += [
                (alike[0], route_unit(alike[0], placement, conditions), count)
                for placement, count in counts.items()
            ]

    def memory_breakdown(self) -> Needs:
        """What the engine's memory breakdown will say, buffers at their limit."""
        needs: Needs = {"device": {}, "host": {}, "disk": {}}
        for unit, way, count in self.units:
            one: Needs = {"device": {}, "host": {}, "disk": {}}
            self._add_weights_and_state(one, unit, way)
            self._add_waiting_gradients(one, unit, way)
            self._add_frozen(one, unit, way)
            for tier, rows in one.items():
                for name, size in rows.items():
                    _add(needs, tier, name, count * size)
        self._add_weight_slots(needs)
        self._add_staging(needs)
        self._add_gradient_slots(needs)
        return needs

    def gradients_in_autograd(self) -> Gradients:
        """What autograd holds of gradients, which no memory breakdown of the engine's has."""
        small = {True: 0, False: 0}
        for unit, way, count in self.units:
            sizes = (ITEM_BYTES[self.work.compute_dtype(s.dtype)] * s.numel for s in unit.segments)
            small[way.gradients == "gathered"] += count * sum(s for s in sizes if s < HEAP_BLOCK_BYTES)
        return Gradients(self._summed_by_autograd(), self._in_autograd(), small[False], small[True])

    def _summed_by_autograd(self) -> int:
        """What is there when a further micro-batch begins: sums of gradients that only the last one completes."""
        return sum(
            count * region.elements * ITEM_BYTES[region.dtype]
            for unit, way, count in self.units
            if self.work.several and way.gradients == "referenced"
            for region in unit.regions
        )

    def _in_autograd(self) -> int:
        """Gradients that nobody has taken yet."""
        whole = passing = largest_block = largest_parameter = 0
        for unit, way, count in self.units:
            size = sum(region.elements * ITEM_BYTES[region.dtype] for region in unit.regions)
            # On a device of its own every update knows the verdict first.
            waits = self.work.must_wait or self.work.several or way.on_device or unit.kind == "outer"
            if way.gradients == "gathered":
                compute = (ITEM_BYTES[self.work.compute_dtype(s.dtype)] * s.numel for s in unit.segments)
                largest_parameter = max([largest_parameter, *compute])
            elif way.gradients == "taken" or waits:
                whole += count * size * self._sets(way)
            else:
                passing += count * size
                largest_block = max(largest_block, size)
        # One block's are updated while the next one's come.
        return whole + largest_parameter + min(passing, 2 * largest_block)

    def _sets(self, way: UnitRoute) -> int:
        """How many steps' gradients autograd's tensors hold at a time.

        A delayed update lets go of the last step's as it goes along. A CPU that computes forward and backward takes far
        longer for these than for an update in memory: none of the old ones are left when the new ones come.
        """
        if not way.delayed or way.gradients != "referenced":
            return 1
        return 1 if self.work.shared_memory and way.placement.state != "disk" else 2

    def _add_weights_and_state(self, needs: Needs, unit: Unit, way: UnitRoute) -> None:
        tier = "device" if way.on_device else "host"
        for region in unit.regions:
            working = WORKING_KIND[region.dtype]
            for kind, per, item in _shares(region):
                size = -(-region.elements // per) * item
                if way.is_filed(kind, region.dtype):
                    chunks = (c for c in unit.chunks if unit.regions[c.region] is region)
                    size = sum(padded(-(-c.elements // per) * item) for c in chunks)
                    _add(needs, "disk", _name_of(kind), size)
                elif way.aliased and kind == working:
                    _add(needs, "device", "weights", size)
                else:
                    _add(needs, tier, _name_of(kind), size)
            if way.aliased:
                continue
            if not way.streamed:
                item = ITEM_BYTES[self.work.compute_dtype(region.dtype)]
                _add(needs, "device", "weights", region.elements * item)
            elif way.delayed:
                _add(needs, "host", "weights", region.elements * ITEM_BYTES[region.dtype])

    def _add_waiting_gradients(self, needs: Needs, unit: Unit, way: UnitRoute) -> None:
        sets = 2 if way.delayed else 1
        if way.waiting == "memory":
            tier = "device" if way.on_device else "host"
            for region in unit.regions:
                item = 4 if way.accumulates else ITEM_BYTES[region.dtype]
                _add(needs, tier, "gradients", sets * region.elements * item)
        elif way.waiting == "disk":
            size = sum(padded(_waiting_bytes(chunk, way)) for chunk in unit.chunks)
            _add(needs, "disk", "gradients", sets * size)

    def _add_frozen(self, needs: Needs, unit: Unit, way: UnitRoute) -> None:
        for spec in unit.frozen:
            item = ITEM_BYTES[spec.dtype]
            if not way.streamed:
                compute = ITEM_BYTES[self.work.compute_dtype(spec.dtype)]
                _add(needs, "device", "frozen weights", spec.numel * compute)
            elif way.placement.weights == "disk":
                _add(needs, "disk", "frozen weights", sum(map(padded, self._frozen_pieces(spec.numel, item))))
            else:
                _add(needs, "host", "frozen weights", spec.numel * item)

    def _frozen_pieces(self, elements: int, item: int) -> Iterator[int]:
        """Bytes of the pieces that a frozen parameter is fetched in."""
        per = self.work.chunk_bytes // item
        return (min(per, elements - at) * item for at in range(0, elements, per))

    def _add_weight_slots(self, needs: Needs) -> None:
        """The ring of slots, each as large as the largest block, in the compute dtypes."""
        streamed = [unit for unit, way, _ in self.units if way.streamed]
        blocks = sum(count for _, way, count in self.units if way.streamed)
        sizes = [
            sum(
                _aligned(elements * ITEM_BYTES[self.work.compute_dtype(dtype)])
                for elements, dtype in (
                    *((region.elements, region.dtype) for region in unit.regions),
                    *((spec.numel, spec.dtype) for spec in unit.frozen),
                )
            )
            for unit in streamed
        ]
        _add(needs, "device", "weight slots", min(WEIGHT_SLOTS, blocks) * max(sizes, default=0))

    def _add_staging(self, needs: Needs) -> None:
        """Host buffers between memory and disk: of fetched weights, of states, of gradients."""
        fetched = state = waiting = 0
        for unit, way, _ in self.units:
            for chunk in unit.chunks:
                region = unit.regions[chunk.region]
                filed = [
                    (kind, padded(-(-chunk.elements // per) * item))
                    for kind, per, item in _shares(region)
                    if way.is_filed(kind, region.dtype)
                ]
                state = max(state, sum(size for _, size in filed))
                if way.waiting == "disk":
                    waiting = max(waiting, padded(_waiting_bytes(chunk, way)))
                if way.streamed:
                    working = WORKING_KIND[region.dtype]
                    fetched = max([fetched, *(size for kind, size in filed if kind == working)])
            if way.streamed and way.placement.weights == "disk":
                for spec in unit.frozen:
                    pieces = self._frozen_pieces(spec.numel, ITEM_BYTES[spec.dtype])
                    fetched = max([fetched, *map(padded, pieces)])
        # One more of the state's buffers is there from the start, and first sums have buffers of their own.
        gradient_buffers = STAGING_BUFFERS * (2 if self.work.several else 1)
        size = FETCH_BUFFERS * fetched + (STAGING_BUFFERS + 1) * state + gradient_buffers * waiting
        _add(needs, "host", "staging", size)

    def _add_gradient_slots(self, needs: Needs) -> None:
        """Slots in which chunks of gradients are gathered, and those in which they arrive on the host."""
        gathered = [entry for entry in self.units if entry[1].gradients == "gathered"]
        chunks = sum(count * len(unit.chunks) for unit, _, count in gathered)
        slot = max((padded(c.weight_bytes) for unit, _, _ in gathered for c in unit.chunks), default=0)
        largest = max((len(unit.chunks) for unit, _, _ in gathered), default=0)
        outer = sum(count * len(unit.chunks) for unit, _, count in gathered if unit.kind == "outer")
        opened = chunks if self.work.overlap == "serial" else 2 * largest + 2
        ring = any(way.waiting == "ring" for _, way, _ in gathered)
        arriving = 2 * largest + outer + 2 if ring else HOST_SLOTS
        if self.work.shared_memory:
            most = chunks if self.work.overlap == "serial" else largest + ON_THEIR_WAY
            opened, arriving = 0, max(most, arriving)
        elif not any(way.waiting != "memory" or way.accumulates for _, way, _ in gathered):
            arriving = 0  # they come down straight into the place where they wait
        if not self.work.several:
            opened, arriving = min(opened, chunks), min(arriving, chunks)
        _add(needs, "device", "gradient slots", opened * slot)
        _add(needs, "host", "gradient slots", arriving * slot)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def _shares(region: Region) -> Iterator[tuple[str, int, int]]:
    """The kinds of a region's state: how many of its elements share one of theirs, and that one's bytes."""
    for kind, item in WEIGHT_KINDS[region.dtype].items():
        yield kind, 1, item
    for moment in MOMENTS[region.state_format]:
        yield moment.kind, moment.elements, MOMENT_ITEM_BYTES[moment.dtype]


def _waiting_bytes(chunk: Chunk, way: UnitRoute) -> int:
    return 4 * chunk.elements if way.accumulates else chunk.weight_bytes


def _name_of(kind: str) -> str:
    if kind in ("high", "low", "master"):
        return "master weights"
    return "weights" if kind == "working" else "exp_avg and exp_avg_sq"


def _add(needs: Needs, tier: str, name: str, size: int) -> None:
    if size:
        needs[tier][name] = needs[tier].get(name, 0) + size
