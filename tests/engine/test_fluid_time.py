"""Virtual time: what runs at once shares the host's memory and the link, and is timed anew when something changes."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from workbench.plan.rates import Rates
from workbench.plan.sharing import shared_speeds
from workbench.profiles.named_machines import known_machines, load_profile
from workbench.virtual_cuda.fluid_time import FluidTime, Work
from workbench.virtual_cuda.host_threads import HostThreads


def run(queues: dict[str, list[Work]]) -> None:
    time = FluidTime(wake=lambda thread, now_s: None)
    for queue, works in queues.items():
        for work in works:
            time.add(queue, work, 0.0)
    assert not time.run_until(math.inf)


def test_two_that_want_all_of_a_resource_get_half_until_one_is_over() -> None:
    short, long = Work(1.0, (1.0,)), Work(3.0, (1.0,))
    run({"a": [short], "b": [long]})
    assert short.ends_at == pytest.approx(2.0)
    assert long.ends_at == pytest.approx(4.0)


def test_what_begins_later_slows_what_runs_from_then_on() -> None:
    time = FluidTime(wake=lambda thread, now_s: None)
    first, second = Work(2.0, (1.0,)), Work(1.0, (1.0,))
    time.add("a", first, 0.0)
    time.run_until(1.5)
    time.add("b", second, 1.5)
    time.run_until(math.inf)
    assert first.ends_at == pytest.approx(2.5)
    assert second.ends_at == pytest.approx(3.0)


def test_a_thread_that_works_is_awake_when_its_work_is_over_and_not_before() -> None:
    host = HostThreads()
    ends = {}

    def work(name: str, seconds: float) -> None:
        host.work(seconds, (0.8,))
        ends[name] = host.now()

    host.start("other", lambda: work("other", 1.0))
    work("main", 3.0)
    host.advance(10.0)
    # Two at 0.8 each are slowed to 1 / 1.6 of their speed: the other ends at 1.6, when 2 s of main's are left.
    assert ends == pytest.approx({"other": 1.6, "main": 3.6})


@pytest.mark.parametrize("seed", range(20))
def test_it_is_timed_as_the_long_way_has_it(seed: int) -> None:
    draw = random.Random(seed)
    works: list[tuple[int, Work]] = []
    queues: dict[str, list[Work]] = {}
    for number in range(60):
        queue = draw.randrange(5)
        after = draw.choice(works)[1] if works and draw.random() < 0.4 else None
        demand = tuple(draw.random() for _ in range(draw.randrange(4)))
        works.append((queue, Work(draw.choice([0.0, 1.0, draw.random()]), demand, after)))
        queues.setdefault(str(queue), []).append(works[number][1])
    run(queues)
    for (_, work), expected in zip(works, the_long_way(works), strict=True):
        assert work.ends_at == pytest.approx(expected)


def the_long_way(works: list[tuple[int, Work]]) -> list[float]:
    """Return when each ends: all lefts are taken forward from one end to the next."""
    ends: dict[int, float] = {}
    number_of = {id(work): number for number, (_, work) in enumerate(works)}
    left = [work.seconds for _, work in works]
    now = 0.0
    while len(ends) < len(works):
        heads: dict[int, int] = {}
        for number, (queue, _) in enumerate(works):
            if number not in ends:
                heads.setdefault(queue, number)
        running = [
            n for n in heads.values() if works[n][1].after is None or number_of[id(works[n][1].after)] in ends
        ]
        asked = [works[n][1].demand for n in running]
        totals = [sum(d[r] for d in asked if len(d) > r) for r in range(3)]
        speed = {
            n: min([1.0, *(1 / max(1.0, totals[r]) for r, share in enumerate(works[n][1].demand) if share)])
            for n in running
        }
        step = min(left[n] / speed[n] for n in running)
        now += step
        for n in running:
            left[n] -= step * speed[n]
            if left[n] < 1e-10:
                ends[n] = now
    return [ends[number] for number in range(len(works))]


@pytest.mark.parametrize("name", known_machines())
def test_copies_both_ways_run_side_by_side_at_the_profiles_speed(name: str) -> None:
    machine = load_profile(Path(name))
    rates = Rates(machine, "auto")
    assert machine.link is not None
    speeds = shared_speeds((rates.up_demand, rates.down_demand))
    assert speeds is not None
    assert speeds[0] * machine.link.up_bytes_per_s == pytest.approx(machine.link.both_up_bytes_per_s)
    beside_update = shared_speeds((rates.up_demand, rates.host_demand))
    asked = machine.link.up_bytes_per_s + 0.9 * max(machine.host.read_bytes_per_s)
    expected = min(1.0, max(machine.host.read_bytes_per_s) / asked)
    assert (beside_update or (1.0, 1.0))[0] == pytest.approx(expected)
