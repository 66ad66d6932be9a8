"""How long a step takes: the engine's own timeline, played through at a machine's rates.

Two steps are played, one after the other, and the second is counted: what a step leaves to the next one is then in it.

Invariant: tasks, their order and what they wait for come from `build_timeline`; only fetches of streamed weights, which
no step's timeline has, are added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workbench.layout import ITEM_BYTES, Shard
from workbench.plan.census import Census
from workbench.plan.coarse import CoarseLayout, coarse_layout
from workbench.plan.compute_time import ComputeTimes, compute_times
from workbench.plan.rates import TASK_S, Rates
from workbench.plan.simulation import Demand, Work, play
from workbench.plan.times import ModelTimes
from workbench.plan.workload import Workload
from workbench.routing import ShardRoute, route_shard
from workbench.state_formats import StateFormat
from workbench.timeline import Kind, Lane, StepShape, Task, Timeline, build_timeline

LANES = tuple(Lane)
PLAYED_MICRO_BATCHES = 3
"""The first, one in the middle and the last; further ones in the middle take as long as that one."""
AHEAD = 2
"""Shards that are fetched while another is in use (see engine/weight_window.py)."""
BLOCK_S = 60e-6
"""The engine's hooks around one block's forward or backward."""
STEP_S = 5e-4
"""Beginning and ending a step."""


_WHO = {
    Lane.DOWNLOAD: "copying gradients to the host is",
    Lane.UPDATE: "the host optimizer is",
    Lane.UPLOAD: "copying weights to the device is",
    Lane.READ: "reading from the disk is",
    Lane.WRITE: "writing to the disk is",
}


@dataclass(frozen=True)
class LaneTime:
    """Seconds of a step: busy, and of those hidden behind compute or exposed, while compute waited."""

    busy_s: float
    exposed_s: float

    @property
    def hidden_s(self) -> float:
        return self.busy_s - self.exposed_s


@dataclass(frozen=True)
class StepTime:
    """A predicted step. `forward_s`: of all its micro-batches' forwards. `waited_s`: compute standing still.

    `measured`: compute's part rests on times measured on this machine. `written_bytes`: to the disk tier.
    """

    step_s: float
    tokens: int
    forward_s: float
    waited_s: float
    lanes: dict[Lane, LaneTime]
    measured: bool
    written_bytes: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step_s

    @property
    def bottleneck(self) -> str:
        """What a step waits for, in one sentence."""
        share = self.lanes[Lane.COMPUTE].busy_s / self.step_s
        slowest = max(
            (lane for lane in LANES if lane is not Lane.COMPUTE), key=lambda each: self.lanes[each].exposed_s
        )
        waits = self.lanes[slowest].exposed_s
        if self.waited_s < 0.1 * self.step_s or waits <= 0:
            return f"the model's own arithmetic is the bottleneck: it takes {share:.0%} of the step"
        return (
            f"{_WHO[slowest]} the bottleneck: compute stands still for {self.waited_s / self.step_s:.0%} of the step, "
            f"{waits:,.2f} s of it while that works"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "step_s": self.step_s,
            "tokens_per_s": self.tokens_per_s,
            "forward_s": self.forward_s,
            "waited_s": self.waited_s,
            "measured": self.measured,
            "bottleneck": self.bottleneck,
            "written_bytes": self.written_bytes,
            "lanes": {
                lane.value: {"busy_s": t.busy_s, "hidden_s": t.hidden_s, "exposed_s": t.exposed_s}
                for lane, t in self.lanes.items()
            },
        }


class _Same:
    """A large value as the key of a cache, by identity: hashing its thousands of parameters would take longer."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(maxsize=64)
def _coarse(
    census: _Same, precision: str, chunk_bytes: int, state_format: StateFormat, device_fraction: float
) -> CoarseLayout:
    return coarse_layout(census.value, precision, chunk_bytes, state_format, device_fraction)


@lru_cache(maxsize=256)
def _timeline(coarse: _Same, shape: StepShape) -> Timeline:
    return build_timeline(coarse.value.layout, shape)


def step_time(census: Census, work: Workload, rates: Rates, times: ModelTimes | None = None) -> StepTime:
    """Predict a step of `work`. The machine has a disk where `work` needs one.

    Raises:
        ValueError: the placement contradicts itself.
    """
    coarse = _coarse(_Same(census), work.precision, work.chunk_bytes, work.state_format, work.device_fraction)
    conditions = work.conditions(sum(shard.weight_bytes for shard in coarse.layout.shards))
    placements = coarse.placements(work.weights, work.state)
    routes = [
        route_shard(shard, placement, conditions)
        for shard, placement in zip(coarse.layout.shards, placements, strict=True)
    ]
    micro_batches = min(work.gradient_accumulation, PLAYED_MICRO_BATCHES)
    flows = tuple(route.flow() for route in routes)
    limits = work.gradient_clipping > 0 or work.precision == "float16"
    before, timeline = (
        _timeline(_Same(coarse), StepShape(count, flows, global_quantity=limits, overlap=work.overlap))
        for count in (1, micro_batches)
    )
    compute = compute_times(census, work, rates, times)
    return _Steps(coarse, routes, work, rates, compute).predict(before, timeline)


class _Steps:
    """Two steps' tasks with their seconds."""

    def __init__(
        self,
        coarse: CoarseLayout,
        routes: Sequence[ShardRoute],
        work: Workload,
        rates: Rates,
        compute: ComputeTimes,
    ) -> None:
        self.coarse = coarse
        self.shards = coarse.layout.shards
        self.routes = routes
        self.work = work
        self.rates = rates
        self.compute = compute
        self.streamed = [index for index, route in enumerate(routes) if route.streamed]
        self.works: list[Work] = []

    def predict(self, before: Timeline, timeline: Timeline) -> StepTime:
        """The step of `timeline`, after one of `before`."""
        micro_batches = timeline.tasks[-1].micro_batch + 1
        alone = [self._alone(task) for task in timeline.tasks]
        first = self._append(before, [self._alone(task) for task in before.tasks], {}, ())
        begin = first[before.find(Kind.BACKWARD, 0)] + 1
        last = self._append(timeline, alone, *self._after(before, first))
        backward_ends = [last[timeline.find(Kind.BACKWARD, m)] for m in range(micro_batches)]
        end = backward_ends[-1]
        played = play(self.works, len(LANES), begin=begin, end=end)
        ends = played.ends
        step_s = ends[end] - ends[begin - 1] + STEP_S
        busy, exposed, waited = played.busy, played.exposed, played.waited
        more = self.work.gradient_accumulation - micro_batches
        if more:
            period = ends[backward_ends[1]] - ends[backward_ends[0]]
            alike = [0.0] * len(LANES)
            for task, (seconds, _) in zip(timeline.tasks, alone, strict=True):
                if task.micro_batch == 1:
                    alike[LANES.index(task.lane)] += seconds
            waits = max(0.0, period - alike[0])
            step_s += more * period
            waited += more * waits
            busy = [b + more * min(a, period) for b, a in zip(busy, alike, strict=True)]
            exposed = [e + more * min(a, waits) for e, a in zip(exposed, alike, strict=True)]
            exposed[0] = 0.0
        return StepTime(
            step_s=step_s,
            tokens=self.work.gradient_accumulation * self.work.micro_batch_size * self.work.sequence_length,
            forward_s=self.work.gradient_accumulation
            * sum(
                seconds
                for task, (seconds, _) in zip(timeline.tasks, alone, strict=True)
                if task.kind is Kind.FORWARD and task.micro_batch == 0
            ),
            waited_s=waited,
            lanes={lane: LaneTime(busy[n], min(busy[n], exposed[n])) for n, lane in enumerate(LANES)},
            measured=self.compute.measured,
            written_bytes=self._written_bytes(timeline),
        )

    def _written_bytes(self, timeline: Timeline) -> int:
        """To the disk tier, a step."""
        tasks = timeline.tasks
        state = sum(task.bytes for task in tasks if task.kind is Kind.WRITE_STATE)
        gradients = sum(
            task.bytes for task in tasks if task.kind is Kind.WRITE_GRADIENT and task.micro_batch == 0
        )
        return state + gradients * self.work.gradient_accumulation

    # Tasks

    def _append(
        self,
        timeline: Timeline,
        alone: Sequence[tuple[float, Demand]],
        before: dict[int, tuple[int, ...]],
        all_before: tuple[int, ...],
    ) -> list[int]:
        """Add one step. `before`: what a shard's first forward waits for; `all_before`: what the first backward does.
        The numbers of its tasks."""
        numbers: list[int] = []
        ends: dict[tuple[Kind, int, int], int] = {}
        previous: int | None = None
        last_forward = timeline.find(Kind.FORWARD, 0, len(self.shards) - 1)
        ready = timeline.ready if self.work.overlap == "delayed" else ()
        for task, (seconds, demand) in zip(timeline.tasks, alone, strict=True):
            waits = [numbers[earlier] for earlier in task.waits]
            if task.shard is not None and task.kind in (Kind.FORWARD, Kind.BACKWARD):
                shard = task.shard
                if task.kind is Kind.FORWARD and task.micro_batch == 0:
                    waits += before.get(shard, ())
                    if ready:
                        waits += [numbers[index] for index in ready[shard]]
                if shard in self.streamed and (task.kind, task.micro_batch, shard) not in ends:
                    waits += self._fetch(task, shard, before, ends)
            if (task.kind is Kind.BACKWARD and task.waits == (last_forward,)) or (
                not task.waits and task.lane is not Lane.COMPUTE
            ):
                waits += all_before
            if self.work.overlap == "serial" and task.lane is not Lane.COMPUTE:
                waits += [] if previous is None else [previous]
                previous = len(self.works)
            numbers.append(self._add(task.lane, seconds, waits, demand))
            if task.shard is not None and task.kind in (Kind.FORWARD, Kind.BACKWARD):
                ends[task.kind, task.micro_batch, task.shard] = numbers[-1]
        return numbers

    def _after(
        self, timeline: Timeline, numbers: list[int]
    ) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
        """What the step after the one with these task numbers waits for."""
        ends = tuple(
            number for number, followers in zip(numbers, timeline.followers, strict=True) if not followers
        )
        last = (self._add(Lane.COMPUTE, 0.0, ends, ()),)
        if self.work.overlap != "exact":
            return dict.fromkeys(range(len(self.shards)), last), last
        ready = {
            shard: tuple(numbers[index] for index in indices) for shard, indices in enumerate(timeline.ready)
        }
        return ready, last

    def _fetch(
        self,
        task: Task,
        shard: int,
        before: dict[int, tuple[int, ...]],
        ends: dict[tuple[Kind, int, int], int],
    ) -> list[int]:
        """A streamed shard's weights come into slots ahead of `task`; the last of forward are there in backward."""
        place = self.streamed.index(shard)
        order = place if task.kind is Kind.FORWARD else len(self.streamed) - 1 - place
        if task.kind is Kind.BACKWARD and order < AHEAD:
            return []
        waits = list(before.get(shard, ())) if task.kind is Kind.FORWARD and task.micro_batch == 0 else []
        if order >= AHEAD:
            earlier = self.streamed[place - AHEAD if task.kind is Kind.FORWARD else place + AHEAD]
            waits.append(ends[task.kind, task.micro_batch, earlier])
        elif task.micro_batch:
            waits.append(ends[Kind.BACKWARD, task.micro_batch - 1, self.streamed[0]])
        spec, route = self.shards[shard], self.routes[shard]
        stored = spec.weight_bytes
        chunks = self.coarse.groups[shard].chunks
        if route.placement.weights == "disk":
            seconds = self.rates.read_s(stored) + chunks * TASK_S
            waits = [self._add(Lane.READ, seconds, waits, self.rates.disk_demand)]
        seconds = self.rates.up_s(stored) + chunks * TASK_S
        return [self._add(Lane.UPLOAD, seconds, waits, self.rates.copy_demand)]

    def _add(self, lane: Lane, seconds: float, waits: Sequence[int], demand: Demand) -> int:
        self.works.append(Work(LANES.index(lane), seconds, tuple(dict.fromkeys(waits)), demand))
        return len(self.works) - 1

    # Seconds

    def _alone(self, task: Task) -> tuple[float, Demand]:
        """Seconds of `task` alone, and what it takes of what lanes share."""
        rates = self.rates
        if task.kind in (Kind.FORWARD, Kind.BACKWARD):
            return self._compute_s(task), rates.compute_demand
        if task.kind is Kind.VERDICT:
            return 0.0, ()
        if task.shard is None:
            return self._collected_s(task), rates.host_demand
        shard = self.shards[task.shard]
        assert task.chunk is not None
        chunk = shard.chunks[task.chunk]
        region = shard.regions[chunk.region]
        on_device = self.routes[task.shard].on_device
        group = self.coarse.groups[task.shard]
        overhead = TASK_S * max(1.0, group.chunks / max(1, len(shard.chunks)))
        if task.kind is Kind.UPDATE:
            if on_device:
                return rates.device_update_s(chunk.elements, region.dtype) + overhead, ()
            return rates.update_s(
                chunk.elements, region.dtype, region.state_format
            ) + overhead, rates.host_demand
        if task.kind is Kind.NORM:
            if on_device:
                return rates.elements_s(chunk.weight_bytes) + overhead, ()
            return rates.norm_s(chunk.elements, region.dtype) + overhead, rates.host_demand
        if task.kind is Kind.ACCUMULATE:
            if on_device:
                return rates.elements_s(10.0 * chunk.elements) + overhead, ()
            return rates.accumulate_s(chunk.elements, region.dtype) + overhead, rates.host_demand
        if task.kind is Kind.DOWNLOAD:
            return rates.down_s(task.bytes) + overhead, rates.copy_demand
        if task.kind is Kind.UPLOAD:
            if on_device:
                return rates.elements_s(2.0 * task.bytes) + overhead, ()
            return rates.up_s(task.bytes) + overhead, rates.copy_demand
        if task.lane is Lane.READ:
            return rates.read_s(task.bytes) + overhead, rates.disk_demand
        return rates.write_s(task.bytes) + overhead, rates.disk_demand

    def _collected_s(self, task: Task) -> float:
        """The norm or the update of all shards that compute itself updates."""
        seconds = TASK_S
        for shard, route in zip(self.shards, self.routes, strict=True):
            if not route.collected:
                continue
            for region in shard.regions:
                if task.kind is Kind.NORM:
                    seconds += (
                        self.rates.elements_s(region.elements * ITEM_BYTES[region.dtype])
                        if route.on_device
                        else self.rates.norm_s(region.elements, region.dtype)
                    )
                elif route.on_device:
                    seconds += self.rates.device_update_s(region.elements, region.dtype)
                else:
                    seconds += self.rates.update_s(region.elements, region.dtype, region.state_format)
        return seconds

    def _compute_s(self, task: Task) -> float:
        """A group's forward, or its part of a group's backward."""
        if task.shard is None:
            return 0.0
        shard, group = self.shards[task.shard], self.coarse.groups[task.shard]
        last = task.shard == len(self.shards) - 1
        forward = task.kind is Kind.FORWARD
        seconds = 0.0
        if group.kind is not None:
            each = (self.compute.forward if forward else self.compute.backward)[group.kind]
            seconds = group.count * (each + (BLOCK_S if group.kind is not None else 0.0))
        if last:
            seconds += self.compute.outer_forward if forward else self.compute.outer_backward
        return seconds if forward else seconds * self._share(task, shard)

    def _share(self, task: Task, shard: Shard) -> float:
        """Of a shard's backward: chunks end one after the other; without chunks it is all at the end."""
        collected = self.routes[shard.index].collected
        if task.chunk is None:
            return 1.0 if collected or not shard.chunks else 0.0
        return shard.chunks[task.chunk].elements / sum(chunk.elements for chunk in shard.chunks)
