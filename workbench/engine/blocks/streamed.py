"""A block whose weights come into a slot when they are used: what has to be copied, and where parameters lie in it.

Between uses the parameters' data is a NaN placeholder of the right shape and dtype without memory of its own, so that
whoever reads weights that are not there gets NaN, and not what some other block left.

Of several ranks each keeps its own part of a block, the trainable weights as their state is cut and frozen ones in
equal parts, copies that into its slot, and gets the rest from the others: `gathered` says what is whose there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from workbench.engine.devices.buffers import page_aligned
from workbench.engine.devices.device import Device
from workbench.engine.disk_files import DiskTier, FiledTensor, RecordFile
from workbench.engine.unit_memory import UnitMemory
from workbench.layout import Chunk
from workbench.sizes import aligned, frozen_pieces


@dataclass(frozen=True)
class FetchPiece:
    """Consecutive weights of one dtype: where they are kept, and where they go in a slot.

    Either `source` (host memory, 1-D) is given, or `file` and `record`. `start`: bytes into the slot.
    """

    count: int
    storage: torch.dtype
    compute: torch.dtype
    start: int
    source: Tensor | None = None
    file: RecordFile | None = None
    record: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes as they are kept."""
        return self.count * self.storage.itemsize

    def target(self, slot: Tensor) -> Tensor:
        """Return its place in a slot."""
        return slot[self.start : self.start + self.count * self.compute.itemsize].view(self.compute)


@dataclass(frozen=True)
class GatheredPiece:
    """Weights of one dtype that follow each other in a slot from byte `start` on; `counts`: of each rank's part."""

    start: int
    compute: torch.dtype
    counts: Sequence[int]

    def parts(self, slot: Tensor) -> tuple[Tensor, ...]:
        """Return every rank's part of it in a slot."""
        nbytes = sum(self.counts) * self.compute.itemsize
        whole = slot[self.start : self.start + nbytes].view(self.compute)
        return whole.split(list(self.counts))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RankParts:
    """The elements that each of `ranks` has of each of a block's chunks; this one is number `rank`."""

    rank: int
    ranks: int
    chunks: Sequence[Sequence[int]]

    def of_frozen(self, elements: int) -> list[int]:
        """Return the elements that each rank has of a frozen parameter."""
        return [
            stop - start
            for start, stop in pairwise(elements * n // self.ranks for n in range(self.ranks + 1))
        ]


@dataclass(frozen=True)
class _Frozen:
    """A frozen parameter as it is kept, flat: all of it, or this rank's part. `counts`: of every rank's."""

    name: str
    kept: Tensor | RecordFile
    storage: torch.dtype
    counts: Sequence[int]

    def read(self) -> Tensor:
        """Return what is kept of it, on the host; a view, where it is there."""
        if isinstance(self.kept, Tensor):
            return self.kept
        records = [(n, size // self.storage.itemsize) for n, size in enumerate(self.kept.record_bytes)]
        return FiledTensor(self.kept, self.storage, records).read(0, sum(count for _, count in records))


@dataclass(frozen=True)
class _Bound:
    parameter: nn.Parameter
    start: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    placeholder: Tensor


class StreamedUnit:
    """One block's weights, trainable and frozen. `frozen` parameters are taken over into the unit's tier here.

    `pieces`: what this rank copies into a slot; `gathered`: all that it holds then, where the rest is other ranks'.
    """

    def __init__(
        self,
        memory: UnitMemory,
        trainable: Sequence[nn.Parameter],
        frozen: Sequence[tuple[str, nn.Parameter, torch.dtype]],
        compute_dtypes: dict[torch.dtype, torch.dtype],
        device: Device,
        disk: DiskTier | None,
        chunk_bytes: int,
        parts: RankParts | None = None,
    ) -> None:
        self.unit = memory.unit
        self.pieces: list[FetchPiece] = []
        self.gathered: list[GatheredPiece] = []
        self._rank = 0 if parts is None else parts.rank
        self._bound: list[_Bound] = []
        self._frozen: list[_Frozen] = []
        end = 0
        starts = []
        for region in memory.regions:
            compute = compute_dtypes.get(region.dtype, region.dtype)
            starts.append(end)
            for whole, own in zip(memory.unit.chunks, memory.chunks, strict=True):
                if memory.regions[whole.region] is region:
                    base = end - region.region.start * compute.itemsize
                    self._add_chunk(memory, own, compute, base + own.start * compute.itemsize)
                    if parts is not None:
                        counts = parts.chunks[whole.index]
                        at = base + whole.start * compute.itemsize
                        self.gathered.append(GatheredPiece(at, compute, counts))
            end = aligned(end + region.region.elements * compute.itemsize)
        for segment, parameter in zip(memory.unit.segments, trainable, strict=True):
            region = memory.regions[segment.region]
            compute = compute_dtypes.get(region.dtype, region.dtype)
            start = starts[segment.region] + (segment.offset - region.region.start) * compute.itemsize
            self._bind(parameter, start, segment.shape, compute, device)
        on_disk = memory.route.placement.weights == "disk"
        for name, parameter, storage in frozen:
            compute = compute_dtypes.get(storage, storage)
            counts = [parameter.numel()] if parts is None else parts.of_frozen(parameter.numel())
            kept = self._keep_frozen(
                name, parameter, storage, device, disk if on_disk else None, chunk_bytes, counts
            )
            self._frozen.append(_Frozen(name, kept, storage, counts))
            at = end + sum(counts[: self._rank]) * compute.itemsize
            self.pieces += _cut_frozen(kept, counts[self._rank], storage, compute, at, chunk_bytes)
            if parts is not None:
                self.gathered.append(GatheredPiece(end, compute, counts))
            self._bind(parameter, end, tuple(parameter.shape), compute, device)
            end = aligned(end + parameter.numel() * compute.itemsize)
        self.unbind()

    def _add_chunk(self, memory: UnitMemory, chunk: Chunk, compute: torch.dtype, start: int) -> None:
        """Add what this rank has of a chunk, which goes to byte `start` of a slot."""
        region = memory.regions[chunk.region]
        source = region.fetched_weights if region.fetched_weights is not None else region.working_copy
        count, storage = chunk.elements, region.dtype
        if not count:
            return
        if source is not None:
            kept = memory.state_of_chunk(source, chunk)
            self.pieces.append(FetchPiece(count, storage, compute, start, source=kept))
        else:
            file = memory.files[region.working_kind]
            self.pieces.append(FetchPiece(count, storage, compute, start, file=file, record=chunk.index))

    def _bind(
        self, parameter: nn.Parameter, start: int, shape: tuple[int, ...], dtype: torch.dtype, device: Device
    ) -> None:
        nothing = torch.full((1,), float("nan") if dtype.is_floating_point else -1, dtype=dtype)
        placeholder = nothing.to(device.torch_device).expand(shape)
        nbytes = parameter.numel() * dtype.itemsize
        self._bound.append(_Bound(parameter, start, nbytes, shape, dtype, placeholder))

    def _keep_frozen(
        self,
        name: str,
        parameter: nn.Parameter,
        storage: torch.dtype,
        device: Device,
        disk: DiskTier | None,
        chunk_bytes: int,
        counts: Sequence[int],
    ) -> Tensor | RecordFile:
        """Take over what this rank keeps of a frozen parameter."""
        if parameter.is_meta:
            raise ValueError(f"parameter {name} is on the meta device: give the engine `materialize`")
        values = parameter.data.reshape(-1).split(list(counts))[self._rank].to(storage)
        if disk is None or not values.numel():
            kept = device.pinned_zeros(values.numel(), storage)
            kept.copy_(values)
            return kept
        parts = values.split(list(frozen_pieces(values.numel(), storage.itemsize, chunk_bytes)))
        file = disk.create(
            f"{self.unit.index:04d}-{name}.frozen", [p.numel() * storage.itemsize for p in parts]
        )
        for record, part in enumerate(parts):
            buffer = page_aligned(part.numel() * storage.itemsize)
            buffer.view(storage)[: part.numel()].copy_(part)
            file.write(record, buffer)
        return file

    def bind(self, slot: Tensor) -> None:
        """Let the parameters be views of `slot`, which holds this block's weights or soon will."""
        for b in self._bound:
            b.parameter.data = slot[b.start : b.start + b.nbytes].view(b.dtype).view(b.shape)

    def unbind(self) -> None:
        """Give the parameters their placeholders back."""
        for b in self._bound:
            b.parameter.data = b.placeholder

    def frozen_weights(
        self, gather: Callable[[Sequence[Tensor]], None] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Return the frozen parameters' values, flat, on the host; `gather` gives all ranks' parts of a tensor."""
        for frozen in self._frozen:
            values = frozen.read()
            if gather is not None:
                whole = torch.empty(sum(frozen.counts), dtype=frozen.storage)
                parts = whole.split(list(frozen.counts))
                parts[self._rank].copy_(values)
                gather(parts)
                values = whole
            yield frozen.name, values

    def hand_back_frozen(self) -> None:
        """Bind the frozen parameters to what is kept of them in memory, where that is all of them."""
        bound = self._bound[len(self._bound) - len(self._frozen) :]
        for b, frozen in zip(bound, self._frozen, strict=True):
            if isinstance(frozen.kept, Tensor) and len(frozen.counts) == 1:
                b.parameter.data = frozen.kept.view(b.shape)

    def frozen_bytes(self) -> tuple[str, int]:
        """Return the tier of the frozen weights and their bytes there."""
        on_disk = any(isinstance(frozen.kept, RecordFile) for frozen in self._frozen)
        return ("disk" if on_disk else "host"), sum(frozen.kept.nbytes for frozen in self._frozen)


def _cut_frozen(
    kept: Tensor | RecordFile,
    count: int,
    storage: torch.dtype,
    compute: torch.dtype,
    start: int,
    chunk_bytes: int,
) -> list[FetchPiece]:
    pieces = []
    at = 0
    for record, size in enumerate(frozen_pieces(count, storage.itemsize, chunk_bytes)):
        where = start + at * compute.itemsize
        if isinstance(kept, Tensor):
            pieces.append(FetchPiece(size, storage, compute, where, source=kept[at : at + size]))
        else:
            pieces.append(FetchPiece(size, storage, compute, where, file=kept, record=record))
        at += size
    return pieces
