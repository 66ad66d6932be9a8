"""How long a step takes: the engine's own timeline, played through at a machine's rates.

Two steps are played, one after the other, and the second is counted (see `played_steps`).

Invariant: seconds come from a machine's rates and a model's times; what waits for what is the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workbench import formatting as figures
from workbench.layout import ITEM_BYTES, Unit
from workbench.plan.time.coarse import CoarseLayout, coarse_layout
from workbench.plan.time.compute_time import ComputeTimes, compute_times
from workbench.plan.time.played_steps import (
    LANES,
    Fetch,
    Piece,
    PlayedSteps,
    SameObject,
    StreamedUnits,
    played_steps,
)
from workbench.plan.time.rates import TASK_S, Rates
from workbench.plan.time.simulation import Demand, play
from workbench.plan.workload import Workload
from workbench.profiles.model_profile import ModelProfile, ModelTimes
from workbench.routing import UnitRoute, route_unit
from workbench.state_formats import StateFormat
from workbench.timeline import Kind, Lane, Task

PLAYED_MICRO_BATCHES = 3
"""The first, one in the middle and the last; further ones in the middle take as long as that one."""
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
            f"{figures.seconds(waits)} of it while that works"
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


@lru_cache(maxsize=64)
def _coarse(
    model_profile: SameObject[ModelProfile],
    precision: str,
    chunk_bytes: int,
    state_format: StateFormat,
    device_fraction: float,
) -> CoarseLayout:
    return coarse_layout(model_profile.value, precision, chunk_bytes, state_format, device_fraction)


def step_time(
    model_profile: ModelProfile, work: Workload, rates: Rates, times: ModelTimes | None = None
) -> StepTime:
    """Predict a step of `work`. The machine has a disk where `work` needs one.

    Raises:
        ValueError: the placement contradicts itself.
    """
    coarse = _coarse(
        SameObject(model_profile), work.precision, work.chunk_bytes, work.state_format, work.device_fraction
    )
    conditions = work.conditions(sum(unit.weight_bytes for unit in coarse.layout.units))
    placements = coarse.placements(work.weights, work.state)
    routes = [
        route_unit(unit, placement, conditions)
        for unit, placement in zip(coarse.layout.units, placements, strict=True)
    ]
    fetched = [index for index, route in enumerate(routes) if route.streamed]
    steps = played_steps(
        coarse,
        tuple(route.flow() for route in routes),
        min(work.gradient_accumulation, PLAYED_MICRO_BATCHES),
        work.overlap,
        work.gradient_clipping > 0 or work.precision == "float16",
        StreamedUnits(tuple(fetched), frozenset(i for i in fetched if routes[i].placement.weights == "disk")),
    )
    compute = compute_times(model_profile, work, rates, times)
    return _predict(steps, _Costs(coarse, routes, work, rates, compute), work)


def _predict(steps: PlayedSteps, costs: _Costs, work: Workload) -> StepTime:
    """The second of `steps`."""
    alone = [costs.of(piece) for piece in steps.pieces]
    seconds, demands = [cost[0] for cost in alone], [cost[1] for cost in alone]
    lanes, alike_to = steps.order.lanes, steps.order.alike
    played = play(steps.order, seconds, demands, begin=steps.begin, end=steps.end)
    ends = played.ends
    step_s = ends[steps.end] - ends[steps.begin - 1] + STEP_S
    busy, exposed, waited = played.busy, played.exposed, played.waited
    more = work.gradient_accumulation - len(steps.backward_ends)
    if more:
        period = ends[steps.backward_ends[1]] - ends[steps.backward_ends[0]]
        alike = [0.0] * len(LANES)
        for number in steps.middle:
            alike[lanes[number]] += seconds[alike_to[number]]
        waits = max(0.0, period - alike[0])
        step_s += more * period
        waited += more * waits
        busy = [b + more * min(a, period) for b, a in zip(busy, alike, strict=True)]
        exposed = [e + more * min(a, waits) for e, a in zip(exposed, alike, strict=True)]
        exposed[0] = 0.0
    return StepTime(
        step_s=step_s,
        tokens=work.gradient_accumulation * work.micro_batch_size * work.sequence_length,
        forward_s=work.gradient_accumulation * sum(seconds[alike_to[number]] for number in steps.forwards),
        waited_s=waited,
        lanes={lane: LaneTime(busy[n], min(busy[n], exposed[n])) for n, lane in enumerate(LANES)},
        measured=costs.compute.measured,
        written_bytes=steps.written_state + steps.written_gradients * work.gradient_accumulation,
    )


class _Costs:
    """Seconds of a task alone, and what it takes of what lanes share."""

    def __init__(
        self,
        coarse: CoarseLayout,
        routes: Sequence[UnitRoute],
        work: Workload,
        rates: Rates,
        compute: ComputeTimes,
    ) -> None:
        self.units = coarse.layout.units
        self.groups = coarse.groups
        self.routes = routes
        self.work = work
        self.rates = rates
        self.compute = compute

    def of(self, piece: Piece | None) -> tuple[float, Demand]:
        if piece is None:
            return 0.0, ()
        return self._fetch(piece) if isinstance(piece, Fetch) else self._task(piece)

    def _fetch(self, fetch: Fetch) -> tuple[float, Demand]:
        stored = self.units[fetch.unit].weight_bytes
        overhead = self.groups[fetch.unit].chunks * TASK_S
        if fetch.lane is Lane.READ:
            return self.rates.read_s(stored) + overhead, self.rates.disk_demand
        return self.rates.up_s(stored) + overhead, self.rates.copy_demand

    def _task(self, task: Task) -> tuple[float, Demand]:
        rates = self.rates
        if task.kind in (Kind.FORWARD, Kind.BACKWARD):
            return self._compute_s(task), rates.compute_demand
        if task.kind is Kind.VERDICT:
            return 0.0, ()
        if task.unit is None:
            return self._collected_s(task), rates.host_demand
        unit = self.units[task.unit]
        assert task.chunk is not None
        chunk = unit.chunks[task.chunk]
        region = unit.regions[chunk.region]
        on_device = self.routes[task.unit].on_device
        group = self.groups[task.unit]
        overhead = TASK_S * max(1.0, group.chunks / max(1, len(unit.chunks)))
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
        """The norm or the update of all units that compute itself updates."""
        seconds = TASK_S
        for unit, route in zip(self.units, self.routes, strict=True):
            if not route.after_backward:
                continue
            for region in unit.regions:
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
        if task.unit is None:
            return 0.0
        unit, group = self.units[task.unit], self.groups[task.unit]
        last = task.unit == len(self.units) - 1
        forward = task.kind is Kind.FORWARD
        seconds = 0.0
        if group.kind is not None:
            each = (self.compute.forward if forward else self.compute.backward)[group.kind]
            seconds = group.count * (each + (BLOCK_S if group.kind is not None else 0.0))
        if last:
            seconds += self.compute.outer_forward if forward else self.compute.outer_backward
        if forward:
            return seconds
        return seconds * self._share(task, unit) + self._gathering_s(task, unit)

    def _gathering_s(self, task: Task, unit: Unit) -> float:
        """Compute itself copies what is gathered out of autograd's tensors into the slots it goes down from."""
        if task.chunk is None or self.routes[unit.index].gradients != "bucketed":
            return 0.0
        chunk = unit.chunks[task.chunk]
        computed = ITEM_BYTES[self.work.compute_dtype(chunk.dtype)]
        return self.rates.elements_s(chunk.elements * computed + chunk.weight_bytes)

    def _share(self, task: Task, unit: Unit) -> float:
        """Of a unit's backward: chunks end one after the other; without chunks it is all at the end."""
        collected = self.routes[unit.index].after_backward
        if task.chunk is None:
            return 1.0 if collected or not unit.chunks else 0.0
        return unit.chunks[task.chunk].elements / sum(chunk.elements for chunk in unit.chunks)
