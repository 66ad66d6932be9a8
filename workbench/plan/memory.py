"""The bytes that each tier needs, by name, beside the bytes that it has free: they decide if a run fits.

Arithmetic over layout and model profile; nothing is allocated. The engine's own rows come from `workbench.sizes`, by
which the engine allocates. Forward and backward are looked at in the moment of a step when all together is the most:
checkpointed blocks keep their input, the loss comes in chunks of tokens, autograd holds gradients until the engine or
the update has taken them.

Invariants: a plan that fits promises no tier more than it has free; rows of different moments are never added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from workbench.formatting import GIB, MIB
from workbench.layout import ITEM_BYTES, Layout, Unit, place, state_tensors
from workbench.plan.machine import Free
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import BlockCost, BlockKind, Curve, ModelProfile
from workbench.sizes import (
    REDUCED_SLOTS,
    RINGS_BYTES,
    Breakdown,
    UnitCount,
    UnitRoute,
    add,
    buffer_sizes,
    by_machine_bytes,
    logits_chunk_bytes,
    route_unit,
    sums_by_machine,
    unit_breakdown,
    update_scratch_bytes,
)

HOST_RUNTIME_BYTES = 400 << 20
"""Python, torch and transformers with their threads and the text: measured on a run of a tiny model on a CPU."""
CUDA_HOST_RUNTIME_BYTES = 2 << 30
"""The same with CUDA's driver and libraries: 1.5 to 3 GiB on the machines of users."""
WORKSPACE_BYTES = 24 << 20
"""Buffers of the host's matrix products, and the stacks of threads: so much with larger models."""
DEVICE_RUNTIME_BYTES = 512 << 20
"""The process's context and the workspaces of the matrix library: 0.4 to 0.6 GiB on the machines of users."""
RESERVE_SHARE = 50
"""One part in so many of the device's memory is what its allocator holds beside what is asked of it. Planned."""
HEAP_BLOCK_BYTES = 32 << 20
"""glibc's largest threshold, from which on a block is mapped by itself (M_MMAP_THRESHOLD in mallopt(3))."""

Rows = dict[str, dict[str, int]]
"""Bytes by tier ("device", "host") and name."""
LEAST_LEFT = 0.05
"""Of the free memory of a tier: a plan that leaves less is tight."""


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

    @property
    def is_tight(self) -> bool:
        """True where it fits, and leaves less than `LEAST_LEFT` of what is free."""
        left = self.free_bytes - self.needed_bytes
        return self.needed_bytes > 0 and 0 <= left < LEAST_LEFT * self.free_bytes


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
    # What is on the host or its disk is there once for each rank of a machine.
    ranks = work.local_ranks
    engine = needs.memory_breakdown()
    gradients = needs.gradients_in_autograd()
    model = model_rows(model_profile, work, gradients)
    # Units are built in fp32, one at a time, on the host and before there are activations.
    largest = 4 * max((unit.parameters for unit, _, _ in needs.units), default=0)
    building = largest - sum((model["device"] if free.device is None else model["host"]).values())
    runtime = HOST_RUNTIME_BYTES if free.device is None else CUDA_HOST_RUNTIME_BYTES
    on_host = {"building": max(0, building), "workspaces": WORKSPACE_BYTES, "runtime": runtime}
    if free.device is None:
        heap = {"allocator reserve": heap_reserve(model_profile, work, gradients)}
        one = _together(engine["device"], engine["host"], model["device"], model["host"], heap, on_host)
        tiers = [TierNeed("host", _times(ranks, one), free.host)]
    else:
        device = _together(engine["device"], model["device"])
        rest = {"allocator reserve": sum(device.values()) // RESERVE_SHARE, "runtime": DEVICE_RUNTIME_BYTES}
        tiers = [
            TierNeed("device", _together(device, rest), free.device),
            TierNeed("host", _times(ranks, _together(engine["host"], model["host"], on_host)), free.host),
        ]
    engine["disk"] = _times(ranks, engine["disk"])
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
        # State that follows from the rest is not saved: the fp16 copy of an fp32 master.
        size += sum(t.bytes(region.elements) for t in state_tensors(region) if t.kind != "working")
        if work.overlap == "delayed":  # the weights that the next forward reads, one update behind
            size += region.elements * ITEM_BYTES[work.computed_in(region.dtype)]
    return size


class EngineNeeds:
    """The engine's memory. Units that are alike are looked at once and counted."""

    def __init__(self, layout: Layout, work: Workload) -> None:
        self.work = work
        self.conditions = work.conditions(sum(len(alike) * alike[0].weight_bytes for alike in layout.alike))
        placements = place(layout, work.weights, work.state, work.device_fraction, work.speculation)
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
        if self.conditions.ranks > 1:
            add(needs, "device", "between ranks", self._between_ranks())
        off_device = any(not route.on_device for _, route, _ in self.units)
        if not self.conditions.shared_memory and (off_device or self.work.activations == "host"):
            add(needs, "host", "staging", RINGS_BYTES)
        return needs

    def _between_ranks(self) -> int:
        """Return the bytes of `sizes.reduce_buffers`, where every rank owns an equal part of a chunk."""
        received = reduced = 0
        ranks, here = self.conditions.ranks, self.work.local_ranks
        for unit, route, _ in self.units:
            for chunk in unit.chunks:
                item = 4 if route.sums_on_device else ITEM_BYTES[chunk.dtype]
                needed = [item * chunk.elements]
                if sums_by_machine(ranks, here):
                    shares = [-(-chunk.elements // ranks)] * ranks
                    needed = by_machine_bytes(chunk.elements, item, shares, 0, here)
                received = max(received, sum(needed))
                if not route.reduced_in_place:
                    reduced = max(reduced, 4 * -(-chunk.elements // self.conditions.ranks))
        return received + REDUCED_SLOTS * reduced

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
        updating = at_end + update_scratch_bytes(self.units)
        return AutogradGradients(summed, at_end, updating, small[False], small[True])

    def _sets(self, route: UnitRoute) -> int:
        """Return how many steps' gradients autograd's tensors hold at a time.

        A delayed update releases the last step's as it goes along. A CPU that computes forward and backward takes far
        longer for these than for an update in memory: none of the old ones are left when the new ones come.
        """
        if not route.delayed or route.gradients != "in_autograd":
            return 1
        return 1 if self.work.shared_memory and route.placement.state != "disk" else 2


def _times(count: int, rows: dict[str, int]) -> dict[str, int]:
    return {name: count * size for name, size in rows.items()}


def _together(*parts: dict[str, int]) -> dict[str, int]:
    """Return rows of one name added up, in the order in which they first come; without rows of 0 bytes."""
    rows: dict[str, int] = {}
    for part in parts:
        for name, size in part.items():
            if size:
                rows[name] = rows.get(name, 0) + size
    return rows


# Forward and backward


@dataclass(frozen=True)
class Holes:
    """Bytes that the heap loses for each byte that forwards drop (`dropped`), of small gradients that stay (`kept`),
    and of small gradients that are gathered and dropped (`gathered`)."""

    dropped: float
    kept: float
    gathered: float


HOLES = Holes(dropped=1.4, kept=1.05, gathered=1.8)
HOLES_WITHOUT_WAITING = Holes(dropped=0.5, kept=0.35, gathered=0.35)
"""Where gradients do not wait for the end of backward."""


@dataclass(frozen=True)
class AutogradGradients:
    """Bytes of gradients that autograd holds: when a micro-batch begins, and when its backward has ended; `updating`:
    with the copies that an update on the device makes of them.

    `small_kept`, `small_gathered`: those of a whole backward in blocks that the C library's heap keeps, by whether the
    engine copies them out of autograd's tensors.
    """

    at_start: int
    at_end: int
    updating: int = 0
    small_kept: int = 0
    small_gathered: int = 0


def cost_of(kind: BlockKind, model_profile: ModelProfile, dtype: str, *, on_cpu: bool) -> BlockCost:
    """Return the costs of a block computed in `dtype`; from a formula where no block could be run."""
    known = kind.cost("32" if ITEM_BYTES[dtype] >= 4 else "16", on_cpu=on_cpu)
    return formula_cost(model_profile.hidden_size, ITEM_BYTES[dtype]) if known is None else known


def formula_cost(hidden_size: int, item_bytes: int) -> BlockCost:
    """Return the costs of a block that was never run: 34 bytes a token and unit of width at 16 bits, attention scores
    not stored (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022, §4.1)."""
    unit = hidden_size * item_bytes
    return BlockCost(
        input=Curve(per_token=unit),
        saved=Curve(per_token=17 * unit),
        passing=Curve(per_token=8 * unit),
        forward_peak=Curve(per_token=10 * unit),
        graph_peak=Curve(per_token=20 * unit),
        backward_peak=Curve(per_token=24 * unit),
        element_bytes=Curve(per_token=40 * unit),
        backward_element_bytes=Curve(per_token=60 * unit),
        operations=40,
        backward_operations=80,
    )


def model_rows(model_profile: ModelProfile, work: Workload, gradients: AutogradGradients) -> Rows:
    """Return the rows of the heaviest moment."""
    return max(_moments(model_profile, work, gradients), key=lambda rows: sum(rows["device"].values()))


def _moments(model_profile: ModelProfile, work: Workload, gradients: AutogradGradients) -> list[Rows]:
    """Return the rows of six moments: the forward, the loss, the last and the first block of backward, its end, the
    update."""
    item = ITEM_BYTES[work.compute_dtype]
    sizes = work.micro_batch_size, work.sequence_length
    costs = [
        cost_of(kind, model_profile, work.compute_dtype, on_cpu=work.shared_memory)
        for kind in model_profile.kinds
    ]

    def by_block(of_cost: Callable[[BlockCost], float]) -> list[float]:
        of_kind = [of_cost(cost) for cost in costs]
        return [of_kind[kind] for _, kind in model_profile.blocks]

    # Tensors kept of a block count in its peaks, too.
    if work.activation_checkpointing:
        kept = by_block(lambda cost: cost.input.at(*sizes))
        backward = by_block(
            lambda cost: (
                max(cost.graph_peak.at(*sizes), cost.backward_peak.at(*sizes)) - cost.input.at(*sizes)
            )
        )
        forward = by_block(lambda cost: cost.forward_peak.at(*sizes) - cost.input.at(*sizes))
    else:
        kept = by_block(lambda cost: cost.saved.at(*sizes))
        backward = by_block(lambda cost: cost.backward_peak.at(*sizes) - cost.saved.at(*sizes))
        forward = by_block(lambda cost: cost.graph_peak.at(*sizes) - cost.saved.at(*sizes))
    total = sum(kept)
    away = work.activations == "host" and not work.shared_memory
    # Of what waits on the host, two blocks' inputs are on their way at a time.
    present = min(total, 2 * max(kept, default=0.0)) if away else total
    hidden = float(work.micro_batch_size * work.sequence_length * model_profile.hidden_size * item)
    host = {"activations": int(total)} if away else {}

    def moment(activations: float, logits: float, held: float, masks: float = 0.0) -> Rows:
        rows = {
            "gradients": held,
            "activations": activations,
            "logits": logits,
            "document masks": masks,
        }
        return {"device": {name: int(size) for name, size in rows.items() if size >= 1}, "host": host}

    head, tied = _loss_bytes(model_profile, work, item), _tied_bytes(model_profile, item)
    first = min(present, kept[0]) if kept else 0.0
    walked, waiting, last = mask_bytes(work, len(model_profile.blocks), item)
    inside = max(backward, default=0.0) + hidden
    return [
        moment(present + max(forward, default=0.0), 0.0, gradients.at_start, walked),
        moment(present + 2 * hidden, head, gradients.at_start, waiting),
        moment(present + inside, tied, gradients.at_start, walked),
        moment(first + inside, 0.0, gradients.at_end, last),
        moment(2 * hidden, tied, gradients.at_end),
        moment(0.0, 0.0, gradients.updating),
    ]


def mask_bytes(work: Workload, blocks: int, item: int) -> tuple[float, float, float]:
    """Return the bytes of the masks that keep documents apart: while all blocks are gone through, while the loss is
    computed, and in the first block's backward.

    A bool for every pair of tokens goes to all blocks; attention makes numbers of `item` bytes of it in each, which a
    block that is not recomputed keeps for its backward.
    """
    if not work.separate_documents:
        return 0.0, 0.0, 0.0
    pairs = float(work.micro_batch_size * work.sequence_length**2)
    if work.activation_checkpointing:
        return pairs * (1 + item), pairs, pairs * (1 + item)
    kept = pairs * item * blocks
    return kept + pairs, kept, pairs * item


def heap_reserve(model_profile: ModelProfile, work: Workload, gradients: AutogradGradients) -> int:
    """Return what the C library's heap holds beside what is asked of it: holes that no later block fits in.

    glibc keeps blocks below 32 MiB in its heap, and as it has to align each, mostly finds no room for one where an
    equal one was. So the insides of a block in its backward come to lie twice; and holes stay between what stays: what
    a forward drops again lies among kept activations, recomputed activations among gradients. The share that is lost is
    measured, with glibc 2.36 (docs/benchmarks.md).
    """
    if (
        not work.shared_memory or work.state == "disk"
    ):  # there, large blocks are mapped (engine/storage/heap.py)
        return 0
    item = ITEM_BYTES[work.compute_dtype]
    sizes = work.micro_batch_size, work.sequence_length
    if sizes[0] * sizes[1] * model_profile.hidden_size * 4 * item >= HEAP_BLOCK_BYTES:
        return 0
    costs = [cost_of(kind, model_profile, work.compute_dtype, on_cpu=True) for kind in model_profile.kinds]
    inside = max((cost.backward_peak.at(*sizes) for cost in costs), default=0.0)
    holes = HOLES if work.must_wait or work.several else HOLES_WITHOUT_WAITING
    if work.activation_checkpointing:
        return int(inside + holes.kept * gradients.small_kept + holes.gathered * gradients.small_gathered)
    passing = [cost.passing.at(*sizes) for cost in costs]
    return int(inside + holes.dropped * sum(passing[kind] for _, kind in model_profile.blocks))


def _loss_bytes(model_profile: ModelProfile, work: Workload, item: int) -> float:
    """Return the most that head and loss take, the head's gradient included."""
    tokens = work.micro_batch_size * work.sequence_length
    logits = 4.0 * tokens * model_profile.vocab_size
    weight = float(model_profile.vocab_size * model_profile.head_width) if model_profile.trains_head else 0.0
    # The loss's own softmax and its gradient, beside the logits and (in 16 bits) their copy in fp32.
    whole = 2 * logits + logits * item / 4 + (logits if item < 4 else 0.0) + weight * item
    chunk = loss_chunk_bytes(model_profile, work)
    if not model_profile.loss_in_chunks or logits <= chunk:
        return whole
    # A chunk's logits and the gradient of them; the weight's gradient is summed in fp32, then rounded.
    summed = weight * (4 + (item if item < 4 else 0))
    return 2.0 * chunk + summed + 4.0 * tokens * model_profile.head_width


def loss_chunk_bytes(model_profile: ModelProfile, work: Workload) -> float:
    """Return the bytes of a chunk's logits in fp32."""
    return float(
        logits_chunk_bytes(model_profile.vocab_size, model_profile.head_width, on_host=work.shared_memory)
    )


def _tied_bytes(model_profile: ModelProfile, item: int) -> float:
    """Return the head's gradient for a tied embedding, which waits for the embedding's own of the same size."""
    rows = [
        p
        for p in (*model_profile.before, *model_profile.after)
        if len(p.shape) == 2 and p.shape[0] == model_profile.vocab_size
    ]
    # The head reads the embedding where no matrix of so many rows is anything but an embedding.
    is_tied = bool(rows) and all(p.embeds for p in rows)
    waits = model_profile.trains_head and is_tied
    return float(item * model_profile.vocab_size * model_profile.hidden_size) if waits else 0.0
