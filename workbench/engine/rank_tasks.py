"""The tasks of a step in which all ranks take part: a chunk's gradient reduced, one verdict, new weights gathered.

A chunk's gradient is exchanged whole: each rank gets what the others have of its own share, in the dtype that it has,
and adds it up in fp32 in rank order. So the sum is the same however the backend works, and N ranks with a micro-batch
each give the bits of one rank with N. An all-to-all moves what a reduce-scatter does. On several machines the ranks of
each add up first, for those that have the same place on every machine, and these exchange fp32 sums, added in the order
of machines: the network carries a chunk once for a machine, and not once for each of its ranks.

Invariant: what decides about a step (which parameters have a gradient, the mean's factor, the norm, whether all is
finite) is told by every rank to every other and found from that alone, so that all decide alike.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.engine.arithmetic import Arithmetic, exact_parts
from workbench.engine.devices.buffers import SlotPool
from workbench.engine.devices.device import Device, Event
from workbench.engine.grad_hooks import FullSlot, GradientHooks
from workbench.engine.precision import DTYPES
from workbench.engine.ranks import Ranks
from workbench.engine.state_pointers import GradientSet
from workbench.engine.unit_memory import UnitMemory
from workbench.layout import Chunk
from workbench.partition import Partition
from workbench.sizes import BufferSizes, by_machine_bytes
from workbench.timeline import Lane

_COUNTS = struct.Struct("<qq")
_PARTS = struct.Struct("<?H48d")
"""An exact sum of float64 has no more than 40 parts."""


@dataclass(frozen=True)
class Mean:
    """The divisors that make the sum over micro-batches a mean.

    `tokens`: of all of them, 0 where they are not counted, and weigh the same. `usual`: of a micro-batch that weighs 1.
    """

    tokens: int
    micro_batches: int
    usual: int = 1
    loss_scale: float = 1.0

    @property
    def unscale(self) -> float:
        """The factor that turns the sum into the mean."""
        mean = self.usual / self.tokens if self.tokens else 1.0 / self.micro_batches
        return mean / self.loss_scale


class RankTasks:
    """Performs them on the units' memories, with what this rank's tasks keep between them."""

    def __init__(
        self,
        ranks: Ranks,
        partition: Partition,
        memories: Sequence[UnitMemory],
        grad_hooks: GradientHooks,
        device: Device,
        arithmetic: Arithmetic,
        sizes: BufferSizes,
        by_machine: tuple[Ranks, Ranks] | None = None,
    ) -> None:
        self._ranks = ranks
        self._by_machine = by_machine
        self._columns: dict[int, list[tuple[Chunk, ...]]] = {}
        self._device = device
        self._partition = partition
        self._memories = memories
        self._grad_hooks = grad_hooks
        self._arithmetic = arithmetic
        self._received = device.empty(sizes.received.total, torch.uint8)
        self._sums = SlotPool(lambda nbytes: device.empty(nbytes, torch.uint8), sizes.reduced, at_once=True)
        self._reduced: dict[tuple[int, int], Tensor] = {}
        """Sums that have to go down."""

    def begin(self, gradients: GradientSet) -> None:
        """A step begins: which parameters have a gradient is for the ranks to say."""
        gradients.has_gradient = [[False] * len(memory.unit.segments) for memory in self._memories]

    # A chunk's gradient

    def reduce(
        self,
        memory: UnitMemory,
        whole: Chunk,
        final: FullSlot | None,
        gradients: GradientSet,
        mean: Mean,
        after: Event,
    ) -> None:
        """Sum this rank's share of a chunk's gradient over the ranks. `mean`: of this rank's micro-batches alone.

        `after`: of what compute has written into `final`, and of the update that read the last sum.
        """
        unit = memory.unit.index
        here = self._grad_hooks.has_gradient[unit]
        flags = bytes(here[part.segment] for part in whole.slices)
        told = self._ranks.tell(_COUNTS.pack(mean.tokens, mean.micro_batches) + flags)
        gradients.unscale = gradients.scale = _joined(mean, told).unscale
        brought = [message[_COUNTS.size :] for message in told]
        for part, flag in zip(whole.slices, map(any, zip(*brought, strict=True)), strict=True):
            gradients.has_gradient[unit][part.segment] |= flag
        exchange = self._exchange if self._by_machine is None else self._exchange_by_machine
        with self._device.communicating(Lane.COMMUNICATE, after) as land:
            exchange(memory, whole, final if any(flags) else None, brought, gradients)
        self._ranks.wait(land)
        if final is not None and not memory.route.sums_on_device:
            self._grad_hooks.device_slots.give_back(final.slot)

    def _exchange(
        self,
        memory: UnitMemory,
        whole: Chunk,
        final: FullSlot | None,
        brought: list[bytes],
        gradients: GradientSet,
    ) -> None:
        dtype = torch.float32 if memory.route.sums_on_device else DTYPES[whole.dtype]
        sizes = self._partition.sizes(memory.unit.index, whole.index)
        own = memory.chunks[whole.index]
        # Those that have nothing of the chunk send nothing.
        senders = [rank for rank, flags in enumerate(brought) if any(flags)]
        received_bytes = [own.elements * dtype.itemsize if any(flags) else 0 for flags in brought]
        sent = torch.empty(0, dtype=torch.uint8, device=self._received.device)
        sent_bytes = [0] * len(sizes)
        if final is not None:
            sent, sent_bytes = final.slot.view(torch.uint8), [size * dtype.itemsize for size in sizes]
        self._ranks.exchange(self._received, received_bytes, sent, sent_bytes)
        if not own.elements or not senders:
            return
        received = self._received[: sum(received_bytes)].view(dtype).view(len(senders), own.elements)
        total = self._sum_of(memory, own, gradients)
        self._add_up(memory, whole, own, total, received, [brought[rank] for rank in senders])

    def _exchange_by_machine(
        self,
        memory: UnitMemory,
        whole: Chunk,
        final: FullSlot | None,
        brought: list[bytes],
        gradients: GradientSet,
    ) -> None:
        assert self._by_machine is not None
        inside, across = self._by_machine
        dtype = torch.float32 if memory.route.sums_on_device else DTYPES[whole.dtype]
        sizes = self._partition.sizes(memory.unit.index, whole.index)
        # Of each machine the rank that has this one's place there.
        column = [chunks[whole.index] for chunks in self._column(memory)]
        elements = sum(chunk.elements for chunk in column)
        lengths = by_machine_bytes(whole.elements, dtype.itemsize, sizes, self._ranks.rank, inside.size)
        buffers = self._received[: sum(lengths)].split(lengths)
        ordered, received = (buffer.view(dtype) for buffer in buffers[:2])
        sums, others = (buffer.view(torch.float32) for buffer in buffers[2:])
        here = brought[across.rank * inside.size :][: inside.size]
        sent, sent_bytes = ordered[:0], [0] * inside.size
        if final is not None:
            shares = final.slot.view(dtype)[: whole.elements].split(sizes)
            places = [shares[place :: inside.size] for place in range(inside.size)]
            sent = torch.cat(
                [share for of_place in places for share in of_place], out=ordered[: whole.elements]
            )
            sent_bytes = [sum(share.nbytes for share in of_place) for of_place in places]
        received_bytes = [elements * dtype.itemsize if any(flags) else 0 for flags in here]
        inside.exchange(received.view(torch.uint8), received_bytes, sent.view(torch.uint8), sent_bytes)
        senders = [flags for flags in here if any(flags)]
        arrived = received[: len(senders) * elements].view(len(senders), elements)
        start = 0
        for chunk in column if senders else ():
            stop = start + chunk.elements
            self._add_up(memory, whole, chunk, sums[start:stop], arrived[:, start:stop], senders)
            start = stop
        of_machines = [
            bytes(map(any, zip(*brought[first : first + inside.size], strict=True)))
            for first in range(0, len(brought), inside.size)
        ]
        own = memory.chunks[whole.index]
        across.exchange(
            others.view(torch.uint8),
            [4 * own.elements if any(flags) else 0 for flags in of_machines],
            sums.view(torch.uint8),
            [4 * chunk.elements if senders else 0 for chunk in column],
        )
        told = [flags for flags in of_machines if any(flags)]
        if own.elements and told:
            found = others[: len(told) * own.elements].view(len(told), own.elements)
            self._add_up(memory, whole, own, self._sum_of(memory, own, gradients), found, told)

    def _column(self, memory: UnitMemory) -> list[tuple[Chunk, ...]]:
        """Return the shares of a unit's chunks that the ranks of this one's place have, machine by machine."""
        assert self._by_machine is not None
        inside, across = self._by_machine
        if memory.unit.index not in self._columns:
            self._columns[memory.unit.index] = [
                self._partition.owned(memory.unit, machine * inside.size + inside.rank)
                for machine in range(across.size)
            ]
        return self._columns[memory.unit.index]

    def _add_up(
        self,
        memory: UnitMemory,
        whole: Chunk,
        share: Chunk,
        total: Tensor,
        sources: Tensor,
        brought: Sequence[bytes],
    ) -> None:
        """Sum the rows of `sources` [number, elements of `share`] into `total`, of each those parameters that it has by
        `brought`: a flag for each of the whole chunk's slices."""
        flags_of = {
            part.segment: [flags[place] for flags in brought] for place, part in enumerate(whole.slices)
        }
        for part in share.slices:
            start = memory.unit.segments[part.segment].offset + part.start - share.start
            begun = False
            for source, flag in zip(sources, flags_of[part.segment], strict=True):
                if flag:
                    here = slice(start, start + part.count)
                    self._arithmetic.accumulate(total[here], source[here], overwrite=not begun)
                    begun = True

    def _sum_of(self, memory: UnitMemory, own: Chunk, gradients: GradientSet) -> Tensor:
        """Return where the sum of this rank's share is made: where it waits, or in a buffer that goes down."""
        if memory.route.reduced_in_place:
            total = memory.waiting_gradient(own, gradients.number)
            assert total is not None
            return total
        slot = self._sums.take()
        self._sums.will_return()
        self._reduced[memory.unit.index, own.index] = slot
        return slot.view(torch.float32)[: own.elements]

    def take_reduced(self, memory: UnitMemory, own: Chunk) -> Tensor | None:
        """Return the buffer of a sum that has to go down; None where this rank has none."""
        return self._reduced.pop((memory.unit.index, own.index), None)

    def give_back(self, slot: Tensor) -> None:
        """A sum has gone down."""
        self._sums.give_back(slot)

    # The check

    def total(self, partials: list[float], *, written: bool) -> tuple[float, bool]:
        """Return the sum of all ranks' partial sums, with one rounding, and whether any of them has `written`."""
        return exact_total(self._ranks, partials, written=written)

    def join(self, places: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the places, by unit and segment, that any rank has among its own."""
        everywhere = [
            (m.unit.index, segment) for m in self._memories for segment in range(len(m.unit.segments))
        ]
        told = self._ranks.tell(bytes(place in places for place in everywhere))
        return {place for place, *flags in zip(everywhere, *told, strict=True) if any(flags)}

    # New weights

    def gather(self, memory: UnitMemory, whole: Chunk, after: Event) -> None:
        """Give all ranks the new weights of a chunk, of which each has put its own share in place: by `after`, when
        also nobody reads the old ones any more."""
        weights = memory.regions[whole.region].weights
        assert weights is not None
        here = memory.of_chunk(weights, whole)
        with self._device.communicating(Lane.COMMUNICATE, after) as land:
            self._ranks.gather(here.split(self._partition.sizes(memory.unit.index, whole.index)))
        self._ranks.wait(land)

    def gather_all(self) -> None:
        """Do `gather` for all chunks, while no step is under way."""
        after = self._device.record_event()
        for memory in self._memories:
            for chunk in () if memory.route.streamed else memory.unit.chunks:
                self.gather(memory, chunk, after)

    def newest(self, memory: UnitMemory) -> list[Tensor]:
        """Return the weights of each of a unit's regions as the shares of all ranks have them, on the host; like
        `gather_all`."""
        found = [torch.zeros(r.region.elements, dtype=r.dtype) for r in memory.regions]
        mine = [memory.own_weights(region) for region in range(len(found))]
        for whole, own in zip(memory.unit.chunks, memory.chunks, strict=True):
            parts = memory.of_chunk(found[whole.region], whole).split(
                self._partition.sizes(memory.unit.index, whole.index)
            )
            parts[self._ranks.rank].copy_(memory.state_of_chunk(mine[whole.region], own))
            self._ranks.gather(parts)
        return found

    def gather_parts(self, parts: Sequence[Tensor]) -> None:
        """Give all ranks every part of a tensor; like `gather_all`."""
        self._ranks.gather(parts)

    # The end

    def cancel(self, failure: BaseException) -> None:
        """The step has failed: leave the other ranks, so that they do not wait."""
        self._sums.cancel(failure)
        self._ranks.leave(failure)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers of gradients between ranks, on the device."""
        return self._received.nbytes + self._sums.nbytes


def exact_total(ranks: Ranks, partials: list[float], *, written: bool) -> tuple[float, bool]:
    """Return the sum of all ranks' numbers, with one rounding, and whether any of them has `written`."""
    parts = exact_parts(partials)
    told = ranks.tell(_PARTS.pack(written, len(parts), *parts, *[0.0] * (48 - len(parts))))
    found = [_PARTS.unpack(message) for message in told]
    total = math.fsum(value for _, count, *values in found for value in values[:count])
    return total, any(wrote for wrote, *_ in found)


def _joined(mean: Mean, told: list[bytes]) -> Mean:
    """Return what makes the mean over all ranks' micro-batches."""
    counts = [_COUNTS.unpack_from(message) for message in told]
    if len({tokens > 0 for tokens, _ in counts}) > 1:
        raise RuntimeError("tokens must be given on every rank or on none")
    return Mean(sum(t for t, _ in counts), sum(n for _, n in counts), mean.usual, mean.loss_scale)
