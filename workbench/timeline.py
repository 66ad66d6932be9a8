"""A step as tasks on lanes: what moves or is computed, on which lane, and what each task waits for.

Written once for two readers: the engine executes a timeline on real memory, the planner simulates it with measured
rates, so that a plan cannot drift from the run. It knows layout and bytes, never tensors or time.

Invariant: `waits` point to earlier tasks only, so that any execution that honours them ends; and every order of
execution that honours them gives bit-identical results. A chunk's tasks of one stage follow each other in index order,
so that executing them in that order needs the buffers of one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Literal

from workbench.layout import Chunk, Layout, Tier, Unit, moment_bytes

Overlap = Literal["serial", "exact", "delayed"]


class Lane(str, Enum):
    """A serial resource with its own queue."""

    COMPUTE = "compute"
    DOWNLOAD = "download"
    UPDATE = "update"
    UPLOAD = "upload"
    READ = "read"
    WRITE = "write"
    COMMUNICATE = "communicate"


class Kind(str, Enum):
    """The kind of work of a task.

    `FORWARD` and `BACKWARD` happen when the model runs. A `BACKWARD` with a chunk means that the chunk's gradients are
    final, one with a unit alone that its weights are no longer read, one without either that the micro-batch is done.
    A `REDUCE` gives each rank the sum of its share of a chunk's gradient, a `GATHER` every rank all new weights of a
    chunk. An `ACCUMULATE`, a `NORM` or an `UPDATE` without a unit is that of all units updated after backward; such an
    update that waits for no verdict is their `NORM` as well.
    A `SPECULATE` does an `UPDATE` ahead of the verdict, which then has less or nothing left to do; after the verdict it
    does nothing itself.
    `FETCH` is no task of a step's timeline: a streamed block's weights come when the model asks for them, on several
    ranks from all of them.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    FETCH = "fetch"
    REDUCE = "reduce"
    DOWNLOAD = "download"
    READ_GRADIENT = "read gradient"
    ACCUMULATE = "accumulate"
    NORM = "norm"
    WRITE_GRADIENT = "write gradient"
    SPECULATE = "speculate"
    VERDICT = "verdict"
    READ_STATE = "read state"
    UPDATE = "update"
    WRITE_STATE = "write state"
    UPLOAD = "upload"
    GATHER = "gather"


@dataclass(frozen=True)
class Task:
    """One piece of work. `bytes` is what crosses a lane's memory once: gradients down, weights up, state updated."""

    index: int
    lane: Lane
    kind: Kind
    micro_batch: int
    unit: int | None
    chunk: int | None
    bytes: int
    waits: tuple[int, ...]


@dataclass(frozen=True)
class UnitFlow:
    """The moves of one unit's gradients, state and weights in a step.

    `state`: the tier of what an update reads and writes. `update_on_compute`: compute does the update when backward has
    ended, for lack of anything to overlap it with. `downloads`: gradients are copied chunk by chunk out of autograd's
    tensors, down to the host. `accumulates`: the engine sums them over micro-batches in fp32. `gradients_on_disk`: they
    wait for the update there. `uploads`: new weights are copied to where the forward reads them. `after_backward`:
    gradients are found when backward has ended; norm and update of all such units are one task each. `sums_on_device`:
    they are summed where backward leaves them, and only the sums go down, with the last micro-batch. `speculates`: an
    update can be undone. `streamed`: the weights come into a slot whenever they are used.
    """

    state: Tier
    update_on_compute: bool
    downloads: bool
    accumulates: bool
    gradients_on_disk: bool
    uploads: bool
    after_backward: bool = False
    sums_on_device: bool = False
    speculates: bool = False
    streamed: bool = False


@dataclass(frozen=True)
class StepShape:
    """All that decides which tasks a step has.

    `global_quantity`: the update needs something that is known only when backward has ended (the norm for clipping).
    `overlap`: of this step. `applies_last`: a delayed step begins with the update by the last step's gradients.
    `speculates`: units whose updates can be undone are updated ahead of the verdict where there is time.
    `ranks`: those that share every chunk's state; all have the same tasks, of which the `COMMUNICATE` lane's follow
    each other in one order, whatever order gradients come in.
    """

    gradient_accumulation: int
    flows: tuple[UnitFlow, ...]
    global_quantity: bool
    overlap: Overlap
    applies_last: bool = True
    speculates: bool = False
    ranks: int = 1


@dataclass(frozen=True)
class Timeline:
    """The tasks of one step.

    `ready`: for each unit the tasks after which its new weights may be read (in a delayed step by its own forward,
    else by the next step's). `update_of_last`: in a delayed step, the tasks of the update by the last one's gradients,
    which need nothing from the model; none otherwise.
    """

    tasks: tuple[Task, ...]
    ready: tuple[tuple[int, ...], ...]
    update_of_last: tuple[int, ...]
    _index: dict[tuple[Kind, int, int | None, int | None], int] = field(repr=False)

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """For each task those that wait for it."""
        followers: list[list[int]] = [[] for _ in self.tasks]
        for task in self.tasks:
            for earlier in task.waits:
                followers[earlier].append(task.index)
        return tuple(map(tuple, followers))

    @cached_property
    def wait_counts(self) -> tuple[int, ...]:
        """For each task how many it waits for."""
        return tuple(len(task.waits) for task in self.tasks)

    def find(self, kind: Kind, micro_batch: int, unit: int | None = None, chunk: int | None = None) -> int:
        """Return the index of a task; KeyError if the step has no such task."""
        return self._index[kind, micro_batch, unit, chunk]


class _Builder:
    def __init__(self, layout: Layout, shape: StepShape) -> None:
        self.layout = layout
        self.shape = shape
        self.last = shape.gradient_accumulation - 1
        self.end = 0
        """After which a micro-batch's gradients are no longer in autograd's tensors, if the engine sums them."""
        self.tasks: list[Task] = []
        self.index: dict[tuple[Kind, int, int | None, int | None], int] = {}
        self.communicated: list[int] = []
        """The last task of the lane between ranks: the next one comes after it on all of them."""

    def communicate(
        self,
        kind: Kind,
        unit: Unit | None = None,
        chunk: Chunk | None = None,
        nbytes: int = 0,
        waits: Sequence[int] = (),
    ) -> int:
        """Add a task in which all ranks take part."""
        waits = [*waits, *self.communicated]
        self.communicated = [self.add(Lane.COMMUNICATE, kind, self.last, unit, chunk, nbytes, waits)]
        return self.communicated[0]

    def add(
        self,
        lane: Lane,
        kind: Kind,
        micro_batch: int,
        unit: Unit | None = None,
        chunk: Chunk | None = None,
        nbytes: int = 0,
        waits: Sequence[int] = (),
    ) -> int:
        number = len(self.tasks)
        unit_index = None if unit is None else unit.index
        chunk_index = None if chunk is None else chunk.index
        unique = tuple(dict.fromkeys(waits))
        self.tasks.append(Task(number, lane, kind, micro_batch, unit_index, chunk_index, nbytes, unique))
        self.index[kind, micro_batch, unit_index, chunk_index] = number
        return number

    def work_lane(self, unit: Unit) -> Lane:
        return Lane.COMPUTE if self.shape.flows[unit.index].update_on_compute else Lane.UPDATE

    # The model's own part

    def add_compute(self, micro_batch: int) -> tuple[dict[tuple[int, int], int], int]:
        """Add a forward over the units and a backward in reverse; return what makes each chunk's gradients final, and
        the end."""
        before = [self.end] if micro_batch else []
        for unit in self.layout.units:
            before = [self.add(Lane.COMPUTE, Kind.FORWARD, micro_batch, unit, waits=before)]
        final: dict[tuple[int, int], int] = {}
        over = []
        for unit in reversed(self.layout.units):
            chunks = []
            for chunk in reversed(() if self.shape.flows[unit.index].after_backward else unit.chunks):
                # In whatever order gradients come: autograd decides it, and tied weights come last.
                chunks.append(self.add(Lane.COMPUTE, Kind.BACKWARD, micro_batch, unit, chunk, waits=before))
                final[unit.index, chunk.index] = chunks[-1]
            over.append(self.add(Lane.COMPUTE, Kind.BACKWARD, micro_batch, unit, waits=chunks or before))
        return final, self.add(Lane.COMPUTE, Kind.BACKWARD, micro_batch, waits=over or before)

    # Gradients

    def add_gradients(self) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int], int]:
        """Add every micro-batch's gradients down, summed and measured; return each chunk's norm, the task that its
        update waits for, and the end of the last backward."""
        stored: dict[tuple[int, int], int] = {}
        norms: dict[tuple[int, int], int] = {}
        end = 0
        summed = [unit for unit in self.after_backward if self.shape.flows[unit.index].accumulates]
        for micro_batch in range(self.shape.gradient_accumulation):
            final, end = self.add_compute(micro_batch)
            if summed:
                nbytes = 4 * sum(chunk.elements for unit in summed for chunk in unit.chunks)
                end = self.add(Lane.COMPUTE, Kind.ACCUMULATE, micro_batch, nbytes=nbytes, waits=[end])
            self.end = end
            for unit in reversed(self.layout.units):
                for chunk in reversed(() if self.shape.flows[unit.index].after_backward else unit.chunks):
                    place = (unit.index, chunk.index)
                    # A chunk's buffers are its own from one micro-batch to the next.
                    waits = [final[place], *([stored[place]] if place in stored else [])]
                    stored[place] = self._add_chunk_gradient(micro_batch, unit, chunk, waits, norms)
        return norms, stored, end

    @property
    def after_backward(self) -> list[Unit]:
        """The units whose norm and update are one task."""
        return [unit for unit in self.layout.units if self.shape.flows[unit.index].after_backward]

    def add_norm_after_backward(self, end: int) -> int:
        """Add the norm of all units of `after_backward`, when the last backward has ended."""
        nbytes = sum(chunk.weight_bytes for unit in self.after_backward for chunk in unit.chunks)
        return self.add(Lane.COMPUTE, Kind.NORM, self.last, nbytes=nbytes, waits=[end])

    def add_update_after_backward(self, before: int) -> int:
        """Add the update of all units of `after_backward`."""
        nbytes = sum(_moved_bytes(unit, chunk) for unit in self.after_backward for chunk in unit.chunks)
        return self.add(Lane.COMPUTE, Kind.UPDATE, self.last, nbytes=nbytes, waits=[before])

    def _add_chunk_gradient(
        self,
        micro_batch: int,
        unit: Unit,
        chunk: Chunk,
        waits: list[int],
        norms: dict[tuple[int, int], int],
    ) -> int:
        flow, work = self.shape.flows[unit.index], self.work_lane(unit)
        place = (unit.index, chunk.index)
        done = waits
        sum_bytes = 4 * chunk.elements
        if flow.sums_on_device and micro_batch < self.last:
            return waits[0]
        if self.shape.ranks > 1:
            nbytes = sum_bytes if flow.sums_on_device else chunk.weight_bytes
            done = [self.communicate(Kind.REDUCE, unit, chunk, nbytes, done)]
        if flow.downloads:
            summed = flow.sums_on_device or self.shape.ranks > 1
            nbytes = (sum_bytes if summed else chunk.weight_bytes) // self.shape.ranks
            done = [self.add(Lane.DOWNLOAD, Kind.DOWNLOAD, micro_batch, unit, chunk, nbytes, done)]
        if flow.accumulates:
            if flow.gradients_on_disk and micro_batch:
                # Not before the gradient is there: a buffer that waits for the model could keep it from going on.
                done = [self.add(Lane.READ, Kind.READ_GRADIENT, micro_batch, unit, chunk, sum_bytes, done)]
            done = [self.add(work, Kind.ACCUMULATE, micro_batch, unit, chunk, sum_bytes, done)]
        if micro_batch == self.last:
            done = [self.add(work, Kind.NORM, micro_batch, unit, chunk, chunk.weight_bytes, done)]
            norms[place] = done[0]
        if flow.gradients_on_disk:
            waiting = sum_bytes if flow.accumulates else chunk.weight_bytes
            done = [self.add(Lane.WRITE, Kind.WRITE_GRADIENT, micro_batch, unit, chunk, waiting, done)]
        return done[0] if len(done) == 1 else waits[0]

    # The update

    def add_unit_update(self, unit: Unit, waits: dict[int, list[int]]) -> list[int]:
        """Add the updates of a unit's chunks in order, each after `waits[chunk]`; return the last task of each."""
        flow, work = self.shape.flows[unit.index], self.work_lane(unit)
        done = []
        for chunk in unit.chunks:
            before = waits[chunk.index]
            state_bytes = _state_bytes(unit, chunk)
            if flow.state == "disk":
                before = [self.add(Lane.READ, Kind.READ_STATE, self.last, unit, chunk, state_bytes, before)]
            moved = _moved_bytes(unit, chunk)
            updated = self.add(work, Kind.UPDATE, self.last, unit, chunk, moved, before)
            if flow.state == "disk":
                updated = self.add(
                    Lane.WRITE, Kind.WRITE_STATE, self.last, unit, chunk, state_bytes, [updated]
                )
            done.append(updated)
        return done

    def add_speculation(self, stored: dict[tuple[int, int], int]) -> None:
        """Add updates ahead of the verdict. As the last tasks: of what is ready, the update lane takes the first."""
        for unit in self.layout.units:
            flow = self.shape.flows[unit.index]
            for chunk in unit.chunks if flow.speculates else ():
                waits = [stored[unit.index, chunk.index]]
                if not flow.uploads:
                    # What an update writes is what the unit's own backward may still fetch.
                    waits.append(self.index[Kind.BACKWARD, self.last, unit.index, None])
                self.add(
                    Lane.UPDATE, Kind.SPECULATE, self.last, unit, chunk, _moved_bytes(unit, chunk), waits
                )

    def add_unit_gather(self, unit: Unit, waits: Sequence[int]) -> list[int]:
        """Add the exchange of a unit's new weights between ranks, chunk by chunk, where no fetch does it."""
        if self.shape.ranks == 1 or self.shape.flows[unit.index].streamed:
            return list(waits)
        return [
            self.communicate(Kind.GATHER, unit, chunk, chunk.weight_bytes, [before])
            for chunk, before in zip(unit.chunks, waits, strict=True)
        ]

    def add_verdict(self, waits: Sequence[int]) -> int:
        """Add the check over all gradients."""
        if self.shape.ranks > 1:
            return self.communicate(Kind.VERDICT, waits=waits)
        lane = Lane.UPDATE
        if all(flow.update_on_compute for flow in self.shape.flows):
            lane = Lane.COMPUTE
        elif self.shape.speculates and self.after_backward:
            # It waits for the device's norm, and nothing is left to come down: updates go on ahead of it.
            lane = Lane.DOWNLOAD
        return self.add(lane, Kind.VERDICT, self.last, waits=waits)

    def add_unit_upload(self, unit: Unit, waits: Sequence[Sequence[int]]) -> list[int]:
        """Add the copies of a unit's new weights to where the forward reads them, chunk by chunk."""
        lane = Lane.COMPUTE if self.shape.flows[unit.index].update_on_compute else Lane.UPLOAD
        return [
            self.add(lane, Kind.UPLOAD, self.last, unit, chunk, chunk.weight_bytes, before)
            for chunk, before in zip(unit.chunks, waits, strict=True)
        ]


def build_timeline(layout: Layout, shape: StepShape) -> Timeline:
    """Return the tasks of one step of `layout` under `shape`.

    Each micro-batch runs forward over the units and backward over them in reverse; every chunk's gradients go down
    (where they are bucketed), are summed (where the engine does it) and measured once the last micro-batch's are in.
    Then the update: after the verdict over all chunks where it needs a global quantity, else as soon as the unit's
    own backward is over; and the new weights go up. Between ranks a chunk's gradient is reduced before it goes down,
    and its weights are gathered after they have gone up, when the verdict is known. `serial` holds all updates back
    until backward has ended. Where a step speculates, an update may have been done ahead of the verdict: a `SPECULATE`
    and the `UPDATE` of its chunk are one lane's, and the second does what the first has left. A `delayed` step begins
    with the update by the last step's gradients and ends with its own verdict.
    """
    builder = _Builder(layout, shape)
    if shape.overlap == "delayed":
        return _delayed(builder)
    norms, stored, end = builder.add_gradients()
    measured = [end, *norms.values()]
    last = builder.last
    verdict = late_update = None
    if builder.after_backward:
        # An update that needs no verdict measures on its way, and reads its gradients once for both.
        at_once = shape.overlap == "exact" and not shape.global_quantity
        late_update = builder.add_update_after_backward(end) if at_once else None
        measured.append(builder.add_norm_after_backward(end) if late_update is None else late_update)
    # Compute's other work overlaps with nothing: it can wait for the check first. So may other ranks.
    if shape.global_quantity or any(flow.update_on_compute for flow in shape.flows) or shape.ranks > 1:
        verdict = builder.add_verdict(measured)
    ready: list[tuple[int, ...]] = []
    for unit in layout.units:
        flow = shape.flows[unit.index]
        if flow.after_backward:
            assert verdict is not None
            if late_update is None:
                late_update = builder.add_update_after_backward(verdict)
            ready.append((late_update,))
            continue
        over = end if shape.overlap == "serial" else builder.index[Kind.BACKWARD, last, unit.index, None]
        waits_for_verdict = shape.global_quantity or flow.update_on_compute
        waits = {}
        for chunk in unit.chunks:
            place = (unit.index, chunk.index)
            first = [verdict] if waits_for_verdict and verdict is not None else [norms[place], over]
            waits[chunk.index] = [*first, stored[place]]
        done = builder.add_unit_update(unit, waits)
        if flow.uploads:
            updates = [builder.index[Kind.UPDATE, last, unit.index, c.index] for c in unit.chunks]
            done = builder.add_unit_gather(unit, builder.add_unit_upload(unit, [[u] for u in updates]))
        ready.append(tuple(done))
    if verdict is None:
        builder.add_verdict(measured)
    if shape.speculates:
        builder.add_speculation(stored)
    return Timeline(tuple(builder.tasks), tuple(ready), (), builder.index)


def _delayed(builder: _Builder) -> Timeline:
    """Add the uploads of what the last update left, which ranks gather then, and the update by the last step's
    gradients, beside this step's forward and backward (Ren et al., ZeRO-Offload, 2021, §5.2)."""
    layout, shape = builder.layout, builder.shape
    ready: list[tuple[int, ...]] = [() for _ in layout.units]
    if shape.applies_last:
        uploads = [builder.add_unit_upload(unit, [()] * len(unit.chunks)) for unit in layout.units]
        for unit, sent in zip(layout.units, uploads, strict=True):
            ready[unit.index] = tuple(builder.add_unit_gather(unit, sent))
        for unit, sent in zip(layout.units, uploads, strict=True):
            builder.add_unit_update(unit, {c.index: [up] for c, up in zip(unit.chunks, sent, strict=True)})
    update_of_last = tuple(range(len(builder.tasks)))
    norms, _, end = builder.add_gradients()
    builder.add_verdict([end, *norms.values()])
    return Timeline(tuple(builder.tasks), tuple(ready), update_of_last, builder.index)


def _state_bytes(unit: Unit, chunk: Chunk) -> int:
    return chunk.elements * 4 + moment_bytes(unit.regions[chunk.region].state_format, chunk.elements)


def _moved_bytes(unit: Unit, chunk: Chunk) -> int:
    """Return the bytes that an update moves: the state is read and written, the gradient read."""
    return 2 * _state_bytes(unit, chunk) + chunk.weight_bytes
