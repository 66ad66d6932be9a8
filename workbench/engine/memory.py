"""The memory of one shard: working weights on the device, optimizer state in its tier, gradients that wait.

What exists depends on two facts, whether device and host share one memory and where the state lives:

| | fp32 weights | bf16 weights |
|---|---|---|
| state beside the weights (one memory, or both on the device) | master *is* the weights | `high` *is* the weights |
| state on the host, weights on the device | master on the host, copied up | `high` on the host, copied up |

Invariant: every tensor here is allocated once, and a parameter's `data` is a view of its region's `weights` for as
long as the engine lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic import Arithmetic, StateViews
from workbench.engine.device import Device
from workbench.layout import Chunk, Region, Segment, Shard
from workbench.state_formats import MOMENTS

WORKING_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class RegionMemory:
    """One region of a shard; all tensors are 1-D and, but for `moments`, `region.elements` long.

    `master` (fp32) or `high` and `low` (bf16, int16: the split master) hold the parameters to full precision. `moments`
    are exp_avg and exp_avg_sq by kind, as the region's state format keeps them.
    `gradient` holds what was copied down and waits for the norm, or the fp32 sum over micro-batches; None where
    gradients stay where autograd puts them.
    """

    region: Region
    weights: Tensor
    master: Tensor | None
    high: Tensor | None
    low: Tensor | None
    moments: dict[str, Tensor]
    gradient: Tensor | None

    @property
    def emitted(self) -> Tensor:
        """Where an update leaves the new working weights: `weights` itself unless they are copied up."""
        emitted = self.high if self.high is not None else self.master
        assert emitted is not None
        return emitted

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizer state by kind, as it is saved."""
        for kind in ("master", "high", "low"):
            tensor: Tensor | None = getattr(self, kind)
            if tensor is not None:
                yield kind, tensor
        yield from self.moments.items()


class ShardMemory:
    """A shard's regions, and views of them by chunk and by parameter."""

    def __init__(
        self,
        shard: Shard,
        device: Device,
        *,
        state_on_device: bool,
        gradient_dtype: Callable[[str], torch.dtype | None],
    ) -> None:
        self.shard = shard
        self.steps = [0] * len(shard.segments)
        beside = device.shared_memory or state_on_device
        in_tier = device.empty if state_on_device else device.empty_host
        self.regions: list[RegionMemory] = []
        for region in shard.regions:
            dtype = WORKING_DTYPES[region.dtype]
            count = region.elements
            master = in_tier(count, torch.float32) if dtype == torch.float32 else None
            high = in_tier(count, dtype) if dtype != torch.float32 else None
            low = in_tier(count, torch.int16) if dtype != torch.float32 else None
            emitted = master if master is not None else high
            assert emitted is not None
            wait_as = gradient_dtype(region.dtype)
            memory = RegionMemory(
                region=region,
                weights=emitted if beside else device.empty(count, dtype),
                master=master,
                high=high,
                low=low,
                moments={
                    moment.kind: in_tier(moment.count(count), getattr(torch, moment.dtype))
                    for moment in MOMENTS[region.state_format]
                },
                gradient=None if wait_as is None else in_tier(count, wait_as),
            )
            # Gaps of alignment are saved and copied with the rest: they hold zeros, not what memory held before.
            for _, tensor in memory.state():
                tensor.zero_()
            self.regions.append(memory)

    def adopt(self, parameters: Sequence[nn.Parameter], arithmetic: Arithmetic) -> None:
        """Take the parameters' values over, one for each segment in order, and rebind their data to `weights`."""
        for segment, parameter in zip(self.shard.segments, parameters, strict=True):
            if parameter.is_meta:
                raise ValueError(
                    f"parameter {segment.name} is on the meta device: give the engine `materialize`"
                )
            self._take(segment, parameter.data.reshape(-1), arithmetic)
        self.push_weights()
        for segment, parameter in zip(self.shard.segments, parameters, strict=True):
            memory = self.regions[segment.region]
            parameter.data = self.of_segment(memory.weights, segment).view(segment.shape)

    def _take(self, segment: Segment, values: Tensor, arithmetic: Arithmetic) -> None:
        memory = self.regions[segment.region]
        if memory.master is not None:
            self.of_segment(memory.master, segment).copy_(values)
            return
        assert memory.high is not None and memory.low is not None
        high, low = self.of_segment(memory.high, segment), self.of_segment(memory.low, segment)
        if values.dtype != torch.float32:
            high.copy_(values)
        else:
            arithmetic.split(values.to(high.device).contiguous(), high, low)

    def push_weights(self) -> None:
        """Copy the state's working weights to the device, where they are kept apart."""
        for memory in self.regions:
            if memory.weights is not memory.emitted:
                memory.weights.copy_(memory.emitted)

    def of_segment(self, tensor: Tensor, segment: Segment) -> Tensor:
        """The part of a region's tensor that belongs to `segment`, 1-D."""
        start = segment.offset - self.regions[segment.region].region.start
        return tensor[start : start + segment.numel]

    def of_chunk(self, tensor: Tensor, chunk: Chunk) -> Tensor:
        """The part of a region's tensor that belongs to `chunk`, 1-D."""
        base = self.regions[chunk.region].region.start
        return tensor[chunk.start - base : chunk.stop - base]

    def slices(self, tensor: Tensor, chunk: Chunk) -> list[Tensor]:
        """A region's tensor cut into the slices of `chunk`."""
        views = []
        for part in chunk.slices:
            whole = self.of_segment(tensor, self.shard.segments[part.segment])
            views.append(whole[part.start : part.start + part.count])
        return views

    def views(self, chunk: Chunk) -> list[StateViews]:
        """The state of a chunk, slice by slice."""
        memory = self.regions[chunk.region]
        views = []
        for part in chunk.slices:
            segment = self.shard.segments[part.segment]
            begin = segment.offset - memory.region.start + part.start
            kinds = {}
            for kind, tensor in memory.state():
                # A scale stands for a block of elements; slices begin with a block.
                per = memory.region.elements // tensor.numel()
                kinds[kind] = tensor[begin // per : begin // per - (-part.count // per)]
            views.append(
                StateViews(
                    decay=segment.decay,
                    offset=part.start,
                    random_stream=(self.shard.index << 32) + part.segment,
                    **kinds,
                )
            )
        return views

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """The shard's optimizer state as (kind, 1-D tensor), named by dtype and format where a shard has several."""
        regions = [memory.region for memory in self.regions]
        several_dtypes = len({region.dtype for region in regions}) > 1
        several_formats = len({region.state_format for region in regions}) > 1
        for region, memory in zip(regions, self.regions, strict=True):
            suffix = f".{region.dtype}" * several_dtypes + f".{region.state_format}" * several_formats
            for kind, tensor in memory.state():
                yield kind + suffix, tensor
