"""Ranks that share the optimizer's state train as one rank does with as many times the micro-batches."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from plain_torch import (
    SETTINGS,
    Outcome,
    assert_same_bits,
    engine_state,
    engine_weights,
    train_engine,
)
from rank_processes import RankError, RankProcesses, of_rank
from small_models import SeparateMemory
from torch import Tensor, nn

from workbench.engine import OffloadEngine
from workbench.engine.devices.device import CpuDevice, Device, open_device
from workbench.engine.non_finite import LossScaling
from workbench.engine.rank_tasks import exact_total
from workbench.engine.ranks import Ranks
from workbench.engine.step_tasks import StepTasks
from workbench.layout import moment_bytes
from workbench.timeline import Kind
from workbench.virtual_cuda import Order, VirtualCuda

WIDTH = 48
INNER = 2000
"""WIDTH * INNER elements are more than one block of the norm: a parameter is cut between ranks."""
TOKENS = 12
OVERFLOWS = 0


@pytest.fixture(scope="module", params=[2, 3], ids=lambda size: f"{size} ranks")
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankProcesses]:
    processes = RankProcesses(request.param, tmp_path_factory.mktemp("ranks"))
    yield processes
    processes.kill()


class Block(nn.Module):
    def __init__(self, inner: int = INNER) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)
        self.side = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, with_side: bool) -> Tensor:
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return x + self.side(x) if with_side else x


class Net(nn.Module):
    """Ids in, loss out; the head is the embedding. `side` runs for batches whose first id is even, `never` for none."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.never = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, with_side=bool(ids[0, 0] % 2 == 0))
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def net(seed: int = 0, layers: int = 2) -> Net:
    torch.manual_seed(seed)
    return Net(layers)


def data(steps: int, micro_batches: int, *, uneven: bool = False) -> list[list[Tensor]]:
    """Ids of each micro-batch of each step; `uneven`: of unequal lengths. Of every step's first two one is odd."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(steps):
        step = []
        for micro in range(micro_batches):
            length = TOKENS - 3 * (micro % 2) if uneven else TOKENS
            ids = torch.randint(50, (2, length), generator=generator)
            ids[0, 0] = micro % 2
            step.append(ids)
        made.append(step)
    return made


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    loss: Tensor = model(ids)
    return loss


def counted(ids: Tensor) -> int:
    return int(ids.shape[0] * (ids.shape[1] - 1))


def device_of(memory: str, seed: int | None = None) -> Device:
    if memory == "virtual":
        return open_device("cuda")
    return CpuDevice() if memory == "one" else SeparateMemory(seed, longest_s=0.001)


def train_virtual(
    rank: int, size: int, steps: list[list[Tensor]], memory: str, options: dict[str, Any], order: Order
) -> tuple[Outcome, list[str]]:
    """On a virtual GPU; with what the checker of races has found."""
    cuda = VirtualCuda(order, seed=rank)
    with cuda:
        sent = [[ids.to("cuda") for ids in step] for step in steps]
        outcome = train_ranks(rank, size, sent, "virtual", options)
    return outcome, [str(race) for race in cuda.races] + cuda.faults


def train_ranks(
    rank: int, size: int, steps: list[list[Tensor]], memory: str, options: dict[str, Any]
) -> Outcome:
    seed = rank if options.pop("late", False) else None
    if options.get("state") == "disk":
        options["disk_path"] = tempfile.gettempdir()
    start = net(options.pop("seeds", [0] * size)[rank])
    if options.pop("with_tokens", False):
        options["tokens"] = counted
    return train_engine(
        start,
        of_rank(rank, size, steps),
        device_of(memory, seed),
        compute_loss=loss_of,
        **options,
    )


def train_one(steps: list[list[Tensor]], memory: str, options: dict[str, Any]) -> Outcome:
    options = {name: value for name, value in options.items() if name not in ("late", "seeds")}
    if options.get("state") == "disk":
        options["disk_path"] = tempfile.gettempdir()
    if options.pop("with_tokens", False):
        options["tokens"] = counted
    options["gradient_accumulation"] = len(steps[0])
    return train_engine(net(), steps, device_of(memory), compute_loss=loss_of, **options)


def assert_ranks_are_one(outcomes: list[Outcome], one: Outcome, *, norms: float = 0.0) -> None:
    """Losses, step counts and weights of all ranks have the bits of one rank's, and so have norms but for `norms`."""
    size = len(outcomes)
    for rank, outcome in enumerate(outcomes):
        assert outcome.norms == outcomes[0].norms == pytest.approx(one.norms, rel=norms, abs=0)
        assert outcome.parameter_steps == one.parameter_steps
        assert outcome.losses == one.losses[rank::size]
        assert outcome.parameters.keys() == one.parameters.keys()
        for name, theirs in one.parameters.items():
            assert torch.equal(outcome.parameters[name], theirs), (rank, name)


DELAYED: dict[str, Any] = {"overlap": "delayed", "delay_warmup": 1}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "one memory": ("one", {}),
    "one memory, serial, clipped": ("one", {"overlap": "serial", "gradient_clipping": 0.1}),
    "one memory, clipped": ("one", {"gradient_clipping": 0.1}),
    "one memory, state device": ("one", {"state": "device"}),
    "one memory, tokens": (
        "one",
        {"with_tokens": True, "micro_batch_tokens": 2 * TOKENS - 2, "gradient_clipping": 0.1},
    ),
    "separate memory, late lanes": ("separate", {"late": True}),
    "separate memory, clipped, late lanes": ("separate", {"late": True, "gradient_clipping": 0.1}),
    "separate memory, serial": ("separate", {"overlap": "serial"}),
    "separate memory, state device": ("separate", {"state": "device", "late": True}),
    "weights host, late lanes": ("separate", {"weights": "host", "late": True}),
    "weights host, clipped, late lanes": (
        "separate",
        {"weights": "host", "gradient_clipping": 0.1, "late": True},
    ),
    "weights host, serial, state disk": (
        "separate",
        {"weights": "host", "state": "disk", "overlap": "serial"},
    ),
    "weights host, bf16, half": (
        "separate",
        {"weights": "host", "precision": "bf16", "compute": "same", "state_format": "half", "late": True},
    ),
    "weights disk": ("one", {"weights": "disk", "state": "disk"}),
    "weights disk, bf16, half, clipped": (
        "separate",
        {
            "weights": "disk",
            "state": "disk",
            "precision": "bf16",
            "compute": "same",
            "state_format": "half",
            "gradient_clipping": 0.1,
            "late": True,
        },
    ),
    "fp16, computed in fp32": (
        "one",
        {"precision": "fp16", "with_tokens": True, "micro_batch_tokens": 22},
    ),
    "bf16": ("one", {"precision": "bf16", "compute": "same", "gradient_clipping": 0.1}),
    "bf16, separate memory, half": (
        "separate",
        {"precision": "bf16", "compute": "same", "state_format": "half", "late": True},
    ),
    "fp16": ("one", {"precision": "fp16", "compute": "same", "with_tokens": True, "micro_batch_tokens": 22}),
    "first units on the device": ("separate", {"device_fraction": 0.5, "late": True}),
    "state disk": ("one", {"state": "disk"}),
    "state disk, separate memory, clipped": (
        "separate",
        {"state": "disk", "gradient_clipping": 0.1, "late": True},
    ),
    "state disk, bf16, half": (
        "separate",
        {"state": "disk", "precision": "bf16", "compute": "same", "state_format": "half"},
    ),
    "bf16, state device": ("separate", {"precision": "bf16", "compute": "same", "state": "device"}),
    "compact": ("separate", {"precision": "bf16", "compute": "same", "state_format": "compact"}),
    "updated ahead": ("separate", {"speculation": 1.0, "gradient_clipping": 1000.0, "late": True}),
    "delayed, one memory": ("one", DELAYED),
    "delayed, late lanes": ("separate", DELAYED | {"late": True}),
    "delayed, clipped, late lanes": ("separate", DELAYED | {"gradient_clipping": 0.1, "late": True}),
    "delayed, fp16": (
        "separate",
        DELAYED
        | {
            "precision": "fp16",
            "compute": "same",
            "with_tokens": True,
            "micro_batch_tokens": 22,
            "late": True,
        },
    ),
    "delayed, bf16, half": (
        "separate",
        DELAYED | {"precision": "bf16", "compute": "same", "state_format": "half", "late": True},
    ),
    "delayed, state device": ("separate", DELAYED | {"state": "device", "late": True}),
    "delayed, first units on the device": ("separate", DELAYED | {"device_fraction": 0.5, "late": True}),
    "delayed, state disk": ("separate", DELAYED | {"state": "disk", "late": True}),
    "delayed, weights host": ("separate", DELAYED | {"weights": "host", "late": True}),
    "delayed, weights host, state disk, bf16, half": (
        "separate",
        DELAYED
        | {
            "weights": "host",
            "state": "disk",
            "precision": "bf16",
            "compute": "same",
            "state_format": "half",
            "gradient_clipping": 0.1,
        },
    ),
    "delayed, fp16, computed in fp32": (
        "one",
        DELAYED | {"precision": "fp16", "with_tokens": True, "micro_batch_tokens": 22},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_micro_batch_on_each_rank_gives_the_bits_of_all_on_one(ranks: RankProcesses, way: str) -> None:
    memory, options = WAYS[way]
    steps = data(5 if "overlap" in options else 3, ranks.size, uneven="with_tokens" in options)
    one = train_one(steps, memory, options)
    # A device sums squares in fp32, parameter by parameter: a rank that has a part of one rounds otherwise, at most at
    # each of its elements.
    on_device = options.get("state") == "device" or "device_fraction" in options
    norms = WIDTH * INNER * 2.0**-24 if memory == "separate" and on_device else 0.0
    assert_ranks_are_one(ranks.run(train_ranks, steps, memory, options), one, norms=norms)


GPU_WAYS = {
    "lazy": (Order.LAZY, "separate memory, late lanes"),
    "clipped": (Order.RANDOM, "separate memory, clipped, late lanes"),
    "tokens": (Order.COPIES_FIRST, "fp16"),
    "state device": (Order.RANDOM, "separate memory, state device"),
    "state on both": (Order.LAZY, "first units on the device"),
    "state disk": (Order.COMPUTE_FIRST, "state disk, bf16, half"),
    "bf16, state device": (Order.LAZY, "bf16, state device"),
    "compact": (Order.RANDOM, "compact"),
    "weights host": (Order.RANDOM, "weights host, late lanes"),
    "weights host, bf16": (Order.LAZY, "weights host, bf16, half"),
    "weights host, clipped": (Order.COPIES_FIRST, "weights host, clipped, late lanes"),
    "weights disk": (Order.COMPUTE_FIRST, "weights disk, bf16, half, clipped"),
    "updated ahead": (Order.LAZY, "updated ahead"),
    "delayed": (Order.RANDOM, "delayed, late lanes"),
    "delayed, clipped": (Order.LAZY, "delayed, clipped, late lanes"),
    "delayed, fp16": (Order.COPIES_FIRST, "delayed, fp16"),
    "delayed, state on both": (Order.COMPUTE_FIRST, "delayed, first units on the device"),
    "delayed, weights host": (Order.LAZY, "delayed, weights host"),
}


@pytest.mark.parametrize("gpu_way", GPU_WAYS)
def test_gpus_give_the_bits_of_cpus(ranks: RankProcesses, gpu_way: str) -> None:
    order, way = GPU_WAYS[gpu_way]
    _, options = WAYS[way]
    options = {**options, "gradient_accumulation": 2} if gpu_way == "clipped" else options
    micro_batches = ranks.size * options.get("gradient_accumulation", 1)
    steps = data(4 if "overlap" in options else 2, micro_batches, uneven="with_tokens" in options)
    on_cpus = ranks.run(train_ranks, steps, "separate", options)
    on_gpus = ranks.run(train_virtual, steps, "virtual", options, order)
    assert [found for _, found in on_gpus] == [[]] * ranks.size
    for (gpu, _), cpu in zip(on_gpus, on_cpus, strict=True):
        assert_same_bits(gpu, cpu)


@pytest.mark.parametrize(
    "way",
    [
        "one memory",
        "bf16, separate memory, half",
        "compact",
        "bf16, state device",
        "state disk, bf16, half",
        "weights host, bf16, half",
        "weights disk, bf16, half, clipped",
        "delayed, clipped, late lanes",
        "delayed, bf16, half",
        "delayed, state device",
        "delayed, weights host",
    ],
)
def test_the_state_of_all_ranks_together_has_the_bits_of_one(ranks: RankProcesses, way: str) -> None:
    memory, options = WAYS[way]
    steps = data(3 if "overlap" in options else 2, ranks.size)
    one = train_one(steps, memory, options).state
    together = joined(ranks.run(train_ranks, steps, memory, options))
    assert together.keys() == one.keys()
    for name, theirs in one.items():
        assert torch.equal(together[name], theirs), name


def joined(outcomes: list[Outcome]) -> dict[str, Tensor]:
    """The ranks' states as one: what a rank does not have is zero."""
    whole = {name: torch.zeros_like(kept) for name, kept in outcomes[0].state.items()}
    for outcome in outcomes:
        for name, kept in outcome.state.items():
            assert not (whole[name].view(torch.uint8).bool() & kept.view(torch.uint8).bool()).any(), name
            whole[name].view(torch.uint8).bitwise_or_(kept.view(torch.uint8))
    return whole


@pytest.mark.parametrize(
    "way",
    [
        "one memory, clipped",
        "fp16",
        "compact",
        "bf16, state device",
        "state disk",
        "weights host, bf16, half",
        "weights disk, bf16, half, clipped",
        "updated ahead",
        "delayed, clipped, late lanes",
        "delayed, fp16",
        "delayed, state disk",
        "delayed, first units on the device",
        "delayed, weights host",
        "delayed, fp16, computed in fp32",
    ],
)
def test_another_number_of_ranks_goes_on_with_the_same_bits(ranks: RankProcesses, way: str) -> None:
    """One rank's state after two steps is taken up by several, and theirs after two more by one."""
    memory, options = WAYS[way]
    steps = data(6, ranks.size, uneven="with_tokens" in options)
    never_stopped, _ = go_on(0, 1, steps, None, memory, options)
    _, saved = go_on(0, 1, steps[:2], None, memory, options)
    outcomes = ranks.run(go_on, steps[2:4], saved, memory, options)
    state = joined([outcome for outcome, _ in outcomes])
    resumed, _ = go_on(0, 1, steps[4:], (state, outcomes[0][1][1]), memory, options)
    assert resumed.parameters.keys() == never_stopped.parameters.keys()
    for name, parameter in never_stopped.parameters.items():
        assert torch.equal(resumed.parameters[name], parameter), name


@pytest.mark.parametrize(
    ("memory", "weights"), [("one", "device"), ("separate", "device"), ("separate", "host")]
)
def test_close_leaves_the_newest_weights_in_every_ranks_model(
    ranks: RankProcesses, memory: str, weights: str
) -> None:
    """Those of a delayed engine are behind until then, all of them, by the update of the last step. Of blocks that come
    through slots no rank has all."""
    for own, newest, before in ranks.run(train_and_close, data(3, ranks.size), memory, weights):
        assert own.keys() == newest.keys()
        for name, weight in newest.items():
            if weights == "host" and name.startswith("blocks."):
                assert own[name].isnan().all() and not weight.isnan().any(), name
            else:
                assert torch.equal(own[name], weight), name
        assert not torch.equal(before, newest["norm.weight"])


def train_and_close(
    rank: int, size: int, steps: list[list[Tensor]], memory: str, weights: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """The model's own parameters after `close`; all weights before it, and one parameter."""
    model = net()
    options: dict[str, Any] = {"chunk_bytes": 1, "threads": 1, "weights": weights} | DELAYED
    with OffloadEngine(model, optimizer=SETTINGS, device=device_of(memory), **options) as engine:
        for [ids] in of_rank(rank, size, steps):
            engine.backward(model(ids))
            engine.step()
        newest = engine_weights(engine, model)
        before = model.norm.weight.detach().clone()
    return {name: p.detach().clone() for name, p in model.named_parameters()}, newest, before


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
def test_ranks_that_do_not_keep_step_fetch_the_same_blocks(ranks: RankProcesses, overlap: str) -> None:
    """They look around between steps and before them, each after another while."""
    steps = data(3, ranks.size)
    found = ranks.run(look_around, steps, overlap)
    assert found == [look_around(0, 1, steps, overlap)] * ranks.size


def look_around(rank: int, size: int, steps: list[list[Tensor]], overlap: str) -> list[float]:
    """The losses of one batch that all ranks look at, whatever they train on."""
    model = net(layers=6)  # more than there are slots
    options: dict[str, Any] = {"chunk_bytes": 1, "threads": 1, "weights": "host", "overlap": overlap}
    found = []

    def look() -> None:
        time.sleep(0.01 * rank)
        with torch.no_grad():
            found.append(float(model(steps[0][0])))

    device = device_of("separate", rank)
    with OffloadEngine(
        model,
        optimizer=SETTINGS,
        device=device,
        gradient_accumulation=len(steps[0]) // size,
        delay_warmup=1,
        **options,
    ) as engine:
        for micro_batches in of_rank(rank, size, steps):
            look()
            for ids in micro_batches:
                engine.backward(model(ids))
            look()
            engine.step()
            look()
    return found


@pytest.mark.parametrize("weights", ["host", "disk"])
def test_a_slot_that_is_on_its_way_to_hold_one_block_is_filled_with_another_after_that(
    ranks: RankProcesses, weights: str
) -> None:
    """What was fetched ahead is not run: other blocks are, whose parts lie elsewhere in a slot."""
    assert ranks.run(run_a_few, weights) == [run_a_few(0, 1, weights)] * ranks.size


def run_a_few(rank: int, size: int, weights: str) -> list[float]:
    model = net(layers=1)
    model.blocks = nn.ModuleList(Block(INNER * (1 + number % 3)) for number in range(9))
    options: dict[str, Any] = {"weights": weights, "chunk_bytes": 1, "threads": 1}
    if weights == "disk":
        options |= {"state": "disk", "disk_path": tempfile.gettempdir()}
    found = []
    x = torch.ones(1, 3, WIDTH)
    device = device_of("separate", 10 * rank)
    with OffloadEngine(model, optimizer=SETTINGS, device=device, **options), torch.no_grad():
        for first in (0, 6, 1, 5, 2, 7, 3, 0, 4):
            y = model.blocks[first](x, with_side=False)
            found.append(float(model.blocks[first + 1](y, with_side=True).sum()))
    return found


Saved = tuple[dict[str, Tensor], dict[str, Any]]


def go_on(
    rank: int,
    size: int,
    steps: list[list[Tensor]],
    saved: Saved | None,
    memory: str,
    options: dict[str, Any],
) -> tuple[Outcome, Saved]:
    """Train `steps` from a state and counters; return those after them."""
    mine = of_rank(rank, size, steps)
    options = {name: value for name, value in options.items() if name not in ("late", "with_tokens")}
    options |= {
        "chunk_bytes": 1,
        "threads": 1,
        "micro_batch_tokens": 2 * TOKENS - 2,
        "gradient_accumulation": len(mine[0]),
    }
    options.setdefault("precision", "fp32")
    if options.get("state") == "disk":
        options["disk_path"] = tempfile.gettempdir()
    model, outcome = net(rank), Outcome()
    with OffloadEngine(model, optimizer=SETTINGS, device=device_of(memory), **options) as engine:
        if saved is not None:
            for name, kept in engine.state():
                if isinstance(kept, Tensor):
                    kept.copy_(saved[0][name])
                else:
                    kept.write(0, saved[0][name])
            engine.restore(saved[1])
        for step in mine:
            for ids in step:
                engine.backward(model(ids), tokens=counted(ids))
            engine.step()
        outcome.state.update(engine_state(engine))
        outcome.parameters.update(engine_weights(engine, model))
        return outcome, (outcome.state, engine.counters())


@pytest.mark.parametrize("memory", ["one", "separate"])
def test_several_micro_batches_on_each_rank_differ_from_one_rank_by_the_order_of_sums_alone(
    ranks: RankProcesses, memory: str
) -> None:
    """(g0 + g2) + (g1 + g3) for ((g0 + g1) + g2) + g3: both are as near to the sum in float64 as fp32 can be."""
    steps = data(1, 2 * ranks.size)
    found = ranks.run(momentum_after_a_step, steps, memory, 2)
    exact, magnitude = gradients_in_float64(steps[0])
    beta = SETTINGS.betas[0]
    count = len(steps[0])
    for rank in range(ranks.size):
        norm, momentum = found[rank]
        whole = float(torch.stack([g.square().sum() for g in exact.values()]).sum().sqrt()) / count
        assert norm == pytest.approx(whole, rel=1e-6, abs=0)
        for name, ours in momentum.items():
            # Each gradient is added once and rounded as often as there are sums, then scaled and weighted by 1 - beta.
            bound = (count + 3) * 2.0**-24 * magnitude[name] * (1 - beta) / count
            assert ((ours.double() - (1 - beta) * exact[name] / count).abs() <= bound + 1e-30).all(), name


def momentum_after_a_step(
    rank: int, size: int, steps: list[list[Tensor]], memory: str, micro_batches: int
) -> tuple[float, dict[str, Tensor]]:
    """The norm, and of each parameter that is all of one rank's share exp_avg after one step."""
    model = net()
    options: dict[str, Any] = {"chunk_bytes": 1, "threads": 1, "gradient_accumulation": micro_batches}
    [step] = of_rank(rank, size, steps)
    with OffloadEngine(model, optimizer=SETTINGS, device=device_of(memory), **options) as engine:
        for ids in step:
            engine.backward(model(ids))
        norm = engine.step().result().grad_norm
        found = {}
        for unit in engine._runtime.units.memories:
            for chunk in unit.chunks:
                for part, views in zip(chunk.slices, unit.views(chunk, {}), strict=True):
                    segment = unit.unit.segments[part.segment]
                    if part.count == segment.numel and unit.steps[part.segment]:
                        found[segment.name] = views.exp_avg.clone()
        assert found
        return norm, found


def gradients_in_float64(step: list[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sum of the micro-batches' fp32 gradients in float64, and that of their magnitudes, flat, by parameter."""
    model = net()
    total: dict[str, Tensor] = {}
    magnitude: dict[str, Tensor] = {}
    for ids in step:
        model.zero_grad()
        model(ids).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad.double().flatten()
                total[name] = total.get(name, torch.zeros_like(gradient)) + gradient
                magnitude[name] = magnitude.get(name, torch.zeros_like(gradient)) + gradient.abs()
    return total, magnitude


@pytest.mark.parametrize("memory", ["one", "separate"])
@pytest.mark.parametrize("clipping", [0.0, 0.1])
def test_exact_has_the_bits_of_serial(ranks: RankProcesses, memory: str, clipping: float) -> None:
    steps = data(3, 2 * ranks.size)
    options = {"gradient_accumulation": 2, "gradient_clipping": clipping}
    serial = ranks.run(train_ranks, steps, memory, {**options, "overlap": "serial"})
    exact = ranks.run(train_ranks, steps, memory, {**options, "overlap": "exact", "late": True})
    for one, other in zip(serial, exact, strict=True):
        assert_same_bits(one, other)


def overflowing(model: nn.Module, ids: Tensor) -> Tensor:
    """The loss, infinite for a batch that ends with `OVERFLOWS`."""
    loss = loss_of(model, ids)
    return loss * torch.inf if ids[-1, -1] == OVERFLOWS else loss


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(
    ranks: RankProcesses, precision: str, overlap: str
) -> None:
    steps = data(4, ranks.size)
    for step in steps:
        for ids in step:
            ids[-1, -1] = 1
    steps[1][-1][-1, -1] = OVERFLOWS
    options = {"precision": precision, "compute": "same", "gradient_clipping": 0.5, "overlap": overlap}
    options |= {"delay_warmup": 0}
    one, reports_of_one = train_with_overflow(0, 1, steps, options)
    assert [skipped for skipped, _ in reports_of_one] == [False, True, False, False]
    for parameters, reports in ranks.run(train_with_overflow, steps, options):
        assert reports == reports_of_one
        for name, parameter in one.items():
            assert torch.equal(parameters[name], parameter), name


def train_with_overflow(rank: int, size: int, steps: list[list[Tensor]], options: dict[str, Any]) -> Any:
    model, mine = net(), of_rank(rank, size, steps)
    options = {"chunk_bytes": 1, "threads": 1, "loss_scale": LossScaling(initial=64, hysteresis=1), **options}
    options["gradient_accumulation"] = len(mine[0])
    with OffloadEngine(model, optimizer=SETTINGS, device=CpuDevice(), **options) as engine:
        reports = []
        for step in mine:
            for ids in step:
                engine.backward(overflowing(model, ids))
            reports.append(engine.step())
        results = [report.result() for report in reports]
        weights = {name: weight.clone() for unit in engine.weights() for name, weight in unit.items()}
    return weights, [(result.skipped, result.loss_scale) for result in results]


def train_on_after_updates(rank: int, size: int, steps: list[list[Tensor]], options: dict[str, Any]) -> Any:
    """The same, with a verdict that comes when blocks have been updated."""
    check = StepTasks.check_overflow

    def check_late(tasks: StepTasks, task: Any) -> None:
        deadline = time.monotonic() + 30
        while not tasks._current.written and time.monotonic() < deadline:
            time.sleep(0.001)
        check(tasks, task)

    with mock.patch.object(StepTasks, "check_overflow", check_late):
        return train_with_overflow(rank, size, steps, options)


def test_gradients_that_are_not_finite_on_one_rank_stop_all_and_are_named(ranks: RankProcesses) -> None:
    steps = data(1, ranks.size)
    steps[0][-1][-1, -1] = OVERFLOWS
    with pytest.raises(RankError) as raised:
        ranks.run(train_on_after_updates, steps, {"gradient_clipping": 0.0})
    assert len(raised.value.errors) == ranks.size
    [message] = set(raised.value.errors.values())
    assert (
        "step 1: the gradient of embedding.weight (unit embedding) is not finite, nor is any other" in message
    )


@pytest.mark.parametrize(
    ("memory", "weights"), [("one", "device"), ("separate", "host"), ("separate", "disk")]
)
def test_frozen_weights_stay_and_the_rest_trains_as_on_one_rank(
    ranks: RankProcesses, memory: str, weights: str
) -> None:
    steps = data(2, ranks.size)
    found = ranks.run(train_frozen, steps, memory, weights)
    one = train_frozen(0, 1, steps, memory, weights)
    for parameters in found:
        assert parameters.keys() == one.keys()
        for name, parameter in one.items():
            assert torch.equal(parameters[name], parameter), name


def train_frozen(
    rank: int, size: int, steps: list[list[Tensor]], memory: str, weights: str
) -> dict[str, Tensor]:
    model = net()
    for parameter in [*model.blocks[0].parameters(), model.blocks[1].up.weight, model.blocks[1].norm.bias]:
        parameter.requires_grad_(False)
    mine = of_rank(rank, size, steps)
    options: dict[str, Any] = {"weights": weights}
    if weights == "disk":
        options |= {"state": "disk", "disk_path": tempfile.gettempdir()}
    return train_engine(
        model,
        mine,
        device_of(memory),
        compute_loss=loss_of,
        gradient_accumulation=len(mine[0]),
        **options,
    ).parameters


KEPT: dict[str, dict[str, Any]] = {
    "exact": {},
    "clipped": {"gradient_clipping": 1.0, "gradient_accumulation": 2},
    "state device": {"state": "device"},
    "state disk": {"state": "disk", "disk_path": tempfile.gettempdir()},
    "bf16": {"precision": "bf16", "compute": "same"},
    "half": {"precision": "bf16", "compute": "same", "state_format": "half"},
    "compact": {"precision": "bf16", "compute": "same", "state_format": "compact"},
    "weights host": {"weights": "host"},
    "delayed": {"overlap": "delayed"},
}


@pytest.mark.parametrize("way", KEPT)
def test_no_rank_holds_more_of_the_state_than_its_part_and_a_chunk(ranks: RankProcesses, way: str) -> None:
    found = ranks.run(memory_of, KEPT[way])
    _, whole, largest, chunks = found[0]
    held = [of_state for of_state, *_ in found]
    rounding = (4096 * 3 if way == "state disk" else 16) * chunks
    assert whole <= sum(held) <= whole + rounding * ranks.size
    assert max(held) <= whole / ranks.size + largest + rounding


def memory_of(rank: int, size: int, options: dict[str, Any]) -> tuple[int, int, int, int]:
    """What a rank holds of the state and of gradients that wait, in every tier; what there is of it, what a chunk's
    is at most, and how many chunks there are."""
    options = {"precision": "fp32", **options}
    with OffloadEngine(net(layers=6), device=SeparateMemory(), chunk_bytes=1, threads=1, **options) as engine:
        units, held = engine.layout.units, engine.memory()
        elements, item = sum(unit.elements for unit in units), engine.dtype.itemsize
        streamed = 0
        if options.get("weights") == "host":
            streamed = item * sum(unit.elements for unit in units if unit.kind == "block")
            assert "weights" not in held["host"]  # Each rank's part of them is its master weights.
        assert held["device"].pop("weights") == item * elements - streamed
        of_state = ("master weights", "exp_avg and exp_avg_sq", "gradients")
        # Sums over a rank's own micro-batches are of the whole model, where the model is.
        sums = 4 * elements if options.get("gradient_accumulation", 1) > 1 else 0
        found = sum(named.get(name, 0) for named in held.values() for name in of_state)
        others = {name for name in held["host"] if name not in of_state}
        assert others <= ({"staging", "gradient slots"} if options.get("state") == "disk" else set())
        # Of a parameter: its master weight, its moments, and its gradient that waits in fp32.
        parts = [(r.state_format, r.elements) for unit in units for r in unit.regions]
        sets = 2 if options.get("overlap") == "delayed" else 1
        whole = sum((4 + 4 * sets) * count + moment_bytes(kept, count) for kept, count in parts)
        chunks = [chunk for unit in units for chunk in unit.chunks]
        return found - sums, whole, (12 + 4 * sets) * max(chunk.elements for chunk in chunks), len(chunks)


def test_all_ranks_begin_with_the_weights_of_the_first(ranks: RankProcesses) -> None:
    steps = data(1, ranks.size)
    one = train_one(steps, "one", {})
    found = ranks.run(train_ranks, steps, "one", {"seeds": [0, 5, 6]})
    for outcome in found:
        for name, theirs in one.parameters.items():
            assert torch.equal(outcome.parameters[name], theirs), name


def test_a_parameter_that_one_rank_does_not_use_holds_up_none_of_many_chunks(ranks: RankProcesses) -> None:
    """Its chunk is final on that rank when backward ends, after all that come later on the others."""
    steps = data(2, ranks.size)
    for memory in ("one", "separate"):
        outcomes = ranks.run(train_deep, steps, memory)
        for outcome in outcomes:
            assert outcome.norms == outcomes[0].norms
            for name, theirs in outcomes[0].parameters.items():
                assert torch.equal(outcome.parameters[name], theirs), name


def train_deep(rank: int, size: int, steps: list[list[Tensor]], memory: str) -> Outcome:
    return train_engine(
        net(layers=10), of_rank(rank, size, steps), device_of(memory, rank), compute_loss=loss_of
    )


def test_sums_over_ranks_are_rounded_once(ranks: RankProcesses) -> None:
    """1 + 2**-53 on each rank is more than 1 on each, though no rank can say so in one number."""
    mine = [1.0, 2.0**-53, 1e-300]
    expected = math.fsum(mine * ranks.size)
    assert expected > ranks.size
    assert ranks.run(total_of, mine) == [(expected, True)] * ranks.size
    assert ranks.run(total_of, [math.inf, 1.0]) == [(math.inf, True)] * ranks.size


def total_of(rank: int, size: int, mine: list[float]) -> tuple[float, bool]:
    together = Ranks(60.0)
    together.connect()
    try:
        return exact_total(together, mine, written=rank == 1)
    finally:
        together.leave()


# What is refused, and what fails


def make_engine(rank: int, size: int, options: dict[str, Any]) -> None:
    OffloadEngine(
        net(layers=1 + options.pop("more", 0) * rank), threads=1, device=CpuDevice(), **options
    ).close()


def test_ranks_with_other_models_are_refused(ranks: RankProcesses) -> None:
    with pytest.raises(RankError) as raised:
        ranks.run(make_engine, {"more": 1})
    assert all("rank 1 has another model" in error for error in raised.value.errors.values())


def test_ranks_that_run_other_blocks_are_told(ranks: RankProcesses) -> None:
    with pytest.raises(RankError) as raised:
        ranks.run(train_with_a_block_less, data(1, ranks.size))
    assert all(
        "runs block 2 where rank 0 runs block 1: with weights off the device" in error
        for error in raised.value.errors.values()
    )


def train_with_a_block_less(rank: int, size: int, steps: list[list[Tensor]]) -> None:
    """As with layers that are dropped at random, on each rank another one."""
    model = net(layers=4)

    def loss(model: Any, ids: Tensor) -> Tensor:
        x = model.embedding(ids)
        for block in list(model.blocks)[rank > 0 :]:
            x = block(x, with_side=False)
        found: Tensor = model.norm(x).square().mean()
        return found

    train_engine(model, of_rank(rank, size, steps), device_of("separate"), compute_loss=loss, weights="host")


def test_tokens_need_to_know_those_of_a_usual_micro_batch(ranks: RankProcesses) -> None:
    with pytest.raises(RankError) as raised:
        ranks.run(train_ranks, data(1, ranks.size), "one", {"with_tokens": True})
    assert all("tokens on several ranks need micro_batch_tokens" in e for e in raised.value.errors.values())


@pytest.mark.parametrize("where", ["backward", "lane", "between steps"])
@pytest.mark.parametrize("overlap", ["exact", "serial"])
def test_a_rank_that_fails_ends_the_others_and_is_named(
    ranks: RankProcesses, where: str, overlap: str
) -> None:
    with pytest.raises(RankError) as raised:
        ranks.run(fail_on_last, data(3, ranks.size), where, overlap)
    errors = raised.value.errors
    last = ranks.size - 1
    assert len(errors) == ranks.size and "as told" in errors[last]
    for rank in range(last):
        assert f"rank {last}: " in errors[rank] and "as told" in errors[rank]


def fail_on_last(rank: int, size: int, steps: list[list[Tensor]], where: str, overlap: str) -> None:
    model = net()
    options: dict[str, Any] = {"chunk_bytes": 1, "threads": 1, "overlap": overlap}
    fails = rank == size - 1
    with OffloadEngine(model, device=SeparateMemory(), **options) as engine:
        for number, [ids] in enumerate(of_rank(rank, size, steps)):
            if number == 1 and fails:
                if where == "backward":
                    model.norm.weight.register_hook(raise_as_told)
                elif where == "lane":
                    engine._runtime.tasks._perform[Kind.UPLOAD] = raise_as_told
                else:
                    raise_as_told()
            engine.backward(model(ids))
            engine.step()
        engine.wait()


def raise_as_told(*_: Any) -> None:
    raise ValueError("as told")


def test_a_rank_whose_process_ends_ends_the_others(tmp_path: Path) -> None:
    processes = RankProcesses(2, tmp_path)
    try:
        with pytest.raises(RankError) as raised:
            processes.run(train_and_end, data(3, 2))
    finally:
        processes.kill()
    assert raised.value.errors[1] == "ended"
    assert "another rank ended" in raised.value.errors[0]


def test_ranks_on_the_same_gpu_are_refused(ranks: RankProcesses) -> None:
    with pytest.raises(RankError) as raised:
        ranks.run(share_a_gpu)
    assert all("ranks 0 and 1 have the same GPU" in error for error in raised.value.errors.values())


def share_a_gpu(rank: int, size: int) -> None:
    with mock.patch.object(os, "getpid", lambda: 1), VirtualCuda():
        OffloadEngine(net(), threads=1, device="cuda").close()


def test_each_process_of_torchrun_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match=r"'cuda:2 of local rank 2': torch sees 2 CUDA device"):
        open_device("cuda")
    with pytest.raises(ValueError, match="'cuda:3': torch sees 2"):
        open_device("cuda:3")


def train_and_end(rank: int, size: int, steps: list[list[Tensor]]) -> None:
    model = net()
    with OffloadEngine(model, device=CpuDevice(), chunk_bytes=1, threads=1) as engine:
        for number, [ids] in enumerate(of_rank(rank, size, steps)):
            if number == 1 and rank == 1:
                os._exit(9)
            engine.backward(model(ids))
            engine.step()
        engine.wait()
