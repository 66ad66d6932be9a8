"""The place of every byte of a model: units, their segment tables, and the chunks that move and update together.

Written once for two readers: the engine lays real memory out by it, the planner adds it up. It knows names, shapes and
sizes, never tensors, and it never looks at a model's name. The tensors of the optimizer state in each format, and the
tier of each unit's weights and state, are here too.

Invariant: offsets count elements of the unit, parameters start at multiples of `ALIGNMENT`, and a parameter that
crosses a chunk boundary is cut at a multiple of `NORM_BLOCK` of its own elements. So the partial sums of the gradient
norm, one a block of a parameter, are the same however large the chunks are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

ALIGNMENT = 256
NORM_BLOCK = 65_536
PAGE_BYTES = 4096

ITEM_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    "complex128": 16,
}
"""Bytes of an element by torch's name of the dtype: trained parameters are floating point, frozen ones of any dtype."""

Tier = Literal["device", "host", "disk"]
UnitKind = Literal["block", "outer"]
StateFormat = Literal["exact", "half", "compact"]

BLOCK = 256
"""Elements that share a scale in the state format `compact`."""

RECORD_ELEMENTS = 2048
RECORD_BYTES: dict[StateFormat, int] = {"exact": 8320, "half": 6272, "compact": 6336}
"""Elements and bytes of a record, by which an update can be undone (native/kernels/kernels.h): 4 or 3 bytes an element,
1/16 for those that need more, and the scales."""


class StateTensor(NamedTuple):
    """One tensor of the state: an element of `dtype` for each `elements` of the parameter."""

    kind: str
    dtype: str
    elements: int

    def count(self, parameters: int) -> int:
        """Return its elements for so many parameters; a block that is not full counts as one."""
        return -(-parameters // self.elements)

    def bytes(self, parameters: int) -> int:
        """Return its bytes for so many parameters."""
        return self.count(parameters) * ITEM_BYTES[self.dtype]


WEIGHT_TENSORS: dict[str, tuple[StateTensor, ...]] = {
    "float32": (StateTensor("master", "float32", 1),),
    "bfloat16": (StateTensor("high", "bfloat16", 1), StateTensor("low", "int16", 1)),
    "float16": (StateTensor("master", "float32", 1), StateTensor("working", "float16", 1)),
}
"""The tensors in which the state keeps the weights, by the dtype that the forward's are stored in: bf16 ones in two
lossless halves."""

MOMENTS: dict[StateFormat, tuple[StateTensor, ...]] = {
    "exact": (StateTensor("exp_avg", "float32", 1), StateTensor("exp_avg_sq", "float32", 1)),
    "half": (StateTensor("exp_avg", "bfloat16", 1), StateTensor("exp_avg_sq", "bfloat16", 1)),
    "compact": (
        StateTensor("exp_avg", "int8", 1),
        StateTensor("exp_avg_sq", "uint8", 1),
        StateTensor("exp_avg_scale", "float32", BLOCK),
        StateTensor("exp_avg_sq_scale", "float32", BLOCK),
    ),
}
"""The tensors of both moments in each format.

`half` is rounded stochastically. In `compact` exp_avg is code * |code| * scale and exp_avg_sq is code^2 * scale.
"""


def moment_bytes(state_format: StateFormat, parameters: int) -> int:
    """Return the bytes of both moments of so many parameters, scales included."""
    return sum(tensor.bytes(parameters) for tensor in MOMENTS[state_format])


def record_bytes(state_format: StateFormat, parameters: int) -> int:
    """Return the bytes of the records by which an update of so many parameters in one piece can be undone."""
    return -(-parameters // RECORD_ELEMENTS) * RECORD_BYTES[state_format]


def chunk_record_bytes(unit: Unit, chunk: Chunk) -> int:
    """Return the bytes of the records of a chunk."""
    state_format = unit.regions[chunk.region].state_format
    return sum(record_bytes(state_format, part.count) for part in chunk.slices)


def padded(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole pages, which direct I/O moves."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter before it has a place: `shape` in elements, `dtype` of its working weights."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    state_format: StateFormat = "exact"
    decay: bool | None = None
    """Weight decay applies; None: where it has two or more dimensions."""
    learning_rate_scale: float = 1.0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Segment:
    """A trainable parameter's place in its unit. `decay`: weight decay applies."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    numel: int
    decay: bool
    region: int
    learning_rate_scale: float = 1.0


@dataclass(frozen=True)
class Slice:
    """The part of a segment that lies in one chunk: `count` elements from element `start` of the parameter."""

    segment: int
    start: int
    count: int


@dataclass(frozen=True)
class Chunk:
    """Elements `start` to `stop` of a unit, all of one region: transferred and updated as one piece."""

    index: int
    start: int
    stop: int
    dtype: str
    region: int
    slices: tuple[Slice, ...]

    @property
    def elements(self) -> int:
        return self.stop - self.start

    @property
    def weight_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Region:
    """Elements `start` to `stop` of a unit, all those of one dtype and one format of their state."""

    dtype: str
    state_format: StateFormat
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def state_tensors(region: Region) -> tuple[StateTensor, ...]:
    """Return the tensors of a region's state: its weights as the state keeps them, then its moments."""
    return WEIGHT_TENSORS[region.dtype] + moment_tensors(region)


def moment_tensors(region: Region) -> tuple[StateTensor, ...]:
    """Return the tensors of a region's moments."""
    return MOMENTS[region.state_format]


@dataclass(frozen=True)
class Unit:
    """The parameters that move together. `frozen` ones have weights and no place in the state."""

    index: int
    name: str
    kind: UnitKind
    segments: tuple[Segment, ...]
    frozen: tuple[ParameterSpec, ...]
    chunks: tuple[Chunk, ...]
    regions: tuple[Region, ...]

    @cached_property
    def elements(self) -> int:
        """Elements from the first parameter to the end of the last, gaps of alignment included."""
        return sum(region.elements for region in self.regions)

    @cached_property
    def parameters(self) -> int:
        """Parameters without the gaps, frozen ones included."""
        return sum(s.numel for s in self.segments) + sum(f.numel for f in self.frozen)

    @cached_property
    def trainable_parameters(self) -> int:
        return sum(segment.numel for segment in self.segments)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of working weights, gaps and frozen parameters included."""
        return sum(chunk.weight_bytes for chunk in self.chunks) + sum(f.bytes for f in self.frozen)


@dataclass(frozen=True)
class Layout:
    """All units, in forward order."""

    units: tuple[Unit, ...]

    @cached_property
    def alike(self) -> tuple[tuple[Unit, ...], ...]:
        """The units in groups of those that differ in place and names only."""
        groups: dict[tuple[object, ...], list[Unit]] = {}
        for unit in self.units:
            sizes = tuple(s.numel for s in unit.segments), tuple((f.numel, f.dtype) for f in unit.frozen)
            groups.setdefault((unit.kind, unit.regions, sizes), []).append(unit)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def parameters(self) -> int:
        return sum(unit.parameters for unit in self.units)

    @cached_property
    def trainable_parameters(self) -> int:
        return sum(unit.trainable_parameters for unit in self.units)

    def chunks(self) -> Iterable[tuple[Unit, Chunk]]:
        """Return every chunk with its unit, in forward order."""
        for unit in self.units:
            for chunk in unit.chunks:
                yield unit, chunk


@dataclass(frozen=True)
class UnitSpec:
    """A unit's parameters, before it is laid out."""

    name: str
    kind: UnitKind
    parameters: tuple[ParameterSpec, ...]


def build_layout(specs: Sequence[UnitSpec], chunk_bytes: int) -> Layout:
    """Lay out `specs`, given in forward order, in chunks of at most `chunk_bytes` bytes of working weights.

    A chunk is never smaller than one `NORM_BLOCK`. Within a unit, parameters of one dtype and state format lie
    together, so that a chunk has a single one of each; their order is otherwise kept.

    Raises:
        ValueError: `chunk_bytes` is not positive, or a dtype is unknown.
    """
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes = {chunk_bytes}: expected a positive number of bytes")
    return Layout(tuple(_lay_out(index, spec, chunk_bytes) for index, spec in enumerate(specs)))


def _lay_out(index: int, spec: UnitSpec, chunk_bytes: int) -> Unit:
    trainable = [p for p in spec.parameters if p.trainable]
    kinds = list(dict.fromkeys((p.dtype, p.state_format) for p in trainable))
    for dtype, _ in kinds:
        if dtype not in WEIGHT_TENSORS:
            raise ValueError(
                f"unit {spec.name}: dtype {dtype} cannot be trained; expected {', '.join(WEIGHT_TENSORS)}"
            )
    segments: list[Segment] = []
    chunks: list[Chunk] = []
    regions: list[Region] = []
    offset = 0
    for number, (dtype, state_format) in enumerate(kinds):
        first, start = len(segments), offset
        for parameter in (p for p in trainable if (p.dtype, p.state_format) == (dtype, state_format)):
            segments.append(
                Segment(
                    name=parameter.name,
                    shape=parameter.shape,
                    dtype=dtype,
                    offset=offset,
                    numel=parameter.numel,
                    decay=len(parameter.shape) >= 2 if parameter.decay is None else parameter.decay,
                    region=number,
                    learning_rate_scale=parameter.learning_rate_scale,
                )
            )
            offset += _aligned(parameter.numel)
        limit = max(NORM_BLOCK, chunk_bytes // ITEM_BYTES[dtype])
        chunks.extend(_cut(segments, first, limit, dtype, number, len(chunks)))
        regions.append(Region(dtype, state_format, start, offset))
    frozen = tuple(p for p in spec.parameters if not p.trainable)
    return Unit(index, spec.name, spec.kind, tuple(segments), frozen, tuple(chunks), tuple(regions))


def _cut(
    segments: Sequence[Segment], first: int, limit: int, dtype: str, region: int, first_chunk: int
) -> list[Chunk]:
    """Fill chunks of at most `limit` elements with the segments from `first` on, cutting large ones."""
    chunks: list[Chunk] = []
    slices: list[Slice] = []
    start = stop = segments[first].offset if first < len(segments) else 0

    def close() -> None:
        nonlocal slices, start
        if slices:
            chunks.append(Chunk(first_chunk + len(chunks), start, stop, dtype, region, tuple(slices)))
        slices, start = [], stop

    for number in range(first, len(segments)):
        segment = segments[number]
        done = 0
        while done < segment.numel:
            begin = segment.offset + done
            remaining = segment.numel - done
            room = limit - (begin - start)
            if remaining > room:
                room -= room % NORM_BLOCK
                if room <= 0:
                    close()
                    start = begin
                    continue
            count = min(remaining, room)
            slices.append(Slice(number, done, count))
            done += count
            stop = begin + _aligned(count)
    close()
    return chunks


def _aligned(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Placement:
    """The tiers of one unit's working weights and of its optimizer state. `speculated`: there are records by which its
    update can be undone, so that it need not wait for the norm of all gradients."""

    weights: Tier
    state: Tier
    speculated: bool = False


def stay_on_device(trainable: Sequence[int], device_fraction: float) -> list[bool]:
    """Return for each unit, given by its trainable parameters in forward order, True where it stays on the device.

    The first ones stay, while they are no more than `device_fraction` of all.
    """
    limit = device_fraction * sum(trainable)
    return [device_fraction > 0 and passed <= limit for passed in accumulate(trainable)]


def place(
    layout: Layout, weights: Tier, state: Tier, device_fraction: float = 0.0, speculation: float = 0.0
) -> tuple[Placement, ...]:
    """Return the placement of every unit of `layout`.

    Units outside the blocks keep their weights on the device: they are read at any moment of a step. The first
    units in forward order, as many as fit in `device_fraction` of the trainable parameters, stay on the device whole.
    The last ones, as many as fit in `speculation` of them, have records where their state is on the host, as their
    gradients come first.

    Raises:
        ValueError: the tiers contradict each other, or a fraction is not between 0 and 1.
    """
    if not 0 <= speculation <= 1:
        raise ValueError(f"speculation = {speculation}: expected 0 to 1")
    if not 0 <= device_fraction <= 1:
        raise ValueError(f"device_fraction = {device_fraction}: expected 0 to 1")
    if state == "device" and weights != "device":
        raise ValueError(f"weights = {weights!r} with state = 'device': the state is larger than the weights")
    if weights == "disk" and state != "disk":
        raise ValueError(f"weights = 'disk' with state = {state!r}: the state has to be on disk as well")
    trainable = [unit.trainable_parameters for unit in layout.units]
    stay = stay_on_device(trainable, device_fraction)
    speculated = reversed(stay_on_device(trainable[::-1], speculation))
    placements: list[Placement] = []
    for unit, stays, ahead in zip(layout.units, stay, speculated, strict=True):
        if state == "device" or stays:
            placements.append(Placement("device", "device"))
        else:
            tier = weights if unit.kind == "block" else "device"
            placements.append(Placement(tier, state, ahead and state == "host"))
    return tuple(placements)
