"""Lanes, played through: order, waiting, and what shared resources cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from workbench.plan.simulation import Demand, Order, Played
from workbench.plan.simulation import play as play_order


class Work(NamedTuple):
    lane: int
    seconds: float
    waits: tuple[int, ...]
    demand: Demand = ()


def play(works: Sequence[Work], lanes: int, **window: int) -> Played:
    order = Order(lanes, [w.lane for w in works], [w.waits for w in works], range(len(works)))
    return play_order(order, [w.seconds for w in works], [w.demand for w in works], **window)


def test_a_lane_does_one_task_after_the_other_and_lanes_run_side_by_side() -> None:
    played = play([Work(0, 2.0, ()), Work(1, 3.0, ()), Work(0, 2.0, ())], 2)
    assert played.ends == [2.0, 3.0, 4.0]
    assert played.busy == [4.0, 3.0]


def test_a_task_waits_for_what_it_names() -> None:
    played = play([Work(0, 1.0, ()), Work(1, 2.0, (0,)), Work(0, 1.0, (1,))], 2)
    assert played.ends == [1.0, 3.0, 4.0]
    assert played.waited == 2.0, "lane 0 stands still while lane 1 works"
    assert played.exposed == [0.0, 2.0]


def test_two_that_want_the_same_resource_get_half_each() -> None:
    both = play([Work(0, 1.0, (), (1.0,)), Work(1, 1.0, (), (1.0,))], 2)
    assert both.ends == pytest.approx([2.0, 2.0])
    apart = play([Work(0, 1.0, (), (0.5,)), Work(1, 1.0, (), (0.5,))], 2)
    assert apart.ends == pytest.approx([1.0, 1.0])


def test_the_window_counts_what_lies_within_it() -> None:
    works = [Work(0, 1.0, ()), Work(1, 4.0, ()), Work(0, 2.0, (0,)), Work(0, 9.0, (2,))]
    played = play(works, 2, begin=1, end=2)
    assert played.busy == pytest.approx([2.0, 2.0])


def test_a_task_may_not_wait_for_a_later_one() -> None:
    with pytest.raises(ValueError, match="task 0 waits for task 1"):
        play([Work(0, 1.0, (1,)), Work(0, 1.0, ())], 1)


def the_long_way(works: Sequence[Work], lanes: int) -> tuple[list[float], list[float], list[float], float]:
    """When each task ends; of each lane how long it was busy, and how long exposed; how long lane 0 stood still."""
    ends: dict[int, float] = {}
    left = {number: work.seconds for number, work in enumerate(works)}
    ready: dict[int, float] = {}
    running: dict[int, int] = {}
    busy, exposed, waited, now = [0.0] * lanes, [0.0] * lanes, 0.0, 0.0
    while len(ends) < len(works):
        for number, work in enumerate(works):
            if number not in ready and all(earlier in ends for earlier in work.waits):
                ready[number] = now
        for lane in set(range(lanes)) - set(running):
            own = [n for n in ready if works[n].lane == lane and n not in ends]
            if own:
                running[lane] = min(own, key=lambda n: (ready[n] if works[n].lane else 0.0, n))
        asked = [works[n].demand for n in running.values()]
        totals = [sum(d[r] for d in asked if len(d) > r) for r in range(3)]
        speed = {
            lane: min([1.0, *(1 / max(1.0, totals[r]) for r, share in enumerate(works[n].demand) if share)])
            for lane, n in running.items()
        }
        step = min(left[n] / speed[lane] for lane, n in running.items())
        now += step
        for lane in running:
            busy[lane] += step
            exposed[lane] += 0.0 if 0 in running else step
        waited += 0.0 if 0 in running else step
        for lane, number in list(running.items()):
            left[number] -= step * speed[lane]
            if left[number] < 1e-10:
                ends[number] = now
                del running[lane]
    return [ends[number] for number in range(len(works))], busy, exposed, waited


@pytest.mark.parametrize("seed", range(20))
def test_it_is_played_as_the_long_way_has_it(seed: int) -> None:
    draw = random.Random(seed)
    kinds = [
        (draw.choice([0.0, 1.0, draw.random()]), tuple(draw.random() for _ in range(draw.randrange(4))))
        for _ in range(12)
    ]
    works = []
    for number in range(80):
        waits = {draw.randrange(number) for _ in range(draw.randrange(4))} if number else ()
        seconds, demand = draw.choice(kinds)
        works.append(Work(draw.randrange(5), seconds, tuple(waits), demand))
    played = play(works, 5)
    ends, busy, exposed, waited = the_long_way(works, 5)
    assert played.ends == pytest.approx(ends)
    assert played.busy == pytest.approx(busy)
    assert played.exposed == pytest.approx(exposed)
    assert played.waited == pytest.approx(waited)


def test_tasks_that_are_alike_take_the_same() -> None:
    order = Order(1, [0, 0, 0], [(), (), ()], [0, 1, 0])
    assert play_order(order, [2.0, 1.0], [(), ()]).ends == [2.0, 3.0, 5.0]
