"""What each tier needs, byte by byte and by name, beside what it has free: whether a run fits.

Arithmetic over layout and model profile; nothing is allocated. The engine's own rows come from `workbench.sizes`, by
which the engine allocates; those of forward and backward from `activations`.

Invariant: a plan that fits promises no tier more than it has free.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from workbench.formatting import GIB, MIB
from workbench.layout import ITEM_BYTES, Layout, Unit, place, state_tensors
from workbench.plan.activations import HEAP_BLOCK_BYTES, AutogradGradients, heap_reserve, model_rows
from workbench.plan.machine import Free
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import ModelProfile
from workbench.sizes import (
    Breakdown,
    UnitCount,
    UnitRoute,
    add,
    buffer_sizes,
    route_unit,
    unit_breakdown,
)

HOST_RUNTIME_BYTES = 400 << 20
"""Python, torch and transformers with their threads and the text: measured on a run of a tiny model."""
WORKSPACE_BYTES = 24 << 20
"""What the host's matrix products pack their operands into, and the stacks of threads: so much with larger models."""
DEVICE_RUNTIME_BYTES = 256 << 20
"""Workspaces of the matrix library."""
RESERVE_SHARE = 50
"""One part in so many of the device's memory is what its allocator holds beside what is asked of it. Planned."""


@dataclass(frozen=True)
class TierNeed:
    """One tier: named bytes, and what is free there."""

    tier: str
    needs: dict[str, int]
    free_bytes: int

    @property
    def needed_bytes(self) -> int:
        return sum(self.needs.values())

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.free_bytes)

    @property
    def fits(self) -> bool:
        return not self.missing_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """All tiers of a run."""

    parameters: int
    tiers: tuple[TierNeed, ...]

    @property
    def fits(self) -> bool:
        return not self.missing_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that all tiers together lack."""
        return sum(tier.missing_bytes for tier in self.tiers)

    @property
    def lacking(self) -> str:
        """The bytes that tiers lack, in words: "3.20 GiB of host", to the hundredth of a MiB where they are few."""
        short = ((tier.tier, tier.missing_bytes) for tier in self.tiers if not tier.fits)
        return " and ".join(
            f"{size / GIB:,.2f} GiB of {name}" if size >= GIB / 10 else f"{size / MIB:,.2f} MiB of {name}"
            for name, size in short
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "fits": self.fits,
            "tiers": [{**asdict(t), "needed_bytes": t.needed_bytes, "fits": t.fits} for t in self.tiers],
        }

    def table(self) -> str:
        """Return the plan as text: the named needs of each tier, and what is free there."""
        lines = [f"{self.parameters:,} parameters"]
        for tier in self.tiers:
            lines.append(f"{tier.tier}: {'fits' if tier.fits else 'does not fit'}")
            rows = {**tier.needs, "needed": tier.needed_bytes, "free": tier.free_bytes}
            if not tier.fits:
                rows["missing"] = tier.missing_bytes
            lines += [f"  {name:<28}{size / GIB:>10,.2f} GiB" for name, size in rows.items()]
        return "\n".join(lines)


def plan_memory(layout: Layout, model_profile: ModelProfile, work: Workload, free: Free) -> MemoryPlan:
    """Return the need of every tier at its heaviest moment.

    Without the disk where its room is not known and the disk tier does not need it.
    """
    needs = EngineNeeds(layout, work)
    engine = needs.memory_breakdown()
    gradients = needs.gradients_in_autograd()
    model = model_rows(model_profile, work, gradients)
    # Units are built in fp32, one at a time, on the host and before there are activations.
    largest = 4 * max((unit.parameters for unit, _, _ in needs.units), default=0)
    building = largest - sum((model["device"] if free.device is None else model["host"]).values())
    on_host = {"building": max(0, building), "workspaces": WORKSPACE_BYTES, "runtime": HOST_RUNTIME_BYTES}
    if free.device is None:
        heap = {"allocator reserve": heap_reserve(model_profile, work, gradients)}
        one = _together(engine["device"], engine["host"], model["device"], model["host"], heap, on_host)
        tiers = [TierNeed("host", one, free.host)]
    else:
        device = _together(engine["device"], model["device"])
        rest = {"allocator reserve": sum(device.values()) // RESERVE_SHARE, "runtime": DEVICE_RUNTIME_BYTES}
        tiers = [
            TierNeed("device", _together(device, rest), free.device),
            TierNeed("host", _together(engine["host"], model["host"], on_host), free.host),
        ]
    saved = (work.checkpoints_kept + 1) * checkpoint_bytes(layout, work, adapter=model_profile.adapter)
    checkpoints = {f"{work.checkpoints_kept} + 1 checkpoints": saved}
    if free.disk is not None and free.disk_tier is not None:
        tiers.append(TierNeed("disk tier", engine["disk"], free.disk_tier))
        tiers.append(TierNeed("disk", checkpoints, free.disk))
    elif free.disk is not None or engine["disk"]:
        tiers.append(TierNeed("disk", {**engine["disk"], **checkpoints}, free.disk or 0))
    return MemoryPlan(layout.parameters, tuple(tiers))


def checkpoint_bytes(layout: Layout, work: Workload, *, adapter: bool = False) -> int:
    """Return the bytes of a checkpoint: the weights once for whoever loads the model, and the state with its master.

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
            size += region.elements * ITEM_BYTES[work.computed_in(region.dtype)]
    return size


class EngineNeeds:
    """The engine's memory. Units that are alike are looked at once and counted."""

    def __init__(self, layout: Layout, work: Workload) -> None:
        self.work = work
        self.conditions = work.conditions(sum(len(alike) * alike[0].weight_bytes for alike in layout.alike))
        placements = place(layout, work.weights, work.state, work.device_fraction)
        self.units: list[UnitCount] = [
            (alike[0], route_unit(alike[0], placement, self.conditions), count)
            for alike in layout.alike
            for placement, count in Counter(placements[unit.index] for unit in alike).items()
        ]

    def memory_breakdown(self) -> Breakdown:
        """Return what the engine's memory breakdown will say, buffers at their limit."""
        needs: Breakdown = {"device": {}, "host": {}, "disk": {}}
        for unit, route, count in self.units:
            one = unit_breakdown(unit, route, self.conditions, self.work.chunk_bytes)
            for tier, rows in one.items():
                for name, size in rows.items():
                    add(needs, tier, name, count * size)
        sizes = buffer_sizes(self.units, self.conditions, self.work.chunk_bytes)
        add(needs, "device", "weight slots", sizes.weight_slots.total)
        add(needs, "device", "gradient slots", sizes.device_slots.total)
        add(needs, "host", "gradient slots", sizes.host_slots.total)
        add(needs, "host", "staging", sizes.staging_bytes)
        return needs

    def gradients_in_autograd(self) -> AutogradGradients:
        """Return the gradients that autograd holds, which are in no memory breakdown of the engine's."""
        summed = whole = passing = largest_block = largest_parameter = 0
        small = {True: 0, False: 0}
        for unit, route, count in self.units:
            gathered = route.gradients == "bucketed"
            computed = [ITEM_BYTES[self.work.computed_in(s.dtype)] * s.numel for s in unit.segments]
            size = sum(region.elements * ITEM_BYTES[region.dtype] for region in unit.regions)
            small[gathered] += count * sum(each for each in computed if each < HEAP_BLOCK_BYTES)
            if self.work.several and route.gradients == "in_autograd":
                summed += count * size
            # On a device of its own every update knows the verdict first.
            waits = self.work.must_wait or self.work.several or route.on_device or unit.kind == "outer"
            if gathered:
                largest_parameter = max([largest_parameter, *computed])
            elif route.gradients == "owned" or waits:
                whole += count * size * self._sets(route)
            else:  # a block's are updated while the next block's come
                passing += count * size
                largest_block = max(largest_block, size)
        at_end = whole + largest_parameter + min(passing, 2 * largest_block)
        return AutogradGradients(summed, at_end, small[False], small[True])

    def _sets(self, route: UnitRoute) -> int:
        """Return how many steps' gradients autograd's tensors hold at a time.

        A delayed update releases the last step's as it goes along. A CPU that computes forward and backward takes far
        longer for these than for an update in memory: none of the old ones are left when the new ones come.
        """
        if not route.delayed or route.gradients != "in_autograd":
            return 1
        return 1 if self.work.shared_memory and route.placement.state != "disk" else 2


def _together(*parts: dict[str, int]) -> dict[str, int]:
    """Return rows of one name added up, in the order in which they first come; without rows of 0 bytes."""
    rows: dict[str, int] = {}
    for part in parts:
        for name, size in part.items():
            if size:
                rows[name] = rows.get(name, 0) + size
    return rows
