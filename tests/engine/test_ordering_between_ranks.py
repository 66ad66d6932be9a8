"""A test of the tests, as `test_ordering.py`, of what the lane between ranks orders: on two virtual GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from ordering_between_ranks import BETWEEN_RANKS
from ordering_places import without
from rank_processes import RankError, RankProcesses
from test_ordering import (
    AHEAD,
    CLIPPED,
    CLIPPED_BY_THE_LAST,
    DELAYED,
    ON_HOST,
    Model,
    ReadsItsWeightBesides,
    Situation,
    SkipsBlocks,
    Values,
    look_around,
    look_half_way,
    same,
    train,
    virtual,
)
from torch import Tensor

from workbench import timeline


class FirstBlockIsReadLast(Model):
    """No gradient becomes final after the last time that backward reads a weight: that of the first unit, all of which
    one rank owns, so that the other one uploads nothing before it is gathered."""

    def __init__(self) -> None:
        super().__init__(ReadsItsWeightBesides)
        self.embedding.requires_grad_(False)
        for block in self.blocks:
            block.inner.bias = None

    def through(self, x: Tensor) -> Tensor:
        return super().through(x.requires_grad_())


BEGUN = timeline.Kind.FORWARD, 0, 0, None
SITUATIONS = {
    "ranks": Situation(CLIPPED),
    "ranks, weight read last": Situation(CLIPPED, FirstBlockIsReadLast, slow="device"),
    "ranks, state on the device": Situation({"state": "device"}),
    "ranks, weights on the host": Situation(ON_HOST),
    "ranks, weights on the host, blocks skipped": Situation(
        ON_HOST | CLIPPED, SkipsBlocks, before_step=look_half_way
    ),
    "ranks, delayed": Situation(DELAYED),
    "ranks, delayed, looked around": Situation(DELAYED, before_step=look_around),
    "ranks, delayed, weights on the host": Situation(DELAYED | ON_HOST),
    "ranks, updated ahead": Situation(AHEAD),
    "ranks, updated ahead, undone": Situation(AHEAD | CLIPPED_BY_THE_LAST),
    "ranks, updated ahead, weights on the host": Situation(AHEAD | ON_HOST),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankProcesses]:
    processes = RankProcesses(2, tmp_path_factory.mktemp("ranks"))
    yield processes
    processes.kill()


def races_of(rank: int, size: int, name: str, place: str | None) -> list[str]:
    """What the checker finds in a situation, without a place."""
    cuda = virtual(SITUATIONS[name])
    if place is None:
        train(SITUATIONS[name], cuda)
    else:
        with without(place):
            try:
                train(SITUATIONS[name], cuda)
            except Exception:
                assert cuda.races
    return [str(race) for race in cuda.races]


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_has_an_order(ranks: RankProcesses, name: str) -> None:
    assert ranks.run(races_of, name, None) == [[], []]


def train_without(rank: int, size: int, name: str, taken: str) -> tuple[Values, list[str]]:
    """What a situation comes to, with its races, without the waits of one kind of task for anything but its own lane's
    order between ranks."""
    add = timeline._Builder.add

    def without_its_waits(builder: Any, lane: Any, kind: Any, *place: Any, **more: Any) -> int:
        if kind.value == taken:
            of_all = lane is timeline.Lane.COMMUNICATE
            place = (*place[:-1], builder.communicated if of_all else [builder.index[BEGUN]])
        return add(builder, lane, kind, *place, **more)

    cuda = virtual(SITUATIONS[name])
    with mock.patch.object(timeline._Builder, "add", without_its_waits):
        return train(SITUATIONS[name], cuda), [str(race) for race in cuda.races]


@pytest.mark.parametrize(
    ("name", "taken"),
    [(name, "gather") for name in SITUATIONS if "delayed" in name]
    + [(name, "speculate") for name in SITUATIONS if "ahead" in name],
)
def test_what_is_new_in_a_step_waits_for_what_it_reads(ranks: RankProcesses, name: str, taken: str) -> None:
    usual, broken = ranks.run(train_without, name, ""), ranks.run(train_without, name, taken)
    assert not all(
        same(one, other) and not races for (one, _), (other, races) in zip(usual, broken, strict=True)
    )


@pytest.mark.parametrize("place", BETWEEN_RANKS)
def test_a_place_that_is_taken_away_is_missed(ranks: RankProcesses, place: str) -> None:
    try:
        assert any(ranks.run(races_of, BETWEEN_RANKS[place], place))
    except RankError as error:
        pytest.fail(str(error))
