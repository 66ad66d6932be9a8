"""The route of each unit's weights, state and gradients, and the memory that the engine allocates for it. No torch.

Written once for two readers: the engine allocates by these functions and makes its tasks by the routes, the plan adds
them up, so a plan cannot drift from the run.

Invariant: a size depends on layout, routes and conditions alone, never on what happens during a step. Buffers that
circulate (`SlotPool`) are given with their limit, which a small model may not reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.layout import (
    ITEM_BYTES,
    NORM_BLOCK,
    Chunk,
    Layout,
    Placement,
    Region,
    StateTensor,
    Unit,
    chunk_record_bytes,
    moment_tensors,
    padded,
    state_tensors,
)
from workbench.partition import Partition
from workbench.timeline import Overlap, UnitFlow

WEIGHT_SLOTS = 3
"""Device slots of streamed blocks: the one in use, the next one, and the one that is being left."""
FETCH_BUFFERS = 3
"""Host buffers between the disk and the weight slots."""
STAGING_BUFFERS = 4
"""Host buffers between the disk and an update, of each kind: state, waiting gradients, first sums."""
ARRIVAL_SLOTS = 4
"""Host slots for gradients that are summed, measured or written to disk as soon as they have come down."""
SUMMING_SLOTS = 2
"""In one memory: slots beside those of the unit that is being filled."""
REDUCED_SLOTS = 3
"""Sums over ranks: the one that is made, the one that goes down, and one between them."""
RING_BUFFERS = 4
RING_BUFFER_BYTES = 4 << 20
RINGS_BYTES = 4 * RING_BUFFERS * RING_BUFFER_BYTES
"""Pinned buffers of the four streams of copies, for host memory that the driver would not register."""
LOGITS_BYTES = 64 << 20
DEVICE_LOGITS_BYTES = 192 << 20
SLOT_ALIGNMENT = 512
SMALLEST_PIECE_BYTES = 4 * NORM_BLOCK
"""The least that a frozen parameter is cut into when it is fetched."""

GradientMode = Literal["in_autograd", "owned", "bucketed"]
Waiting = Literal["in autograd", "ring", "memory", "disk"]

UPDATE_SCRATCH_BYTES = 512 << 20
"""The most that an update on a device of its own holds of 16-bit gradients in fp32 at a time."""

SMALL_MODEL_BYTES = 64 << 20

Breakdown = dict[str, dict[str, int]]
"""Bytes by tier ("device", "host", "disk") and by name."""


# The routes


def lanes_pay(weight_bytes: int, compute_threads: int, cores: int) -> bool:
    """Return whether updates beside compute are worth handing over in one memory.

    They are not where they are small and compute has every core. `weight_bytes`: of all working weights.
    """
    return compute_threads < cores or weight_bytes > SMALL_MODEL_BYTES


@dataclass(frozen=True)
class Conditions:
    """The conditions that all units of an engine share.

    `compute_dtypes`: the dtype that working weights of a storage dtype are computed in, where that differs.
    `must_wait`: no update may run before backward has ended. `lanes_pay`: in one memory, an update beside compute gains
    more than handing it over costs. `all_gradients_wait`: on a device of its own, gradients that wait for nothing but
    their update have memory for all units, so that backward is never held up.
    `sums_on_device`: a device of its own sums micro-batches before anything goes down. `ranks`: those that share every
    chunk's state.
    """

    shared_memory: bool
    compute_dtypes: Mapping[str, str]
    gradient_accumulation: int
    must_wait: bool
    overlap: Overlap
    lanes_pay: bool = True
    all_gradients_wait: bool = False
    sums_on_device: bool = False
    ranks: int = 1

    def compute_dtype(self, storage: str) -> str:
        return self.compute_dtypes.get(storage, storage)


@dataclass(frozen=True)
class UnitRoute:
    """The way of one unit.

    `on_device`: the state is on a device of its own. `streamed`: the weights come into a slot when they are used.
    `aliased`: the forward reads the state's own working copy. `gradients`: they stay in autograd's tensors, are owned
    by the engine micro-batch by micro-batch, or are copied into buckets, one a chunk. `accumulates`: the engine sums
    them in fp32, `sums_on_device`: on the device, from where the sums come down once. `waiting`: where they are until
    the update. `update_on_compute`: no lane does it. `partitioned`: ranks own a share each of the state; gradients are
    summed over micro-batches where backward leaves them, then over ranks, in fp32: `reduced_in_place` where the update
    reads that sum there, and no copy goes down. `speculates`: it may be updated before the norm of all gradients is
    known, and has records by which that can be undone.
    """

    placement: Placement
    on_device: bool
    streamed: bool
    aliased: bool
    gradients: GradientMode
    accumulates: bool
    waiting: Waiting
    update_on_compute: bool
    delayed: bool
    sums_on_device: bool = False
    partitioned: bool = False
    reduced_in_place: bool = False
    speculates: bool = False

    @property
    def wide_gradients(self) -> bool:
        """Gradients that wait are sums in fp32."""
        return self.accumulates or self.partitioned

    @property
    def after_backward(self) -> bool:
        """Its gradients are found in autograd's tensors when backward has ended, and need no hooks before."""
        found = self.gradients == "in_autograd" or (self.on_device and self.gradients == "owned")
        return self.update_on_compute and found and not self.delayed

    @property
    def fetches_apart(self) -> bool:
        """Slots are filled from weights apart from the state, which are older."""
        return self.streamed and self.delayed

    @property
    def uploads(self) -> bool:
        """New weights are copied to where the forward, or the next fetch, reads them."""
        return not self.aliased and (not self.streamed or self.fetches_apart)

    def is_filed(self, kind: str, dtype: str) -> bool:
        """Return whether a kind of the state is on disk; the working copy is only where the weights are."""
        if self.placement.state != "disk":
            return False
        return self.placement.weights == "disk" or kind != working_kind(dtype, self)

    def flow(self) -> UnitFlow:
        """Return the same in the timeline's words."""
        return UnitFlow(
            state=self.placement.state,
            update_on_compute=self.update_on_compute,
            downloads=self.gradients == "bucketed" and not self.reduced_in_place,
            accumulates=self.accumulates and not self.sums_on_device,
            sums_on_device=self.sums_on_device,
            gradients_on_disk=self.waiting == "disk",
            uploads=self.uploads,
            after_backward=self.after_backward,
            speculates=self.speculates,
            streamed=self.streamed,
        )


def route_unit(unit: Unit, placement: Placement, conditions: Conditions) -> UnitRoute:
    """Decide the way of `unit`.

    Raises:
        ValueError: its weights are on disk and the overlap is delayed.
    """
    shared = conditions.shared_memory
    delayed = conditions.overlap == "delayed"
    partitioned = conditions.ranks > 1
    if delayed and placement.weights == "disk":
        raise ValueError("overlap = 'delayed' with weights = 'disk': the disk would have to hold them twice")
    storage = {region.dtype for region in unit.regions}
    frozen = {spec.dtype for spec in unit.frozen}
    converts = any(conditions.compute_dtype(dtype) != dtype for dtype in storage | frozen)
    on_device = placement.state == "device" and not shared
    comes = (placement.weights == "disk" or converts) if shared else placement.weights != "device"
    streamed = comes and unit.kind == "block"
    aliased = not streamed and not converts and not delayed and (on_device or shared) and not partitioned
    several = conditions.gradient_accumulation > 1
    waits_on_disk = placement.state == "disk" and (conditions.must_wait or several) and not partitioned
    gradients: GradientMode
    if not (on_device or shared) or waits_on_disk or converts or partitioned:
        gradients = "bucketed"
    elif several and storage != {"float32"}:
        # Autograd's own sum over micro-batches is in the gradient's dtype; only in fp32 is it the one we want.
        gradients = "owned"
    else:
        gradients = "in_autograd"
    on_lanes = not shared or conditions.lanes_pay or delayed or gradients != "in_autograd"
    update_on_compute = (placement.state == "device" and not (shared and partitioned)) or (
        placement.state == "host" and not on_lanes
    )
    waiting: Waiting
    if gradients == "in_autograd":
        waiting = "in autograd"
    elif waits_on_disk:
        waiting = "disk"
    else:
        room = (conditions.all_gradients_wait and not shared) or partitioned
        waiting = "memory" if several or conditions.must_wait or update_on_compute or room else "ring"
    return UnitRoute(
        placement=placement,
        on_device=on_device,
        streamed=streamed,
        aliased=aliased,
        gradients=gradients,
        accumulates=several and gradients != "in_autograd",
        waiting=waiting,
        update_on_compute=update_on_compute,
        delayed=delayed,
        sums_on_device=several
        and (partitioned or (conditions.sums_on_device and not shared and placement.state == "host")),
        partitioned=partitioned,
        reduced_in_place=partitioned and (shared or on_device),
        # In one memory an update takes compute's own cores and bandwidth, and writes weights that a forward reads.
        speculates=placement.speculated
        and not shared
        and conditions.overlap == "exact"
        and conditions.must_wait,
    )


# The loss


def logits_chunk_bytes(vocabulary: int, width: int, *, on_host: bool) -> int:
    """Return the bytes of fp32 logits that the loss has at a time, of a head [vocabulary, width].

    Each chunk reads and writes the fp32 sum of the head's gradient. Where products are fast that would take longer than
    they do: so a device of its own takes more, and never fewer tokens than a quarter of the width.
    """
    return LOGITS_BYTES if on_host else max(DEVICE_LOGITS_BYTES, vocabulary * width)


# The memory of one unit


def held_tensors(region: Region, route: UnitRoute) -> tuple[StateTensor, ...]:
    """Return the tensors that the engine holds for the state of `region`, in memory or on disk.

    They are those of `state_tensors`, but on a device of its own: fused kernels there work on fp32 masters, so that
    bf16 weights are a copy of one instead of its upper half.
    """
    if not route.on_device or region.dtype != "bfloat16":
        return state_tensors(region)
    master, working = StateTensor("master", "float32", 1), StateTensor("working", "bfloat16", 1)
    return (master, working, *moment_tensors(region))


def working_kind(dtype: str, route: UnitRoute) -> str:
    """Return the kind of the state from which the forward's weights, stored in `dtype`, are copied, or which they
    are."""
    if dtype == "bfloat16" and not route.on_device:
        return "high"
    return "master" if dtype == "float32" else "working"


@dataclass(frozen=True)
class Buffers:
    """`number` buffers of `nbytes` bytes each."""

    number: int
    nbytes: int

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.number * self.nbytes


@dataclass(frozen=True)
class BufferSizes:
    """Buffers that all units share.

    `weight_slots` hold streamed blocks, `fetch` their weights on the way from disk. `state`, `gradients` and
    `first_sums` lie between disk and update. `device_slots` collect gradients, `host_slots` receive them; in one memory
    the host's are both. On the device, `received` has what ranks send of a chunk's gradient, and `reduced` its sum
    until that has gone down.
    """

    weight_slots: Buffers
    fetch: Buffers
    state: Buffers
    gradients: Buffers
    first_sums: Buffers
    device_slots: Buffers
    host_slots: Buffers
    received: Buffers = Buffers(0, 0)
    reduced: Buffers = Buffers(0, 0)

    @property
    def staging_bytes(self) -> int:
        """Bytes of all host buffers between memory and disk; one more for state is there while no step runs."""
        pools = (self.fetch, self.state, self.gradients, self.first_sums)
        return self.state.nbytes + sum(pool.total for pool in pools)


def filed_tensors(region: Region, route: UnitRoute) -> tuple[StateTensor, ...]:
    """Return those of `state_tensors` that are on disk."""
    return tuple(t for t in state_tensors(region) if route.is_filed(t.kind, region.dtype))


def state_buffer_bytes(unit: Unit, chunk: Chunk, route: UnitRoute) -> int:
    """Return the bytes of a staging buffer for the state of `chunk` that is on disk, each tensor in whole pages."""
    filed = filed_tensors(unit.regions[chunk.region], route)
    return sum(padded(tensor.bytes(chunk.elements)) for tensor in filed)


def waiting_bytes(chunk: Chunk, route: UnitRoute) -> int:
    """Return the bytes of a chunk's gradient while it waits for the update: fp32 where it is a sum."""
    return 4 * chunk.elements if route.wide_gradients else chunk.weight_bytes


def frozen_pieces(numel: int, item_bytes: int, chunk_bytes: int) -> Iterator[int]:
    """Return the elements of each piece that a frozen parameter is fetched in."""
    per = max(chunk_bytes, SMALLEST_PIECE_BYTES) // item_bytes
    return (min(per, numel - at) for at in range(0, numel, per))


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment of what lies in a weight slot."""
    return -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def slot_bytes(unit: Unit, conditions: Conditions) -> int:
    """Return the bytes of a unit's weights in a slot: regions, then frozen parameters, in the compute dtypes."""
    held = [(r.elements, r.dtype) for r in unit.regions] + [(f.numel, f.dtype) for f in unit.frozen]
    return sum(aligned(count * ITEM_BYTES[conditions.compute_dtype(dtype)]) for count, dtype in held)


def name_of(kind: str) -> str:
    """Return the name by which the memory breakdown shows a kind of the state."""
    if kind in ("high", "low", "master"):
        return "master weights"
    return "weights" if kind == "working" else "exp_avg and exp_avg_sq"


def unit_breakdown(unit: Unit, route: UnitRoute, conditions: Conditions, chunk_bytes: int) -> Breakdown:
    """Return the memory of one unit's own: weights, state, waiting gradients and frozen weights; of what ranks share an
    equal part, which a rank's own differs from by some blocks of the norm."""
    found: Breakdown = {"device": {}, "host": {}, "disk": {}}
    tier = "device" if route.on_device else "host"
    sets = 2 if route.delayed else 1
    for region in unit.regions:
        owned = -(-region.elements // conditions.ranks) if route.partitioned else region.elements
        for tensor in held_tensors(region, route):
            size = tensor.bytes(owned)
            if route.is_filed(tensor.kind, region.dtype):
                chunks = (c for c in unit.chunks if unit.regions[c.region] is region)
                size = sum(padded(tensor.bytes(-(-c.elements * owned // region.elements))) for c in chunks)
                add(found, "disk", name_of(tensor.kind), size)
            elif route.aliased and tensor.kind == working_kind(region.dtype, route):
                add(found, "device", "weights", size)
            else:
                add(found, tier, name_of(tensor.kind), size)
        if not route.aliased and not route.streamed:
            item = ITEM_BYTES[conditions.compute_dtype(region.dtype)]
            add(found, "device", "weights", region.elements * item)
        elif route.fetches_apart:
            add(found, "host", "weights", owned * ITEM_BYTES[region.dtype])
        if route.waiting == "memory":
            item = 4 if route.wide_gradients else ITEM_BYTES[region.dtype]
            add(found, tier, "gradients", sets * owned * item)
        if route.sums_on_device:
            add(found, "device", "gradients", region.elements * 4)
    if route.waiting == "disk":
        add(found, "disk", "gradients", sets * sum(padded(waiting_bytes(c, route)) for c in unit.chunks))
    if route.speculates:
        records = sum(chunk_record_bytes(unit, chunk) for chunk in unit.chunks)
        add(found, "host", "records to undo", records // conditions.ranks)
    for spec in unit.frozen:
        item = ITEM_BYTES[spec.dtype]
        own = -(-spec.numel // conditions.ranks)
        if not route.streamed:
            compute = ITEM_BYTES[conditions.compute_dtype(spec.dtype)]
            add(found, "device", "frozen weights", spec.numel * compute)
        elif route.placement.weights == "disk":
            pieces = frozen_pieces(own, item, chunk_bytes)
            add(found, "disk", "frozen weights", sum(padded(count * item) for count in pieces))
        else:
            add(found, "host", "frozen weights", own * item)
    return found


def add(breakdown: Breakdown, tier: str, name: str, nbytes: int) -> None:
    """Add to one entry; nothing where `nbytes` is 0."""
    if nbytes:
        breakdown[tier][name] = breakdown[tier].get(name, 0) + nbytes


def breakdown_text(breakdown: Breakdown) -> str:
    """Return a memory breakdown in one line, the largest entries first."""
    parts = []
    for tier, named in breakdown.items():
        if named:
            largest = sorted(named.items(), key=lambda item: -item[1])
            held = ", ".join(f"{name} {size / 2**30:,.2f} GiB" for name, size in largest)
            parts.append(f"{tier}: {held}")
    return "; ".join(parts) or "the engine holds nothing yet"


# All units

UnitCount = tuple[Unit, UnitRoute, int]
"""A unit, its route, and how many units are like it."""


def each_unit(layout: Layout, routes: Iterable[UnitRoute]) -> list[UnitCount]:
    """Return every unit of `layout` with its route, counted once."""
    return [(unit, route, 1) for unit, route in zip(layout.units, routes, strict=True)]


def update_scratch_bytes(units: Iterable[UnitCount]) -> int:
    """Return what updates on a device of its own take for 16-bit gradients in fp32, while they run."""
    widened = sum(
        count * 4 * region.elements
        for unit, route, count in units
        if route.on_device and route.after_backward and not route.accumulates
        for region in unit.regions
        if region.dtype != "float32"
    )
    return min(widened, UPDATE_SCRATCH_BYTES)


def buffer_sizes(units: Iterable[UnitCount], conditions: Conditions, chunk_bytes: int) -> BufferSizes:
    """Return the buffers that `units` share."""
    units = list(units)
    streamed = [unit for unit, route, _ in units if route.streamed]
    blocks = sum(count for _, route, count in units if route.streamed)
    state = gradient = fetched = 0
    for unit, route, _ in units:
        for chunk in unit.chunks:
            state = max(state, state_buffer_bytes(unit, chunk, route))
            if route.waiting == "disk":
                gradient = max(gradient, padded(waiting_bytes(chunk, route)))
        if route.streamed and route.placement.weights == "disk":
            fetched = max([fetched, *(padded(chunk.weight_bytes) for chunk in unit.chunks)])
            for spec in unit.frozen:
                item = ITEM_BYTES[spec.dtype]
                pieces = frozen_pieces(spec.numel, item, chunk_bytes)
                fetched = max([fetched, *(padded(count * item) for count in pieces)])
    several = conditions.gradient_accumulation > 1
    device_slots, host_slots = _gradient_slots(units, conditions)
    return BufferSizes(
        weight_slots=Buffers(
            min(WEIGHT_SLOTS, blocks), max((slot_bytes(u, conditions) for u in streamed), default=0)
        ),
        fetch=Buffers(FETCH_BUFFERS if fetched else 0, fetched),
        state=Buffers(STAGING_BUFFERS if state else 0, state),
        gradients=Buffers(STAGING_BUFFERS if gradient else 0, gradient),
        first_sums=Buffers(STAGING_BUFFERS if gradient and several else 0, gradient),
        device_slots=device_slots,
        host_slots=host_slots,
    )


def _gradient_slots(units: list[UnitCount], conditions: Conditions) -> tuple[Buffers, Buffers]:
    """Return the slots in which chunks of gradients are collected, and those in which they arrive on the host."""
    bucketed = [entry for entry in units if entry[1].gradients == "bucketed" and not entry[1].sums_on_device]
    chunks = sum(count * len(unit.chunks) for unit, _, count in bucketed)
    nbytes = max((padded(c.weight_bytes) for unit, _, _ in bucketed for c in unit.chunks), default=0)
    largest = max((len(unit.chunks) for unit, _, _ in bucketed), default=0)
    outer = sum(count * len(unit.chunks) for unit, _, count in bucketed if unit.kind == "outer")
    device = 2 * largest + 2
    # Without anything to wait for, gradients are in slots until their unit's backward is over.
    ring = any(route.waiting == "ring" for _, route, _ in bucketed)
    host = 2 * largest + outer + 2 if ring else ARRIVAL_SLOTS
    if conditions.shared_memory:
        # Nothing comes down: a unit's chunks are open at most, and some are being summed or written.
        device, host = 0, max(largest + SUMMING_SLOTS, host)
    elif all(
        route.waiting == "memory" and (route.partitioned or not route.accumulates) for _, route, _ in bucketed
    ):
        host = 0  # they come down straight into the place where they wait
    if conditions.gradient_accumulation == 1:
        device, host = min(device, chunks), min(host, chunks)
    return Buffers(device, nbytes), Buffers(host if bucketed else 0, nbytes)


def sums_by_machine(ranks: int, here: int) -> bool:
    """Return whether ranks, `here` of them on a machine, add up within each machine first: where all have as many."""
    return 1 < here < ranks and ranks % here == 0


def by_machine_bytes(elements: int, item: int, sizes: Sequence[int], rank: int, here: int) -> list[int]:
    """Return the bytes of what a rank needs to sum a chunk machine by machine: the chunk in the order of who gets what,
    what the others here send of it, their sums, and those of other machines.

    `sizes`: every rank's share of its `elements`, of `item` bytes each; `here`: the ranks of a machine.
    """
    column = sum(sizes[rank % here :: here])
    needed = elements * item, here * column * item, 4 * column, 4 * (len(sizes) // here) * sizes[rank]
    return [aligned(nbytes) for nbytes in needed]


def reduce_buffers(
    layout: Layout, routes: Iterable[UnitRoute], partition: Partition, rank: int, here: int = 0
) -> tuple[Buffers, Buffers]:
    """Return the buffers in which a rank receives gradients, and those of sums that have to go down. `here`: the ranks
    of a machine, where they add up first."""
    received = reduced = 0
    for unit, route in zip(layout.units, routes, strict=True):
        for chunk in unit.chunks:
            shares = partition.sizes(unit.index, chunk.index)
            owned = shares[rank]
            item = 4 if route.sums_on_device else ITEM_BYTES[chunk.dtype]
            needed = [partition.ranks * owned * item]
            if here:
                needed = by_machine_bytes(chunk.elements, item, shares, rank, here)
            received = max(received, sum(needed))
            reduced = max(reduced, 0 if route.reduced_in_place else 4 * owned)
    return Buffers(1 if received else 0, received), Buffers(REDUCED_SLOTS if reduced else 0, reduced)
