"""Ranks of several machines add up within each machine first, and machines exchange the sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from plain_torch import Outcome
from rank_processes import RankProcesses
from test_ranks import WAYS, data, device_of, loss_of, net, train_ranks, train_virtual
from torch import Tensor

import workbench.engine.ranks as ranks_module
from workbench.engine import OffloadEngine
from workbench.virtual_cuda import Order

HERE = 2
"""Ranks of a machine; there are two machines."""


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RankProcesses]]:
    made = {size: RankProcesses(size, tmp_path_factory.mktemp("ranks")) for size in (2, 4)}
    yield made
    for processes in made.values():
        processes.kill()


def train_on_machines(
    rank: int, size: int, steps: list[list[Tensor]], memory: str, options: dict[str, Any], order: Order | None
) -> tuple[Outcome, list[str]]:
    with mock.patch.object(ranks_module, "_machine", lambda: b"%d" % (rank // HERE)):
        if order is not None:
            return train_virtual(rank, size, steps, memory, options, order)
        return train_ranks(rank, size, steps, memory, options), []


@pytest.mark.parametrize(
    ("way", "order"),
    [
        ("one memory, clipped", None),
        ("separate memory, clipped, late lanes", None),
        ("bf16, separate memory, half", None),
        ("weights disk, bf16, half, clipped", None),
        ("delayed, clipped, late lanes", None),
        ("separate memory, late lanes", Order.RANDOM),
        ("weights host, bf16, half", Order.LAZY),
        ("bf16, state device", Order.COPIES_FIRST),
    ],
)
def test_two_machines_of_two_ranks_have_the_bits_of_two_ranks_with_two_micro_batches(
    pools: dict[int, RankProcesses], way: str, order: Order | None
) -> None:
    """(g0 + g1) + (g2 + g3) in fp32; some parameters are used in some of them only."""
    memory, options = WAYS[way]
    steps = data(3, 2 * HERE)
    four = pools[4].run(train_on_machines, steps, memory, options, order)
    # Of two ranks each takes every second one.
    reordered = [[g0, g2, g1, g3] for g0, g1, g2, g3 in steps]
    two = pools[2].run(train_ranks, reordered, memory, options | {"gradient_accumulation": 2})
    for outcome, problems in four:
        assert problems == []
        assert outcome.parameter_steps == two[0].parameter_steps
        if order is None:
            assert outcome.norms == two[0].norms
        for name, parameter in two[0].parameters.items():
            assert parameter.equal(outcome.parameters[name]), name


def test_a_parameter_of_one_machine_alone_is_that_machines(pools: dict[int, RankProcesses]) -> None:
    """The other one has no sum of it, nor of chunks of which it has nothing at all."""
    steps = data(2, 4)
    found = pools[4].run(train_side, steps)
    [one] = {tuple(map(float, each)) for each in found}
    assert one == pytest.approx(tuple(map(float, train_side(0, 1, steps))), rel=1e-5)


def train_side(rank: int, size: int, steps: list[list[Tensor]]) -> list[float]:
    """`side` of every block is used by the first machine's ranks alone; return the sums of its weights."""
    model = net()
    with mock.patch.object(ranks_module, "_machine", lambda: b"%d" % (rank // HERE)):
        engine = OffloadEngine(
            model,
            device=device_of("separate"),
            chunk_bytes=1,
            threads=1,
            precision="fp32",
            gradient_accumulation=len(steps[0]) // size,
        )
    with engine:
        for step in steps:
            for number, ids in list(enumerate(step))[rank::size]:
                ids[0, 0] = number // HERE
                engine.backward(loss_of(model, ids))
            engine.step()
        weights = {name: weight for unit in engine.weights() for name, weight in unit.items()}
        return [float(weights[f"blocks.{block}.side.weight"].double().sum()) for block in range(2)]


@pytest.mark.parametrize("hosts", [[0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 2, 3]])
def test_other_ranks_than_as_many_on_each_machine_exchange_all_with_all(
    pools: dict[int, RankProcesses], hosts: list[int]
) -> None:
    assert pools[4].run(is_by_machine, hosts) == [False] * 4
    assert pools[4].run(is_by_machine, [0, 0, 1, 1]) == [True] * 4


def is_by_machine(rank: int, size: int, hosts: list[int]) -> bool:
    with mock.patch.object(ranks_module, "_machine", lambda: b"%d" % hosts[rank]):
        ranks = ranks_module.Ranks(60.0)
        ranks.connect()
        try:
            return ranks.by_machine(None) is not None
        finally:
            ranks.leave()
