"""A test of the tests: each place where the engine orders something is taken away by itself, and has to be missed.

The virtual device carries everything out as late as it may, in virtual time, on a machine whose host and link are slow:
so each run is the same, what does not wait for a lane goes ahead of it, and whoever waits for nothing hears of it.

A new wait or event in the engine fails here until it is in `RACES` or `THREADS`, with a situation that needs it. Where
none does, the engine does not need it either.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from ordering_between_ranks import BETWEEN_RANKS
from ordering_places import places, without
from plain_torch import SETTINGS
from small_models import CHUNK_BYTES, VOCABULARY, batches
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench import timeline
from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.devices import cuda_device, pinned
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.named_machines import load_profile
from workbench.sizes import RINGS_BYTES
from workbench.timeline import Lane
from workbench.virtual_cuda import Order, VirtualCuda

WIDTH, BLOCKS, STEPS = 48, 6, 3
SLOWER = 1e-5
SMALL_RING = (2, 1024)
"""Buffers of a link, and bytes of each."""

Values = dict[str, Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.inner(x))


class ReadsItsWeightBesides(Block):
    """Backward reads the weight once more when its gradient is final."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.linear(x, self.inner.weight.detach()).tanh())


class Model(nn.Module):
    """A few operations a block, as each of them takes its time on the virtual device."""

    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.through(self.embedding(ids))
        logits = self.head(x)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits, ids[:, 1:].flatten())

    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class GradientStops(Model):
    """The first blocks have no backward: what is fetched for it ahead is still on its way when backward ends."""

    def through(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x.detach() if number == BLOCKS - 2 else x)
        return x


class CheckpointsItself(Model):
    """Blocks run forward within backward, while another block holds a slot."""

    def through(self, x: Tensor) -> Tensor:
        for number in range(0, BLOCKS, 3):
            run: Any = nn.Sequential(*self.blocks[number : number + 3])
            x = checkpoint(run, x, use_reentrant=False, determinism_check="none")
        return x


class SkipsBlocks(Model):
    running = range(BLOCKS)

    def through(self, x: Tensor) -> Tensor:
        for number in self.running:
            x = self.blocks[number](x)
        return x


# Around a training


def leave_memory_that_compute_still_writes() -> None:
    for size in range(512, 64 << 10, 512):
        torch.empty(size, dtype=torch.uint8, device="cuda").fill_(7)


@contextlib.contextmanager
def stream_of_its_own() -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream(torch.device("cuda"))):
        yield


@contextlib.contextmanager
def small_ring() -> Iterator[None]:
    with mock.patch.object(pinned.StagingRing.__init__, "__defaults__", SMALL_RING):
        yield


# After a step


def read_weights(engine: OffloadEngine, report: Any) -> Values:
    return {name: weight.clone() for unit in engine.weights() for name, weight in unit.items()}


def read_model(engine: OffloadEngine, report: Any) -> Values:
    return {name: weight.clone() for name, weight in engine.model.state_dict().items()}


def read_state(engine: OffloadEngine, report: Any) -> Values:
    return {name: kept.clone() for name, kept in engine.state() if isinstance(kept, Tensor)}


def read_counters(engine: OffloadEngine, report: Any) -> Values:
    return engine.counters()["parameter_steps"]


def restore(engine: OffloadEngine, report: Any) -> Values:
    steps = dict.fromkeys(engine._runtime.units.parameter_steps(), 7)
    engine.restore({"steps": 7, "parameter_steps": steps, **engine._non_finite.as_dict()})
    return read_counters(engine, report)


def ask_whether_it_is_skipped(engine: OffloadEngine, report: Any) -> Values:
    return {"skipped": report.is_skipped()}


def send_weights_up(engine: OffloadEngine, report: Any) -> Values:
    """The copies are under way when the engine is closed."""
    return {
        name: weight.to("cuda", non_blocking=True)
        for unit in engine.weights()
        for name, weight in unit.items()
    }


def fetch_a_number(engine: OffloadEngine, report: Any) -> Values:
    return {"number": engine.device.fetch(torch.full((), 3.0, device="cuda"))()}


def drop_a_device(engine: OffloadEngine, report: Any) -> Values:
    """A copy is under way when its device is dropped instead of closed."""
    there = torch.empty(1000, device="cuda")
    device = cuda_device.CudaDevice(engine.device.torch_device)
    device.copy_async(Lane.UPLOAD, there, device.pinned_zeros(1000, torch.float32), None)
    return {}


def look_around(model: Model, ids: Tensor) -> None:
    model(ids)


def look_half_way(model: Model, ids: Tensor) -> None:
    """Leave every slot on its way to a block that the next forward does not run."""
    assert isinstance(model, SkipsBlocks)
    model.running = range(2)
    with torch.no_grad():
        model.through(model.embedding(ids))
    model.running = range(BLOCKS - 2, BLOCKS)


@dataclass(frozen=True)
class Situation:
    """A training of a few steps.

    `rows`: of each micro-batch of a step. `before_engine` is called when the device is open, `before_step` when
    backward has ended, `after_step` when the last `step` has returned: what it reads is compared.
    """

    options: Values = field(default_factory=dict)
    model: Callable[[], Model] = Model
    rows: tuple[int, ...] = (2,)
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    before_engine: Callable[[], None] = lambda: None
    before_step: Callable[[Model, Tensor], None] = lambda model, ids: None
    after_step: Callable[[OffloadEngine, Any], Values] = lambda engine, report: {}
    registered_bytes: int | None = None
    slow: str = "host"
    """The part of the machine that all others wait for."""


CLIPPED = {"gradient_clipping": 0.5}
AHEAD = {"gradient_clipping": 1000.0, "speculation": 1.0}
CLIPPED_BY_THE_LAST = {"gradient_clipping": 2.385}
"""Between the norm of all gradients and that of all but the embedding's, which comes last, in the first two steps."""
DELAYED = {"overlap": "delayed", "delay_warmup": 1}
ON_HOST = {"weights": "host"}
ACTIVATIONS = {"activations": "host", "activation_checkpointing": True}
SITUATIONS = {
    "state on the host": Situation(CLIPPED),
    "without clipping": Situation(),
    "accumulated": Situation(rows=(2, 2)),
    "summed on the device": Situation({"gradient_sums": "device"}, rows=(2, 2)),
    "delayed": Situation(DELAYED),
    "delayed, looked around": Situation(DELAYED, before_step=look_around),
    "weights on the host": Situation(ON_HOST | CLIPPED),
    "weights on the host, delayed": Situation(ON_HOST | DELAYED),
    "serial, weights on the host": Situation({"overlap": "serial", **ON_HOST}),
    "weights on the host, pageable": Situation(ON_HOST, registered_bytes=RINGS_BYTES),
    "weights on the host, small ring": Situation(
        ON_HOST, registered_bytes=4 * SMALL_RING[0] * SMALL_RING[1], around=small_ring
    ),
    "weights on the host, no buffers": Situation(ON_HOST, registered_bytes=0),
    "weights on the host, used memory": Situation(
        ON_HOST, before_engine=leave_memory_that_compute_still_writes
    ),
    "weights on the host, gradient stops": Situation(ON_HOST | CLIPPED, GradientStops),
    "weights on the host, checkpoints itself": Situation(ON_HOST | CLIPPED, CheckpointsItself),
    "weights on the host, blocks skipped": Situation(
        ON_HOST | CLIPPED, SkipsBlocks, before_step=look_half_way
    ),
    "activations on the host": Situation(ACTIVATIONS),
    "activations on the host, growing": Situation(ACTIVATIONS, rows=(2, 4)),
    "weight read besides": Situation({}, lambda: Model(ReadsItsWeightBesides), slow="device"),
    "state on both, own stream": Situation({"device_fraction": 0.4, **CLIPPED}, around=stream_of_its_own),
    "weights read": Situation(ON_HOST, after_step=read_weights),
    "model read": Situation(CLIPPED, after_step=read_model),
    "state read": Situation(CLIPPED, after_step=read_state),
    "counters read": Situation(CLIPPED, after_step=read_counters),
    "restored": Situation(CLIPPED, after_step=restore),
    "report read": Situation(CLIPPED, after_step=ask_whether_it_is_skipped),
    "number fetched": Situation(after_step=fetch_a_number),
    "device dropped": Situation(after_step=drop_a_device),
    "weights sent up": Situation(CLIPPED, after_step=send_weights_up),
    "updated ahead": Situation(AHEAD),
    "updated ahead, undone": Situation(AHEAD | CLIPPED_BY_THE_LAST),
    "updated ahead, state on both": Situation(AHEAD | {"device_fraction": 0.4}),
    "updated ahead, state on both, undone": Situation(AHEAD | CLIPPED_BY_THE_LAST | {"device_fraction": 0.4}),
    "updated ahead, accumulated": Situation(AHEAD, rows=(2, 2)),
    "updated ahead, weights on the host": Situation(AHEAD | ON_HOST),
    "updated ahead, weights on the host, undone": Situation(
        AHEAD | CLIPPED_BY_THE_LAST | ON_HOST, CheckpointsItself
    ),
}


RACES: dict[str, str] = {
    "ActivationOffload._send_down: record_event": "activations on the host",
    "ActivationOffload._send_down: copy_async": "activations on the host",
    "ActivationOffload._send_up: record_event": "activations on the host",
    "ActivationOffload._send_up: copy_async": "activations on the host",
    "ActivationOffload._await_up: wait_event": "activations on the host",
    "ActivationOffload._leave_device: wait_event": "activations on the host",
    "HostPool._release: synchronize": "activations on the host, growing",
    "ParamReadyBarrier._wait_for: wait": "state on the host",
    "WeightPrefetcher.acquire: wait_for": "weights on the host",
    "WeightPrefetcher._release: record_event": "weights on the host",
    "WeightPrefetcher._copy: copy_all": "weights on the host",
    "CudaDevice.copy_all: synchronize": "weights on the host",
    "CudaLink.send: stream": "state on the host",
    "CudaLink.wait: wait_event": "state on the host",
    "CudaLink.record_event: record": "state on the host",
    "CudaDevice.record_event: record": "state on the host",
    "CudaDevice.wait_event: wait_event": "activations on the host",
    "CudaDevice.computing: stream": "state on both, own stream",
    "CudaDevice.synchronize: synchronize": "weights sent up",
    "CudaDevice.begin_copy: synchronize": "state on the host",
    "CudaDevice._begin: wait": "state on the host",
    "CudaDevice._begin: record_event": "activations on the host",
    "CudaDevice.close: synchronize": "weights sent up",
    "StagingRing._advance: synchronize": "weights on the host, small ring",
    "_land: synchronize": "weights on the host, pageable",
    "StepExecution.wait: wait": "weights on the host",
    "StepExecution.wait: when_done": "weights on the host",
    "GradientHooks._chunk_is_final: record_event": "state on the host",
    "GradientHooks._chunk_is_final: record_event again": "summed on the device",
    "GradientHooks._unit_is_over: record_event": "weight read besides",
    "OffloadEngine.wait: wait": "delayed",
    "OffloadEngine.close: wait": "delayed",
    "StepScheduler.wait: wait": "delayed",
    "StepTasks.begin: record_event": "delayed, looked around",
    "StepTasks.perform: computing": "state on both, own stream",
    "StepTasks.download: begin_copy": "summed on the device",
    "StepTasks.download: begin_copy again": "state on the host",
    "StepTasks.upload: begin_copy": "weight read besides",
    "_wait_for: wait": "model read",
    "CudaDevice.fetch.read: synchronize": "number fetched",
    "_unregister_all: synchronize": "device dropped",
}
"""The device's order: in which situation the checker finds a place that was taken away."""

THREADS: dict[str, str] = {
    "ParamReadyBarrier.when_ready: when_done": "weights on the host",
    "WeightPrefetcher._wait_for_all: wait_for": "weights on the host, gradient stops",
    "WeightPrefetcher._begin_fetches: _when_ready": "weights on the host",
    "SlotPool.take: wait_for": "without clipping",
    "CudaLink.send: record_event": "weights on the host, pageable",
    "StepExecution.wait_all: wait": "state on the host",
    "OffloadEngine.state: wait": "state read",
    "OffloadEngine.weights: wait": "weights read",
    "OffloadEngine.counters: wait": "counters read",
    "OffloadEngine.restore: wait": "restored",
    "StepScheduler._finish.finish: wait_all": "state on the host",
    "CudaDevice.fetch: record_event": "number fetched",
    "StepScheduler._is_skipped: wait": "report read",
}
"""Threads wait for each other, which the checker does not look at: other bits, or an error."""


ELSEWHERE = {
    "CudaDevice.empty: record_event": "test_cuda_memory.py",
    "CudaDevice.empty: wait": "test_cuda_memory.py",
    "StepScheduler.end: wait": "test_engine_failures.py",
}
"""Promises that no training's bits need: the file whose tests miss them."""


@functools.cache
def machine(slow: str) -> MachineProfile:
    """A machine of which one part, `host` with its link or `device`, is so slow that all others wait for it."""
    known = load_profile(Path("desktop-24gb")).model_dump()

    def slowed(name: str, rate: Any) -> Any:
        if isinstance(rate, dict):
            return {key: slowed(name, value) for key, value in rate.items()}
        if isinstance(rate, list | tuple):
            return [slowed(name, value) for value in rate]
        return rate * SLOWER if name.endswith("per_s") else rate / SLOWER if name.endswith("_ns") else rate

    for part in ("host", "link") if slow == "host" else ("device",):
        known[part] = {name: slowed(name, value) for name, value in known[part].items()}
    return MachineProfile.model_validate(known)


def train(situation: Situation, cuda: VirtualCuda) -> Values:
    """Return all that a training comes to, and the memory that the engine took for it."""
    model, losses = situation.model(), []
    with cuda, situation.around():
        device = cuda_device.CudaDevice(torch.device("cuda", 0))
        # At first: an upload from pageable memory waits for compute.
        data = [[batches(1, rows, seed=n)[0].to("cuda") for rows in situation.rows] for n in range(STEPS)]
        situation.before_engine()
        with OffloadEngine(
            model,
            optimizer=SETTINGS,
            device=device,
            gradient_accumulation=len(situation.rows),
            precision="fp32",
            chunk_bytes=CHUNK_BYTES,
            threads=1,
            watchdog_s=0,
            **situation.options,
        ) as engine:
            for micro_batches in data:
                for ids in micro_batches:
                    loss = model(ids)
                    engine.backward(loss)
                    losses.append(loss.detach())
                situation.before_step(model, ids)
                report = engine.step()
            read = situation.after_step(engine, report)
            memory = engine.memory()
        found: Values = {f"loss {number}": loss.cpu() for number, loss in enumerate(losses)}
        found |= {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
        found |= {f"read {name}": v.cpu() if isinstance(v, Tensor) else v for name, v in read.items()}
    return found | {"memory": memory}


def virtual(situation: Situation) -> VirtualCuda:
    return VirtualCuda(
        Order.LAZY, machine=machine(situation.slow), registered_bytes=situation.registered_bytes
    )


@pytest.fixture(autouse=True)
def _small_activations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)


@pytest.fixture(scope="module")
def wanted() -> Callable[[str], Values]:
    known: dict[str, Values] = {}

    def of(name: str) -> Values:
        if name not in known:
            cuda = virtual(SITUATIONS[name])
            known[name] = train(SITUATIONS[name], cuda)
            assert not cuda.races and not cuda.faults, cuda.races
        return known[name]

    return of


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name.startswith("updated ahead")])
def test_an_update_ahead_of_its_verdict_waits_for_its_gradient(
    situation: str, wanted: Callable[[str], Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, add = wanted(situation), timeline._Builder.add

    def without_the_first_wait(builder: Any, lane: Any, kind: Any, *place: Any, **more: Any) -> int:
        if kind is timeline.Kind.SPECULATE:
            place = (*place[:-1], place[-1][1:])
        return add(builder, lane, kind, *place, **more)

    monkeypatch.setattr(timeline._Builder, "add", without_the_first_wait)
    cuda = virtual(SITUATIONS[situation])
    assert not same(train(SITUATIONS[situation], cuda), usual) or cuda.races


def same(one: Values, other: Values) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        for name, value in one.items()
    )


def test_every_place_where_the_engine_orders_something_is_in_one_of_the_tables() -> None:
    assert places().keys() == RACES.keys() | THREADS.keys() | BETWEEN_RANKS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_the_bits_of_doing_all_at_once(
    name: str, wanted: Callable[[str], Values]
) -> None:
    at_once = train(SITUATIONS[name], VirtualCuda(Order.AT_ONCE))
    assert same(wanted(name) | {"memory": at_once["memory"]}, at_once)


@pytest.mark.parametrize("place", RACES | THREADS)
def test_a_place_that_is_taken_away_is_missed(place: str, wanted: Callable[[str], Values]) -> None:
    situation = (RACES | THREADS)[place]
    usual = wanted(situation)
    cuda = virtual(SITUATIONS[situation])
    with without(place):
        try:
            found = same(train(SITUATIONS[situation], cuda), usual)
        except Exception:
            found = False
    if place in RACES:
        assert cuda.races
    else:
        assert not found
