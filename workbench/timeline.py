"""A step as tasks on lanes: what moves or is computed, on which lane, and what each task waits for.

Written once for two readers: the engine executes a timeline on real memory, the planner simulates it with measured
rates, so that a plan cannot drift from the run. It knows layout and bytes, never tensors or time.

Invariant: `waits` point to earlier tasks only, so that any execution that honours them ends; and every order of
execution that honours them gives bit-identical results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from workbench.layout import Chunk, Layout, Shard

Tier = Literal["device", "host", "disk"]
Overlap = Literal["serial", "exact"]


class Lane(str, Enum):
    """A serial resource with its own queue."""

    COMPUTE = "compute"
    DOWNLOAD = "download"
    UPDATE = "update"
    UPLOAD = "upload"


class Kind(str, Enum):
    """What a task does.

    `FORWARD` and `BACKWARD` happen when the model runs. A `BACKWARD` with a chunk means that the chunk's gradients are
    final, one with a shard alone that its weights are no longer read, one without either that the micro-batch is done.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    DOWNLOAD = "download"
    ACCUMULATE = "accumulate"
    NORM = "norm"
    VERDICT = "verdict"
    UPDATE = "update"
    UPLOAD = "upload"


@dataclass(frozen=True)
class Task:
    """One piece of work. `bytes` is what crosses a lane's memory once: gradients down, weights up, state updated."""

    index: int
    lane: Lane
    kind: Kind
    micro_batch: int
    shard: int | None
    chunk: int | None
    bytes: int
    waits: tuple[int, ...]


@dataclass(frozen=True)
class StepShape:
    """All that decides which tasks a step has.

    `shared_memory`: device and host are one memory, so nothing is copied between them.
    `referenced_gradients`: the gradients stay where autograd put them, so nothing is accumulated by the engine.
    `global_quantity`: the update needs something that is known only when backward has ended (the norm for clipping).
    """

    gradient_accumulation: int
    state: Tier
    shared_memory: bool
    referenced_gradients: bool
    global_quantity: bool
    overlap: Overlap


@dataclass(frozen=True)
class Timeline:
    """The tasks of one step, and for each shard those that the next step's forward of it waits for."""

    tasks: tuple[Task, ...]
    ready: tuple[tuple[int, ...], ...]
    _index: dict[tuple[Kind, int, int | None, int | None], int] = field(repr=False)

    def find(self, kind: Kind, micro_batch: int, shard: int | None = None, chunk: int | None = None) -> int:
        """The index of a task; KeyError if the step has no such task."""
        return self._index[kind, micro_batch, shard, chunk]


class _Builder:
    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.index: dict[tuple[Kind, int, int | None, int | None], int] = {}

    def add(
        self,
        lane: Lane,
        kind: Kind,
        micro_batch: int,
        shard: Shard | None = None,
        chunk: Chunk | None = None,
        nbytes: int = 0,
        waits: Sequence[int] = (),
    ) -> int:
        number = len(self.tasks)
        shard_index = None if shard is None else shard.index
        chunk_index = None if chunk is None else chunk.index
        unique = tuple(dict.fromkeys(waits))
        self.tasks.append(Task(number, lane, kind, micro_batch, shard_index, chunk_index, nbytes, unique))
        self.index[kind, micro_batch, shard_index, chunk_index] = number
        return number


def build_timeline(layout: Layout, shape: StepShape) -> Timeline:
    """The tasks of one step of `layout` under `shape`.

    Each micro-batch runs forward over the shards and backward over them in reverse; every chunk's gradients go down
    (unless memory is shared or the state is on the device), are accumulated (unless referenced) and measured once the
    last micro-batch's are in. Then the update: after the verdict over all chunks where it needs a global quantity, else
    as soon as the shard's own backward is over; and the new weights go up. `serial` holds all host work of a
    micro-batch back until its backward has ended.
    """
    builder = _Builder()
    last = shape.gradient_accumulation - 1
    travels = shape.state != "device" and not shape.shared_memory
    work = Lane.COMPUTE if shape.state == "device" else Lane.UPDATE
    arrived: dict[tuple[int, int], int] = {}
    end = 0
    for micro_batch in range(shape.gradient_accumulation):
        backward, end = _add_compute(builder, layout, micro_batch)
        for shard in reversed(layout.shards):
            for chunk in reversed(shard.chunks):
                place = (shard.index, chunk.index)
                # Serial work starts when the micro-batch's backward has ended, overlapped work with the chunk's own.
                waits = [end if shape.overlap == "serial" else backward[place]]
                # A chunk's buffers are its own from one micro-batch to the next.
                waits += [arrived[place]] if place in arrived else []
                if travels:
                    waits = [
                        builder.add(
                            Lane.DOWNLOAD, Kind.DOWNLOAD, micro_batch, shard, chunk, chunk.weight_bytes, waits
                        )
                    ]
                if not shape.referenced_gradients:
                    waits = [
                        builder.add(
                            work, Kind.ACCUMULATE, micro_batch, shard, chunk, 4 * chunk.elements, waits
                        )
                    ]
                arrived[place] = waits[0] if len(waits) == 1 else backward[place]
    return _add_update(builder, layout, shape, arrived, last, end, work, travels)


def _add_compute(
    builder: _Builder, layout: Layout, micro_batch: int
) -> tuple[dict[tuple[int, int], int], int]:
    """Forward over the shards, backward over them in reverse: what makes each chunk's gradients final, and the end."""
    before = [builder.index[Kind.BACKWARD, micro_batch - 1, None, None]] if micro_batch else []
    for shard in layout.shards:
        before = [builder.add(Lane.COMPUTE, Kind.FORWARD, micro_batch, shard, waits=before)]
    final: dict[tuple[int, int], int] = {}
    over = []
    for shard in reversed(layout.shards):
        chunks = []
        for chunk in reversed(shard.chunks):
            # In whatever order gradients come: autograd decides it, and tied weights come last.
            chunks.append(builder.add(Lane.COMPUTE, Kind.BACKWARD, micro_batch, shard, chunk, waits=before))
            final[shard.index, chunk.index] = chunks[-1]
        over.append(builder.add(Lane.COMPUTE, Kind.BACKWARD, micro_batch, shard, waits=chunks or before))
    return final, builder.add(Lane.COMPUTE, Kind.BACKWARD, micro_batch, waits=over or before)


def _add_update(
    builder: _Builder,
    layout: Layout,
    shape: StepShape,
    arrived: dict[tuple[int, int], int],
    last: int,
    end: int,
    work: Lane,
    travels: bool,
) -> Timeline:
    norms: dict[tuple[int, int], int] = {}
    for shard in reversed(layout.shards):
        for chunk in reversed(shard.chunks):
            place = (shard.index, chunk.index)
            waits = [arrived[place]] + ([end] if shape.overlap == "serial" else [])
            norms[place] = builder.add(work, Kind.NORM, last, shard, chunk, chunk.weight_bytes, waits)
    verdict = None
    if shape.global_quantity:
        verdict = builder.add(work, Kind.VERDICT, last, waits=[end, *norms.values()])
    ready: list[tuple[int, ...]] = []
    for shard in layout.shards:
        over = builder.index[Kind.BACKWARD, last, shard.index, None]
        uploaded: list[int] = []
        for chunk in shard.chunks:
            waits = [norms[shard.index, chunk.index], over] if verdict is None else [verdict]
            done = builder.add(work, Kind.UPDATE, last, shard, chunk, 26 * chunk.elements, waits)
            if travels:
                done = builder.add(Lane.UPLOAD, Kind.UPLOAD, last, shard, chunk, chunk.weight_bytes, [done])
            uploaded.append(done)
        ready.append(tuple(uploaded))
    if verdict is None:
        builder.add(work, Kind.VERDICT, last, waits=[end, *norms.values()])
    return Timeline(tuple(builder.tasks), tuple(ready), builder.index)
