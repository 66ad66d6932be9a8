"""A block whose weights come into a slot when they are used: what has to be copied, and where parameters lie in it.

Between uses the parameters' data is a NaN placeholder of the right shape and dtype without memory of its own, so that
whoever reads weights that are not there gets NaN, and not what some other block left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.engine.devices.buffers import page_aligned
from workbench.engine.devices.device import Device
from workbench.engine.disk_files import DiskTier, FiledTensor, RecordFile
from workbench.engine.unit_memory import UnitMemory
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
class _Bound:
    parameter: nn.Parameter
    start: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    placeholder: Tensor


class StreamedUnit:
    """One block's weights, trainable and frozen. `frozen` parameters are taken over into the unit's tier here."""

    def __init__(
        self,
        memory: UnitMemory,
        trainable: Sequence[nn.Parameter],
        frozen: Sequence[tuple[str, nn.Parameter, torch.dtype]],
        compute_dtypes: dict[torch.dtype, torch.dtype],
        device: Device,
        disk: DiskTier | None,
        chunk_bytes: int,
    ) -> None:
        self.unit = memory.unit
        self.pieces: list[FetchPiece] = []
        self._bound: list[_Bound] = []
        self._frozen: list[tuple[str, Tensor | RecordFile, int, torch.dtype]] = []
        end = 0
        starts = []
        for region in memory.regions:
            compute = compute_dtypes.get(region.dtype, region.dtype)
            starts.append(end)
            source = region.fetched_weights if region.fetched_weights is not None else region.working_copy
            for chunk in (c for c in memory.unit.chunks if memory.regions[c.region] is region):
                at = end + (chunk.start - region.region.start) * compute.itemsize
                if source is not None:
                    kept = memory.of_chunk(source, chunk)
                    piece = FetchPiece(chunk.elements, region.dtype, compute, at, source=kept)
                else:
                    file = memory.files[region.working_kind]
                    piece = FetchPiece(
                        chunk.elements, region.dtype, compute, at, file=file, record=chunk.index
                    )
                self.pieces.append(piece)
            end = aligned(end + region.region.elements * compute.itemsize)
        for segment, parameter in zip(memory.unit.segments, trainable, strict=True):
            region = memory.regions[segment.region]
            compute = compute_dtypes.get(region.dtype, region.dtype)
            start = starts[segment.region] + (segment.offset - region.region.start) * compute.itemsize
            self._bind(parameter, start, segment.shape, compute, device)
        on_disk = memory.route.placement.weights == "disk"
        for name, parameter, storage in frozen:
            compute = compute_dtypes.get(storage, storage)
            file_or_tensor = self._keep_frozen(
                name, parameter, storage, device, disk if on_disk else None, chunk_bytes
            )
            self._frozen.append((name, file_or_tensor, parameter.numel(), storage))
            self.pieces += _cut_frozen(file_or_tensor, parameter.numel(), storage, compute, end, chunk_bytes)
            self._bind(parameter, end, tuple(parameter.shape), compute, device)
            end = aligned(end + parameter.numel() * compute.itemsize)
        self.unbind()

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
    ) -> Tensor | RecordFile:
        if parameter.is_meta:
            raise ValueError(f"parameter {name} is on the meta device: give the engine `materialize`")
        values = parameter.data.reshape(-1).to(storage)
        if disk is None:
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

    def frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Return the frozen parameters' values, flat, on the host."""
        for name, kept, count, storage in self._frozen:
            if isinstance(kept, Tensor):
                yield name, kept
                continue
            records = [(n, size // storage.itemsize) for n, size in enumerate(kept.record_bytes)]
            yield name, FiledTensor(kept, storage, records).read(0, count)

    def hand_back_frozen(self) -> None:
        """Bind the frozen parameters to what is kept of them in memory."""
        bound = self._bound[len(self._bound) - len(self._frozen) :]
        for b, (_, kept, _, _) in zip(bound, self._frozen, strict=True):
            if isinstance(kept, Tensor):
                b.parameter.data = kept.view(b.shape)

    def frozen_bytes(self) -> tuple[str, int]:
        """Return the tier of the frozen weights and their bytes there."""
        on_disk = any(not isinstance(kept, Tensor) for _, kept, _, _ in self._frozen)
        return ("disk" if on_disk else "host"), sum(k.nbytes for _, k, _, _ in self._frozen)


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
