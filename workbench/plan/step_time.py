"""The seconds of a step and of a run: the engine's own timeline, played through at a machine's rates.

Two steps are played, one after the other, and the second is counted (see `two_steps`). Forward and backward take as
long as they were measured on this machine, else as arithmetic has it: matrix products at the device's matrix speed,
operations on elements at its memory bandwidth, no faster than operations can be launched (a roofline with a floor).

Invariant: seconds come from a machine's rates and a model's times; what waits for what is the engine's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import ceil
from typing import Any

from workbench import formatting as figures
from workbench.config import RunConfig
from workbench.layout import ITEM_BYTES, Layout, Unit
from workbench.plan.memory import cost_of, loss_chunk_bytes
from workbench.plan.rates import TASK_S, Rates
from workbench.plan.sharing import Demand
from workbench.plan.simulation import play
from workbench.plan.two_steps import LANES, Fetch, Piece, TwoSteps, two_steps
from workbench.plan.workload import Workload, saves
from workbench.profiles.machine_profile import ATTENTION_BACKWARD
from workbench.profiles.model_profile import BlockKind, ModelProfile, ModelTimes
from workbench.sizes import sums_by_machine
from workbench.timeline import Kind, Lane, Task

DAY_S = 86_400
BLOCK_S = 60e-6
"""The engine's hooks around one block's forward or backward."""
SUM_BYTES = 4 + 2 + 4
"""Bytes that adding a 16-bit gradient to an fp32 sum reads and writes."""
STEP_S = 5e-4
"""Beginning and ending a step."""
LOGIT_PASSES = 6
"""Times that the loss and its gradient read or write a logit, in fp32."""

_WHO = {
    Lane.DOWNLOAD: "copying gradients to the host is",
    Lane.UPDATE: "the host optimizer is",
    Lane.UPLOAD: "copying weights to the device is",
    Lane.READ: "reading from the disk is",
    Lane.WRITE: "writing to the disk is",
    Lane.COMMUNICATE: "the exchange between ranks is",
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
        """One sentence about what a step waits for."""
        share = self.lanes[Lane.COMPUTE].busy_s / self.step_s
        slowest = max(
            (lane for lane in self.lanes if lane is not Lane.COMPUTE),
            key=lambda each: self.lanes[each].exposed_s,
        )
        waits = self.lanes[slowest].exposed_s
        if self.waited_s < 0.1 * self.step_s or waits <= 0:
            return f"the model's own arithmetic is the bottleneck: it takes {share:.0%} of the step"
        return (
            f"{_WHO[slowest]} the bottleneck: compute waits for "
            f"{self.waited_s / self.step_s:.0%} of the step, {figures.seconds(waits)} of it for this lane"
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


def step_time(
    layout: Layout, model_profile: ModelProfile, work: Workload, rates: Rates, times: ModelTimes | None = None
) -> StepTime:
    """Predict a step of `work` on the engine's `layout`. The machine has a disk where `work` needs one.

    Raises:
        ValueError: the placement contradicts itself.
    """
    steps = two_steps(layout, model_profile, work)
    return _predict(steps, _Costs(steps, work, rates, compute_times(model_profile, work, rates, times)), work)


def _predict(steps: TwoSteps, costs: _Costs, work: Workload) -> StepTime:
    """Return the time of the second of `steps`."""
    alone = [costs.of(piece) for piece in steps.pieces]
    seconds, demands = [cost[0] for cost in alone], [cost[1] for cost in alone]
    lanes, alike_to = steps.order.lanes, steps.order.alike
    settled = [costs.settled_s(piece) for piece in steps.pieces]
    played = play(steps.order, seconds, demands, settled_s=settled, begin=steps.begin, end=steps.end)
    ends = played.ends
    step_s = ends[steps.end] - ends[steps.begin - 1] + STEP_S
    busy, exposed, waited = played.busy, played.exposed, played.waited
    more = work.gradient_accumulation - len(steps.backward_ends)
    if more:
        alike = [0.0] * len(LANES)
        for number in steps.middle:
            alike[lanes[number]] += seconds[alike_to[number]]
        # Gradients have so many slots: where a lane takes longer than backward, compute comes to its pace.
        period = max(ends[steps.backward_ends[1]] - ends[steps.backward_ends[0]], *alike)
        waits = max(0.0, period - alike[0])
        step_s += more * period
        waited += more * waits
        busy = [b + more * min(a, period) for b, a in zip(busy, alike, strict=True)]
        exposed = [e + more * min(a, waits) for e, a in zip(exposed, alike, strict=True)]
        exposed[0] = 0.0
    return StepTime(
        step_s=step_s,
        tokens=work.ranks * work.gradient_accumulation * work.micro_batch_size * work.sequence_length,
        forward_s=work.gradient_accumulation * sum(seconds[alike_to[number]] for number in steps.forwards),
        waited_s=waited,
        lanes={
            lane: LaneTime(busy[n], min(busy[n], exposed[n]))
            for n, lane in enumerate(LANES)
            if work.ranks > 1 or lane is not Lane.COMMUNICATE
        },
        measured=costs.compute.measured,
        written_bytes=(steps.written_state + steps.written_gradients * work.gradient_accumulation)
        * work.local_ranks
        // work.ranks,
    )


class _Costs:
    """Seconds of a task alone, and its demands of what lanes share."""

    def __init__(self, steps: TwoSteps, work: Workload, rates: Rates, compute: ComputeTimes) -> None:
        self.units = steps.grouped.layout.units
        self.groups = steps.grouped.groups
        self.routes = steps.routes
        self.work = work
        self.rates = rates
        self.compute = compute

    def of(self, piece: Piece | None) -> tuple[float, Demand]:
        if piece is None:
            return 0.0, ()
        return self._fetch(piece) if isinstance(piece, Fetch) else self._task(piece)

    def settled_s(self, piece: Piece | None) -> float:
        """Return the seconds of an update that has been done ahead, which is confirmed; else 0."""
        if not isinstance(piece, Task) or piece.kind is not Kind.UPDATE or piece.unit is None:
            return 0.0
        chunks, parts = self.groups[piece.unit].chunks, len(self.units[piece.unit].chunks)
        return TASK_S * max(1.0, chunks / parts)

    def _fetch(self, fetch: Fetch) -> tuple[float, Demand]:
        rates, group = self.rates, self.groups[fetch.unit]
        whole = self.units[fetch.unit].weight_bytes
        stored = -(-whole // self.work.ranks)
        # From the host a block comes with one task, from the disk chunk by chunk.
        overhead = (group.count if group.placement.weights == "host" else group.chunks) * TASK_S
        if fetch.lane is Lane.READ:
            return rates.read_s(stored) + overhead, rates.disk_demand
        up_s = rates.up_s(stored) + overhead
        if self.work.ranks == 1:
            return up_s, rates.up_demand
        # On the same lane: what the other ranks have of the block.
        gathered_s = rates.gather_s(whole) + (group.count + group.chunks) * rates.exchange_s
        parts = zip_longest(rates.up_demand, rates.exchange_demand, fillvalue=0.0)
        seconds = up_s + gathered_s
        return seconds, tuple((up_s * up + gathered_s * gathered) / seconds for up, gathered in parts)

    def _task(self, task: Task) -> tuple[float, Demand]:
        rates = self.rates
        if task.kind in (Kind.FORWARD, Kind.BACKWARD):
            return self._compute_s(task), rates.compute_demand
        if task.kind is Kind.VERDICT:
            return (rates.exchange_s if self.work.ranks > 1 else 0.0), ()
        if task.unit is None:
            return self._collected_s(task), () if any(r.on_device for r in self.routes) else rates.host_demand
        unit = self.units[task.unit]
        assert task.chunk is not None
        chunk = unit.chunks[task.chunk]
        region = unit.regions[chunk.region]
        on_device = self.routes[task.unit].on_device
        group = self.groups[task.unit]
        # A lane hands a copy over while the one before it travels.
        chunks = max(1.0, group.chunks / max(1, len(unit.chunks)))
        overhead = TASK_S * chunks
        if task.kind in (Kind.REDUCE, Kind.GATHER):
            exchanged, rounds = rates.gather_s(task.bytes), 1
            if task.kind is Kind.REDUCE:
                exchanged = rates.reduce_s(task.bytes, 4 * chunk.elements)
                rounds = 2 if sums_by_machine(self.work.ranks, self.work.local_ranks) else 1
            return exchanged + rounds * chunks * rates.exchange_s, rates.exchange_demand
        elements = -(-chunk.elements // self.work.ranks)
        nbytes = task.bytes if task.kind is Kind.DOWNLOAD else -(-task.bytes // self.work.ranks)
        if task.kind is Kind.SPECULATE:
            return rates.ahead_s(elements, region.dtype, region.state_format) + overhead, rates.host_demand
        if task.kind is Kind.UPDATE:
            if on_device:
                summed = self.routes[task.unit].accumulates
                return rates.device_update_s(elements, region.dtype, summed=summed) + overhead, ()
            return rates.update_s(elements, region.dtype, region.state_format) + overhead, rates.host_demand
        if task.kind is Kind.NORM:
            if on_device:
                return rates.elements_s(chunk.weight_bytes / self.work.ranks) + overhead, ()
            return rates.norm_s(elements, region.dtype) + overhead, rates.host_demand
        if task.kind is Kind.ACCUMULATE:
            if on_device:
                return rates.elements_s(SUM_BYTES * elements) + overhead, ()
            return rates.accumulate_s(elements, region.dtype) + overhead, rates.host_demand
        if task.kind is Kind.DOWNLOAD:
            return max(rates.down_s(nbytes), overhead), rates.down_demand
        if task.kind is Kind.UPLOAD:
            if on_device:
                return rates.elements_s(2.0 * nbytes) + overhead, ()
            if self.routes[task.unit].streamed:
                return rates.weights_copy_s(nbytes) + overhead, rates.weights_copy_demand
            return max(rates.up_s(nbytes), overhead), rates.up_demand
        if task.lane is Lane.READ:
            return rates.read_s(nbytes) + overhead, rates.disk_demand
        return rates.write_s(nbytes) + overhead, rates.disk_demand

    def _collected_s(self, task: Task) -> float:
        """Return the seconds of the sum, the norm or the update of all units that compute itself updates."""
        seconds, rates = TASK_S, self.rates
        for unit, route in zip(self.units, self.routes, strict=True):
            for region in unit.regions if route.after_backward else ():
                elements, dtype = -(-region.elements // self.work.ranks), region.dtype
                if task.kind is Kind.ACCUMULATE:
                    seconds += rates.elements_s(SUM_BYTES * elements) if route.accumulates else 0.0
                elif task.kind is Kind.NORM and route.on_device:
                    seconds += rates.elements_s((4 if route.accumulates else ITEM_BYTES[dtype]) * elements)
                elif task.kind is Kind.NORM:
                    seconds += rates.norm_s(elements, dtype)
                elif route.on_device:
                    seconds += rates.device_update_s(elements, dtype, summed=route.accumulates)
                else:
                    seconds += rates.update_s(elements, dtype, region.state_format)
        return seconds

    def _compute_s(self, task: Task) -> float:
        """Return the seconds of a group's forward, or of a chunk's part of its backward."""
        if task.unit is None:
            return 0.0
        unit, group = self.units[task.unit], self.groups[task.unit]
        last = task.unit == len(self.units) - 1
        forward = task.kind is Kind.FORWARD
        seconds = 0.0
        if group.kind is not None:
            each = (self.compute.forward if forward else self.compute.backward)[group.kind]
            seconds = group.count * (each + BLOCK_S)
        if last:
            seconds += self.compute.outer_forward if forward else self.compute.outer_backward
        if self.rates.shared:
            seconds *= self.work.local_ranks  # which have a part of the cores each
        if forward:
            return seconds
        return seconds * self._share(task, unit) + self._gathering_s(task, unit)

    def _gathering_s(self, task: Task, unit: Unit) -> float:
        """Return the seconds in which compute itself copies gradients from autograd's tensors into slots or sums."""
        if task.chunk is None or self.routes[unit.index].gradients != "bucketed":
            return 0.0
        chunk = unit.chunks[task.chunk]
        computed = ITEM_BYTES[self.work.computed_in(chunk.dtype)]
        if self.routes[unit.index].sums_on_device:
            return self.rates.elements_s(chunk.elements * (computed + 8))
        return self.rates.elements_s(chunk.elements * computed + chunk.weight_bytes)

    def _share(self, task: Task, unit: Unit) -> float:
        """Return a chunk's share of a unit's backward, in which chunks end one after the other."""
        collected = self.routes[unit.index].after_backward
        if task.chunk is None:
            return 1.0 if collected or not unit.chunks else 0.0
        return unit.chunks[task.chunk].elements / sum(chunk.elements for chunk in unit.chunks)


# Forward and backward


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds. `forward` and `backward`: of a block by its kind, a recompute included; the outer parts apart.

    `measured`: on this machine, not computed from its matrix speed.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    outer_forward: float
    outer_backward: float
    measured: bool


def compute_times(
    model_profile: ModelProfile, work: Workload, rates: Rates, times: ModelTimes | None
) -> ComputeTimes:
    """Return the times of a micro-batch of `work`."""
    dtype = work.compute_dtype
    rounded = work.tf32 and dtype == "float32"  # which is not what was measured
    if (
        times is not None
        and times.dtype == dtype
        and not rounded
        and len(times.kinds) == len(model_profile.kinds)
    ):
        return _scaled(model_profile, work, times)
    forward, backward = [], []
    for kind in model_profile.kinds:
        ahead, again, back = _block(kind, model_profile, work, rates, dtype)
        forward.append(ahead)
        backward.append(back + (again if work.activation_checkpointing else 0.0))
    outer = _outer(model_profile, work, rates, dtype)
    return ComputeTimes(tuple(forward), tuple(backward), *outer, measured=False)


def _scaled(model_profile: ModelProfile, work: Workload, times: ModelTimes) -> ComputeTimes:
    """Return measured times at the workload's size."""
    forward, backward = [], []
    for kind, measured in zip(model_profile.kinds, times.kinds, strict=True):
        there = kind.flops.at(times.sequences, times.tokens)
        here = kind.flops.at(work.micro_batch_size, work.sequence_length)
        larger = here / there if there else 1.0
        masked = _mask_flops(kind, work) / times.matrix_flops_per_s
        once = measured.forward_s if work.activation_checkpointing else measured.graph_s
        forward.append(larger * once + masked)
        again = larger * measured.again_s + masked if work.activation_checkpointing else 0.0
        backward.append(again + larger * measured.backward_s + 2 * masked)
    tokens = work.micro_batch_size * work.sequence_length / (times.sequences * times.tokens)
    return ComputeTimes(
        tuple(forward),
        tuple(backward),
        tokens * times.outer_forward_s,
        tokens * times.outer_backward_s,
        measured=True,
    )


def _mask_flops(kind: BlockKind, work: Workload) -> float:
    """Return what a mask that keeps documents apart adds to a block's forward: with it, kernels go through the pairs in
    which a token would look ahead, too, which are half of all pairs."""
    pairs = work.micro_batch_size * work.sequence_length**2
    return 0.5 * kind.flops.per_token_pair * pairs if work.separate_documents else 0.0


def _block(
    kind: BlockKind, model_profile: ModelProfile, work: Workload, rates: Rates, dtype: str
) -> tuple[float, float, float]:
    """Return the times of a block's forward, of what a checkpoint computes of it again, and of its backward."""
    sequences, tokens = work.micro_batch_size, work.sequence_length
    cost = cost_of(kind, model_profile, dtype, on_cpu=rates.shared)
    pairs = kind.flops.per_token_pair * sequences * tokens**2
    matrix = rates.matrix_s(kind.flops.at(sequences, tokens) - pairs, dtype, tf32=work.tf32)
    # A token looks back only, at half of all pairs; with a mask kernels go through the others too.
    attention = rates.attention_s(pairs * (1.0 if work.separate_documents else 0.5), dtype)
    ahead = rates.elements_s(cost.element_bytes.at(sequences, tokens))
    back = rates.elements_s(cost.backward_element_bytes.at(sequences, tokens))
    # A frozen matrix gets no gradient, which is half of a matrix's products in backward.
    products = (2 - kind.frozen_share) * matrix + ATTENTION_BACKWARD * attention
    matrix += attention
    less = rates.matrix_s(cost.left_out_flops.at(sequences, tokens), dtype)
    less += rates.elements_s(cost.left_out_element_bytes.at(sequences, tokens))
    launch, launch_back = cost.operations * rates.launch_s, cost.backward_operations * rates.launch_s
    launch_again = launch - cost.left_out_operations * rates.launch_s
    if rates.shared:
        return matrix + ahead + launch, matrix + ahead - less + launch_again, products + back + launch_back
    return (
        max(matrix + ahead, launch),
        max(matrix + ahead - less, launch_again),
        max(products + back, launch_back),
    )


def _outer(model_profile: ModelProfile, work: Workload, rates: Rates, dtype: str) -> tuple[float, float]:
    """Return the times of embedding, head and loss.

    In chunks, the head's gradients are made in the forward: engine/loss/fused_head.py.
    """
    tokens = work.micro_batch_size * work.sequence_length
    flops = 2.0 * tokens * model_profile.vocab_size * model_profile.head_width
    product = rates.matrix_s(flops, dtype, tf32=work.tf32)
    logits = rates.elements_s(LOGIT_PASSES * 4.0 * tokens * model_profile.vocab_size)
    embedding = rates.elements_s(3.0 * tokens * model_profile.hidden_size * ITEM_BYTES[dtype])
    # The embedding's gradient is as large as the embedding, whatever was looked up.
    rows = rates.elements_s(3.0 * model_profile.vocab_size * model_profile.hidden_size * ITEM_BYTES[dtype])
    rows *= model_profile.trains_embedding
    back = 2 if model_profile.trains_head else 1
    if model_profile.loss_in_chunks:
        sums = rates.elements_s(_sum_bytes(model_profile, work, ITEM_BYTES[dtype]))
        return (1 + back) * product + logits + sums + embedding, rows + embedding
    return product + logits / 2 + embedding, back * product + logits / 2 + rows + embedding


def _sum_bytes(model_profile: ModelProfile, work: Workload, item: int) -> float:
    """Return what the loss in chunks moves beside logits: each chunk adds to the fp32 sum of the head's gradient, in
    16 bits by way of a product of its own."""
    logits = 4.0 * work.micro_batch_size * work.sequence_length * model_profile.vocab_size
    chunks = ceil(logits / loss_chunk_bytes(model_profile, work))
    weight = model_profile.vocab_size * model_profile.head_width * model_profile.trains_head
    return chunks * weight * (8.0 + (2 * item if item < 4 else 0)) if chunks > 1 else 0.0


# The run


@dataclass(frozen=True)
class RunTime:
    """Seconds from the first step to the last. `checkpoints_s`: None where the disk was not measured.

    `evaluations_s`: at most, for it is not known here how many tokens are held out. `written_per_day_bytes`: to disks,
    by the disk tier and by checkpoints, while it trains.
    """

    steps_s: float
    evaluations_s: float
    checkpoints_s: float | None
    written_per_day_bytes: float

    @property
    def total_s(self) -> float:
        return self.steps_s + self.evaluations_s + (self.checkpoints_s or 0.0)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "total_s": self.total_s}


def run_time(
    config: RunConfig, time: StepTime, checkpoint_bytes: int, disk_bytes_per_s: float | None
) -> RunTime:
    """Return the time of the run of `config`, whose steps take `time`.

    A checkpoint is `checkpoint_bytes`, written to a disk of `disk_bytes_per_s`.
    """
    steps = config.train.steps
    steps_s = steps * time.step_s
    evaluations = 1 + (steps - 1) // config.evaluate.every if config.evaluate.every else 1
    evaluations *= 1 + len(config.evaluate.sources)
    length = config.data.sequence_length
    evaluated = length * max(1, config.evaluate.tokens // length)  # as `evaluation_batches` takes them
    evaluations_s = evaluations * time.forward_s * evaluated / time.tokens
    saved = saves(config)
    checkpoints_s = None if disk_bytes_per_s is None else saved * checkpoint_bytes / disk_bytes_per_s
    total_s = steps_s + evaluations_s + (checkpoints_s or 0.0)
    written = steps * time.written_bytes + saved * checkpoint_bytes
    return RunTime(steps_s, evaluations_s, checkpoints_s, written / total_s * DAY_S if total_s else 0.0)
