"""The memory of one unit: working weights, optimizer state in its tier, gradients that wait.

State is kept by *kind*. One kind of each region is the state's own working copy of the weights (`working_kind`): the
upper half of a split master, an fp32 master, or the 16-bit copy beside one.

| working weights of the forward | where |
|---|---|
| aliased | the state's working copy itself (one memory, or both on the device) |
| resident, not aliased | a tensor on the device, copied from the working copy after each update |
| streamed | in no place of their own: slots are filled from the working copy, wherever it is |

Where ranks share the state, a rank has its own part of each chunk (`chunks`), end to end. The weights that a forward
reads are whole on each; those of streamed units are gathered from all ranks' parts whenever a slot is filled.

Invariant: every tensor here is allocated once, and a resident parameter's `data` is a view of its region's `weights`
for as long as the engine lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic import Arithmetic, StateViews
from workbench.engine.devices.buffers import zeros
from workbench.engine.devices.device import Device
from workbench.engine.disk_files import DiskTier, FiledTensor, RecordFile
from workbench.engine.precision import DTYPES
from workbench.engine.stored_tensor import MasterHalf, SharedTensor, StoredTensor
from workbench.layout import (
    WEIGHT_TENSORS,
    Chunk,
    Region,
    Segment,
    Slice,
    StateTensor,
    Unit,
    chunk_record_bytes,
    padded,
    record_bytes,
    state_tensors,
)
from workbench.sizes import (
    UPDATE_SCRATCH_BYTES,
    Breakdown,
    UnitRoute,
    add,
    filed_tensors,
    held_tensors,
    name_of,
    working_kind,
)

WEIGHT_KINDS = frozenset(tensor.kind for tensors in WEIGHT_TENSORS.values() for tensor in tensors)
STALE_WEIGHTS = "stale_weights"
"""The kind of the weights that a delayed engine's next forward reads, an update behind the state's own."""


def state_suffixes(unit: Unit) -> list[str]:
    """Return the endings of the names of each region's tensors: dtype and format, where the unit has several."""
    several_dtypes = len({region.dtype for region in unit.regions}) > 1
    several_formats = len({region.state_format for region in unit.regions}) > 1
    return [f".{r.dtype}" * several_dtypes + f".{r.state_format}" * several_formats for r in unit.regions]


def state_kinds(region: Region) -> dict[str, tuple[torch.dtype, int]]:
    """Return the kinds of a region's state: dtype, and the elements of the parameter that share one of its elements."""
    return _kinds(state_tensors(region))


def _kinds(tensors: Iterable[StateTensor]) -> dict[str, tuple[torch.dtype, int]]:
    return {t.kind: (getattr(torch, t.dtype), t.elements) for t in tensors}


@dataclass
class RegionMemory:
    """One region of a unit; all tensors are 1-D.

    State, gradients and what slots are filled from have an element for each of `owned`, scales of moments fewer: this
    rank's part, all of the region where there is one rank. `weights` and `sums` are the whole region's.

    `kinds`: of the state, as `state_kinds` has them. `kept`: those that are in memory. `working_kind`: the one in which
    an update leaves the new working weights. `weights`: what the forward reads, None where it is streamed.
    `fetched_weights`: where the route `fetches_apart`, what slots are filled from instead of the working copy.
    `gradients`: one set, or two in a delayed engine, of what was copied down and waits, or the fp32 sums.
    `sums`: those that are taken on the device, before they come down.
    """

    region: Region
    owned: int
    dtype: torch.dtype
    kinds: dict[str, tuple[torch.dtype, int]]
    kept: dict[str, Tensor]
    working_kind: str
    weights: Tensor | None = None
    fetched_weights: Tensor | None = None
    gradients: list[Tensor] = field(default_factory=list)
    sums: Tensor | None = None

    @property
    def working_copy(self) -> Tensor | None:
        """The tensor in which an update leaves the new working weights; None where that is on disk."""
        return self.kept.get(self.working_kind)


class UnitMemory:
    """A unit's regions, and views of them by chunk and by parameter. `disk` is needed where the route names it.

    `owned`: this rank's part of each of the unit's chunks, where ranks share them.
    """

    def __init__(
        self,
        unit: Unit,
        route: UnitRoute,
        device: Device,
        compute_dtypes: dict[torch.dtype, torch.dtype],
        disk: DiskTier | None,
        owned: tuple[Chunk, ...] | None = None,
    ) -> None:
        self.unit = unit
        self.chunks = unit.chunks if owned is None else owned
        self.route = route
        self.steps = [0] * len(unit.segments)
        self.regions: list[RegionMemory] = []
        self.files: dict[str, RecordFile] = {}
        """The state's kinds on disk: a record a chunk, empty where a chunk has no such kind."""
        self.gradient_files: list[RecordFile] = []
        """The files in which gradients wait on disk, one set or two."""
        self._device = device
        self._places = self._place_chunks()
        self._records = {
            chunk.index: zeros(chunk_record_bytes(unit, chunk), torch.uint8)
            for chunk in self.chunks
            if route.speculates
        }
        for number, region in enumerate(unit.regions):
            mine = (c for c in self.chunks if c.region == number)
            elements = sum(c.elements for c in mine) if route.partitioned else region.elements
            storage = DTYPES[region.dtype]
            # Of a state on the host, copies read what the forward's weights come from, and nothing else.
            working = working_kind(region.dtype, route)
            read = None if route.fetches_apart else working
            kinds = _kinds(held_tensors(region, route))
            kept = {
                kind: self._in_tier(-(-elements // per), dtype, copied=kind == read)
                for kind, (dtype, per) in kinds.items()
                if not route.is_filed(kind, region.dtype)
            }
            memory = RegionMemory(region, elements, storage, kinds, kept, working)
            if route.aliased:
                memory.weights = memory.working_copy
            elif not route.streamed:
                memory.weights = device.empty(region.elements, compute_dtypes.get(storage, storage))
            elif route.fetches_apart:
                memory.fetched_weights = device.pinned_zeros(elements, storage)
            if route.sums_on_device:
                memory.sums = device.empty(region.elements, torch.float32)
            self.regions.append(memory)
        if route.placement.state == "disk":
            assert disk is not None, "the engine opens a disk tier where a placement needs one"
            self._create_files(disk)

    def _place_chunks(self) -> list[int]:
        """Return where each chunk begins in the tensors of its region's state."""
        if not self.route.partitioned:
            return [chunk.start - self.unit.regions[chunk.region].start for chunk in self.chunks]
        ends = [0] * len(self.unit.regions)
        places = []
        for chunk in self.chunks:
            places.append(ends[chunk.region])
            ends[chunk.region] += chunk.elements
        return places

    def _in_tier(self, elements: int, dtype: torch.dtype, *, copied: bool) -> Tensor:
        """Return memory for state or gradients. Gaps of alignment are saved and copied with the rest: all is zero."""
        if self.route.on_device:
            return self._device.empty(elements, dtype).zero_()
        return self._device.pinned_zeros(elements, dtype) if copied else zeros(elements, dtype)

    @property
    def _gradient_sets(self) -> int:
        return 2 if self.route.delayed else 1

    def make_room_for_gradients(self) -> None:
        """Allocate what gradients wait in, where that is memory. No copy reaches sums that are made on the host."""
        for memory in self.regions if self.route.waiting == "memory" else ():
            dtype = torch.float32 if self.route.wide_gradients else memory.dtype
            copied = not self.route.accumulates or self.route.sums_on_device
            memory.gradients = [
                self._in_tier(memory.owned, dtype, copied=copied) for _ in range(self._gradient_sets)
            ]

    def _create_files(self, disk: DiskTier) -> None:
        name = f"{self.unit.index:04d}-{self.unit.name}"
        lengths: dict[str, list[int]] = {}
        for chunk in self.chunks:
            for kind, (dtype, count) in self.filed_kinds(chunk).items():
                lengths.setdefault(kind, [0] * len(self.unit.chunks))[chunk.index] = count * dtype.itemsize
        self.files = {kind: disk.create(f"{name}.{kind}", sizes) for kind, sizes in lengths.items()}
        if self.route.waiting == "disk" and self.unit.chunks:
            sizes = [chunk.elements * self.waiting_dtype(chunk).itemsize for chunk in self.unit.chunks]
            self.gradient_files = [
                disk.create(f"{name}.gradient-{i}", sizes) for i in range(self._gradient_sets)
            ]

    def waiting_dtype(self, chunk: Chunk) -> torch.dtype:
        """Return the dtype of a gradient of `chunk` that was bucketed and waits."""
        return torch.float32 if self.route.wide_gradients else DTYPES[chunk.dtype]

    def waiting_gradient(self, chunk: Chunk, number: int) -> Tensor | None:
        """Return the memory in which a chunk's gradient of the set `number` waits, 1-D; None where it does not."""
        gradients = self.regions[chunk.region].gradients
        return self.state_of_chunk(gradients[number], chunk) if gradients else None

    # Chunks on disk

    def filed_kinds(self, chunk: Chunk) -> dict[str, tuple[torch.dtype, int]]:
        """Return the kinds of a chunk's state that are on disk: dtype and elements."""
        filed = filed_tensors(self.unit.regions[chunk.region], self.route)
        return {t.kind: (getattr(torch, t.dtype), t.count(chunk.elements)) for t in filed}

    def stage(self, chunk: Chunk, buffer: Tensor) -> dict[str, Tensor]:
        """Return places in `buffer` (uint8, page aligned) for a chunk's kinds on disk, each padded to whole pages."""
        places = {}
        start = 0
        for kind, (dtype, count) in self.filed_kinds(chunk).items():
            size = padded(count * dtype.itemsize)
            places[kind] = buffer[start : start + size].view(dtype)
            start += size
        return places

    # Values in

    def adopt(
        self, parameters: Sequence[nn.Parameter], arithmetic: Arithmetic, buffer: Tensor | None
    ) -> None:
        """Take the parameters' values over, one for each segment in order, and rebind the data of resident ones.

        `buffer` is a staging buffer, where there are kinds on disk.
        """
        values = [parameter.data.reshape(-1) for parameter in parameters]
        for segment, parameter in zip(self.unit.segments, parameters, strict=True):
            if parameter.is_meta:
                raise ValueError(
                    f"parameter {segment.name} is on the meta device: give the engine `materialize`"
                )
        for chunk in self.chunks:
            staged: dict[str, Tensor] = {}
            if self.files:
                assert buffer is not None
                staged = self.stage(chunk, buffer)
                for kind in staged.keys() & WEIGHT_KINDS:
                    staged[kind].zero_()
            for part, views in zip(chunk.slices, self.views(chunk, staged), strict=True):
                _set_values(views, values[part.segment][part.start : part.start + part.count], arithmetic)
            for kind, place in staged.items() if chunk.elements else ():
                # Moments stay unwritten: such a record reads as zeros.
                if kind in WEIGHT_KINDS:
                    self.files[kind].write(chunk.index, place)
        self.push_weights()
        if not self.route.streamed:
            for segment, parameter in zip(self.unit.segments, parameters, strict=True):
                weights = self.regions[segment.region].weights
                assert weights is not None
                parameter.data = self.of_segment(weights, segment).view(segment.shape)

    def push_weights(self) -> None:
        """Copy the state's working copy to where the forward reads it, where that is apart: a rank's own part."""
        if self.route.partitioned and not self.route.streamed:
            for chunk in self.chunks:
                source, target = self.new_weights(chunk)
                self._device.load_weights(target, source)
            return
        for memory in self.regions:
            copy = memory.working_copy
            for whole in (memory.weights, memory.fetched_weights):
                if whole is not None and copy is not None and whole is not copy:
                    self._device.load_weights(whole, copy)

    def new_weights(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return where an update leaves the weights of `chunk` of `chunks`, and where the forward, or a fetch, reads
        them apart from that: 1-D each."""
        memory = self.regions[chunk.region]
        assert memory.working_copy is not None
        source = self.state_of_chunk(memory.working_copy, chunk)
        if memory.fetched_weights is not None:
            return source, self.state_of_chunk(memory.fetched_weights, chunk)
        assert memory.weights is not None
        return source, self.of_chunk(memory.weights, chunk)

    def hand_back(self, parameters: Sequence[nn.Parameter]) -> None:
        """Bind parameters that were streamed, or computed in another dtype, to the working copy in memory.

        A rank has that of its own part only: there they stay in the dtype that they were computed in, and streamed ones
        have none.
        """
        if self.route.partitioned:
            return
        for segment, parameter in zip(self.unit.segments, parameters, strict=True):
            memory = self.regions[segment.region]
            copy = memory.working_copy
            if copy is not None and (memory.weights is None or memory.weights.dtype != copy.dtype):
                parameter.data = self.of_segment(copy, segment).view(segment.shape)

    # Views

    def of_segment(self, tensor: Tensor, segment: Segment) -> Tensor:
        """Return the part of a region's tensor that belongs to `segment`, 1-D."""
        start = segment.offset - self.regions[segment.region].region.start
        return tensor[start : start + segment.numel]

    def of_chunk(self, tensor: Tensor, chunk: Chunk) -> Tensor:
        """Return the part of the whole region's tensor that belongs to `chunk`, 1-D."""
        base = self.regions[chunk.region].region.start
        return tensor[chunk.start - base : chunk.stop - base]

    def state_of_chunk(self, tensor: Tensor, chunk: Chunk) -> Tensor:
        """Return the part of a tensor of the state, or of gradients, that belongs to `chunk` of `chunks`, 1-D."""
        start = self._places[chunk.index]
        return tensor[start : start + chunk.elements]

    def sum_of_segment(self, segment: Segment) -> Tensor:
        """Return where the gradient of `segment` is summed on the device, 1-D."""
        sums = self.regions[segment.region].sums
        assert sums is not None
        return self.of_segment(sums, segment)

    def sums_of_chunk(self, chunk: Chunk) -> Tensor:
        """Return where the gradients of `chunk` are summed on the device, 1-D."""
        sums = self.regions[chunk.region].sums
        assert sums is not None
        return self.of_chunk(sums, chunk)

    def whole_regions(self) -> list[Chunk]:
        """Return each region as one chunk. Its parameters are whole, unless an update on the device could not make such
        a gradient wide at once."""
        longest = UPDATE_SCRATCH_BYTES // 4
        return [
            Chunk(
                number,
                region.start,
                region.stop,
                region.dtype,
                number,
                tuple(
                    Slice(index, start, min(longest, segment.numel - start))
                    for index, segment in enumerate(self.unit.segments)
                    if segment.region == number
                    for start in range(0, segment.numel, longest)
                ),
            )
            for number, region in enumerate(self.unit.regions)
        ]

    def slices(self, tensor: Tensor, chunk: Chunk) -> list[Tensor]:
        """Return a chunk's tensor (one element for each of the chunk's) cut into its slices."""
        views = []
        for part in chunk.slices:
            begin = self.unit.segments[part.segment].offset + part.start - chunk.start
            views.append(tensor[begin : begin + part.count])
        return views

    def views(self, chunk: Chunk, staged: dict[str, Tensor]) -> list[StateViews]:
        """Return the state of a chunk, slice by slice; `staged` are the places of its kinds on disk."""
        memory = self.regions[chunk.region]
        sizes = [record_bytes(memory.region.state_format, part.count) for part in chunk.slices]
        of_chunk = self._records.get(chunk.index)
        records = [None] * len(sizes) if of_chunk is None else of_chunk.split(sizes)
        views = []
        for part, record in zip(chunk.slices, records, strict=True):
            segment = self.unit.segments[part.segment]
            tensors = {}
            for kind, (_, per) in memory.kinds.items():
                place = 0 if kind in staged else self._places[chunk.index]
                # A scale stands for a block of elements; slices begin with a block.
                begin = (place + segment.offset + part.start - chunk.start) // per
                whole = staged[kind] if kind in staged else memory.kept[kind]
                tensors[kind] = whole[begin : begin - (-part.count // per)]
            views.append(
                StateViews(
                    decay=segment.decay,
                    learning_rate_scale=segment.learning_rate_scale,
                    state_format=memory.region.state_format,
                    offset=part.start,
                    random_stream=(self.unit.index << 32) + part.segment,
                    records=record,
                    **tensors,
                )
            )
        return views

    # Checkpoint contents

    def newest_weights(self, gathered: Sequence[Tensor] | None = None) -> dict[str, Tensor]:
        """Return the trainable parameters by name, in the storage dtype: views of host memory, copies of the rest.

        `gathered`: those of each region, of all ranks, where this one has not the newest of all.
        """
        found: dict[str, Tensor] = {}
        for number, region in enumerate(self.regions):
            if gathered is not None:
                whole = gathered[number]
            elif self.route.partitioned:
                assert region.weights is not None
                whole = region.weights.to("cpu", region.dtype)
            else:
                whole = self.own_weights(number)
            for segment in (s for s in self.unit.segments if s.region == number):
                found[segment.name] = self.of_segment(whole, segment).view(segment.shape)
        return found

    def own_weights(self, region: int) -> Tensor:
        """Return a region's newest weights on the host, 1-D: this rank's part of them; a view, where they are there."""
        memory = self.regions[region]
        if memory.working_copy is not None:
            return memory.working_copy.cpu()
        stored = self.stored(region, memory.working_kind)
        return stored.read(0, stored.numel())

    def state(self) -> Iterator[tuple[str, Tensor | StoredTensor]]:
        """Return the unit's state as (kind, 1-D tensor), named by dtype and format where a unit has several.

        Whatever tier it is in: bf16 weights always have the two halves of their master. What follows from other kinds
        is left out, the fp16 copy of an fp32 master.
        """
        for suffix, memory in zip(state_suffixes(self.unit), self.regions, strict=True):
            region = memory.region
            for kind, (dtype, per) in state_kinds(region).items():
                if kind == "working":
                    continue
                mine = self._own_kind(memory, kind, dtype, per)
                yield kind + suffix, self._shared(memory, mine, per) if self.route.partitioned else mine
            if self.route.delayed:
                yield STALE_WEIGHTS + suffix, self._stale_weights(memory)

    def _own_kind(
        self, memory: RegionMemory, kind: str, dtype: torch.dtype, per: int
    ) -> Tensor | StoredTensor:
        """Return this rank's part of one kind of a region's state."""
        if kind in memory.kept:
            return memory.kept[kind]
        if kind in memory.kinds:
            return self._stored(memory.region, kind, dtype, per)
        return MasterHalf(memory.kept["master"], "high" if kind == "high" else "low")

    def _stale_weights(self, memory: RegionMemory) -> Tensor | SharedTensor:
        if memory.fetched_weights is not None:
            mine = memory.fetched_weights
            return self._shared(memory, mine) if self.route.partitioned else mine
        assert memory.weights is not None
        return self._own_parts(memory, memory.weights) if self.route.partitioned else memory.weights

    def _shared(self, memory: RegionMemory, mine: Tensor | StoredTensor, per: int = 1) -> SharedTensor:
        """Return a tensor of a region, of which this rank has `mine`, its part of each chunk."""
        region = memory.region
        parts = [
            ((chunk.start - region.start) // per, -(-chunk.elements // per), self._places[chunk.index] // per)
            for chunk in self.chunks
            if self.unit.regions[chunk.region] is region
        ]
        return SharedTensor(mine, -(-region.elements // per), parts)

    def _own_parts(self, memory: RegionMemory, whole: Tensor) -> SharedTensor:
        """Return a tensor that every rank has whole, as one of which each has its part of each chunk."""
        mine = [chunk for chunk in self.chunks if self.unit.regions[chunk.region] is memory.region]
        starts = [chunk.start - memory.region.start for chunk in mine]
        parts = [(start, chunk.elements, start) for start, chunk in zip(starts, mine, strict=True)]
        return SharedTensor(whole, whole.numel(), parts)

    def stored(self, region: int, kind: str) -> StoredTensor:
        """Return one kind of a region's state that is on disk."""
        place = self.regions[region].region
        return self._stored(place, kind, *state_kinds(place)[kind])

    def _stored(self, region: Region, kind: str, dtype: torch.dtype, per: int) -> StoredTensor:
        mine = (c for c in self.chunks if self.unit.regions[c.region] is region)
        records = [(chunk.index, -(-chunk.elements // per)) for chunk in mine]
        return FiledTensor(self.files[kind], dtype, records)

    def derive(self, arithmetic: Arithmetic, buffer: Tensor | None) -> None:
        """Make what follows from the state, after that was written into."""
        for chunk in self.chunks:
            if self.regions[chunk.region].working_kind != "working":
                continue
            staged = {}
            if self.files:
                assert buffer is not None
                staged = self.stage(chunk, buffer)
                for kind in ("master", "working"):
                    if kind in staged:
                        self.files[kind].read(chunk.index, staged[kind])
            for views in self.views(chunk, staged):
                assert views.master is not None and views.working is not None
                arithmetic.narrow(views.working, views.master)
            if "working" in staged:
                self.files["working"].write(chunk.index, staged["working"])
        if not self.route.delayed:
            self.push_weights()

    # Sizes

    def add_memory(self, found: Breakdown) -> None:
        """Add the unit's bytes to `found`."""
        tier = "device" if self.route.on_device else "host"
        for memory in self.regions:
            if memory.weights is not None:
                add(found, "device", "weights", memory.weights.nbytes)
            if memory.fetched_weights is not None:
                add(found, "host", "weights", memory.fetched_weights.nbytes)
            for kind, tensor in memory.kept.items():
                if tensor is not memory.weights:
                    add(found, tier, name_of(kind), tensor.nbytes)
            for gradient in memory.gradients:
                add(found, tier, "gradients", gradient.nbytes)
            if memory.sums is not None:
                add(found, "device", "gradients", memory.sums.nbytes)
        add(found, "host", "records to undo", sum(records.nbytes for records in self._records.values()))
        for kind, file in self.files.items():
            add(found, "disk", name_of(kind), file.nbytes)
        for file in self.gradient_files:
            add(found, "disk", "gradients", file.nbytes)


@torch.no_grad()
def _set_values(views: StateViews, values: Tensor, arithmetic: Arithmetic) -> None:
    """Write a slice of a parameter's values into its state."""
    if views.master is not None:
        views.master.copy_(values)
        if views.working is not None:
            views.working.copy_(views.master)
        return
    assert views.high is not None and views.low is not None
    if values.dtype != views.high.dtype:
        arithmetic.split(values.to(views.high.device, torch.float32).contiguous(), views.high, views.low)
    else:
        views.high.copy_(values)
