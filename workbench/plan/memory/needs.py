"""What the engine holds in each tier, by name: its own memory breakdown foretold.

Weights, state, waiting gradients and slots are exact. Buffers that circulate (gradient slots, staging) are counted at
their limit, which a small model may not reach.
"""

from __future__ import annotations

from collections import Counter

from workbench.layout import ITEM_BYTES, Layout, Unit
from workbench.placement import place
from workbench.plan.memory.model_memory import HEAP_BLOCK_BYTES, Gradients
from workbench.plan.workload import Workload
from workbench.routing import UnitRoute, route_unit
from workbench.sizes import Breakdown, add, buffer_sizes, state_tensors, unit_breakdown


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
        size += sum(t.bytes(region.elements) for t in state_tensors(region) if t.kind != "working")
        if work.overlap == "delayed":  # the weights that the next forward reads, one update behind
            size += region.elements * ITEM_BYTES[work.compute_dtype(region.dtype)]
    return size


class EngineNeeds:
    """The engine's memory, unit by unit; units that are alike are looked at once and counted."""

    def __init__(self, layout: Layout, work: Workload) -> None:
        self.work = work
        conditions = self.conditions = work.conditions(sum(unit.weight_bytes for unit in layout.units))
        placements = place(layout, work.weights, work.state, work.device_fraction)
        self.units: list[tuple[Unit, UnitRoute, int]] = []
        for alike in layout.alike:
            counts = Counter(placements[unit.index] for unit in alike)
            self.units += [
                (alike[0], route_unit(alike[0], placement, conditions), count)
                for placement, count in counts.items()
            ]

    def memory_breakdown(self) -> Breakdown:
        """Return what the engine's memory breakdown will say, buffers at their limit."""
        needs: Breakdown = {"device": {}, "host": {}, "disk": {}}
        for unit, way, count in self.units:
            one = unit_breakdown(unit, way, self.conditions, self.work.chunk_bytes)
            for tier, rows in one.items():
                for name, size in rows.items():
                    add(needs, tier, name, count * size)
        sizes = buffer_sizes(self.units, self.conditions, self.work.chunk_bytes)
        add(needs, "device", "weight slots", sizes.weight_slots.total)
        add(needs, "device", "gradient slots", sizes.device_slots.total)
        add(needs, "host", "gradient slots", sizes.host_slots.total)
        add(needs, "host", "staging", sizes.staging_bytes)
        return needs

    def gradients_in_autograd(self) -> Gradients:
        """What autograd holds of gradients, which no memory breakdown of the engine's has."""
        small = {True: 0, False: 0}
        for unit, way, count in self.units:
            sizes = (ITEM_BYTES[self.work.compute_dtype(s.dtype)] * s.numel for s in unit.segments)
            small[way.gradients == "bucketed"] += count * sum(s for s in sizes if s < HEAP_BLOCK_BYTES)
        return Gradients(self._summed_by_autograd(), self._in_autograd(), small[False], small[True])

    def _summed_by_autograd(self) -> int:
        """What is there when a further micro-batch begins: sums of gradients that only the last one completes."""
        return sum(
            count * region.elements * ITEM_BYTES[region.dtype]
            for unit, way, count in self.units
            if self.work.several and way.gradients == "in_autograd"
            for region in unit.regions
        )

    def _in_autograd(self) -> int:
        """Gradients that nobody has taken yet."""
        whole = passing = largest_block = largest_parameter = 0
        for unit, way, count in self.units:
            size = sum(region.elements * ITEM_BYTES[region.dtype] for region in unit.regions)
            # On a device of its own every update knows the verdict first.
            waits = self.work.must_wait or self.work.several or way.on_device or unit.kind == "outer"
            if way.gradients == "bucketed":
                compute = (ITEM_BYTES[self.work.compute_dtype(s.dtype)] * s.numel for s in unit.segments)
                largest_parameter = max([largest_parameter, *compute])
            elif way.gradients == "owned" or waits:
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
        if not way.delayed or way.gradients != "in_autograd":
            return 1
        return 1 if self.work.shared_memory and way.placement.state != "disk" else 2
