"""Tasks on lanes, played through in time: a lane does one task after the other, and what lanes share slows them.

Arithmetic over any set of tasks; what they are and how long they take is the business of its callers.

Invariant: a task starts when its lane is free and all that it waits for is done. Lane 0, the program, takes tasks in
the order of their numbers, the others in the order in which they became ready, as the engine's do. Of a shared resource
the lanes that want it get no more than there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

Demand = tuple[float, ...]
"""Share of each shared resource that a task takes when it runs alone, 0 to 1."""


@dataclass(frozen=True)
class Work:
    """One task. `seconds`: alone on the machine. `waits`: numbers of earlier tasks."""

    lane: int
    seconds: float
    waits: tuple[int, ...]
    demand: Demand = ()


@dataclass
class Played:
    """What came of it, in seconds. `ends`: of each task. `busy`: of each lane. `exposed`: of those, while lane 0 stood
    still; `waited`: lane 0 standing still between its first and its last task. Both within `window` of a call."""

    ends: list[float]
    busy: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    waited: float = 0.0


def play(works: Sequence[Work], lanes: int, *, begin: int = 0, end: int | None = None) -> Played:
    """Run `works` on so many lanes.

    Busy, exposed and waited seconds are those after task `begin - 1` has ended (0: from the start) until task `end`
    ends (None: until all have); nothing is played beyond.

    Raises:
        ValueError: a task waits for itself or a later one.
    """
    count = len(works)
    followers: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for number, work in enumerate(works):
        missing[number] = len(work.waits)
        for earlier in work.waits:
            if earlier >= number:
                raise ValueError(f"task {number} waits for task {earlier}, which is not an earlier one")
            followers[earlier].append(number)
    queues: list[list[tuple[float, int]]] = [[] for _ in range(lanes)]
    for number, work in enumerate(works):
        if not work.waits:
            heapq.heappush(queues[work.lane], (0.0, number))
    played = Played([0.0] * count, [0.0] * lanes, [0.0] * lanes)
    busy, exposed, ends = played.busy, played.exposed, played.ends
    running: dict[int, int] = {}
    """The task of each lane that has one."""
    left: dict[int, float] = {}
    now, counting, done = 0.0, begin == 0, 0
    speeds: dict[tuple[Demand, ...], tuple[float, ...]] = {}
    changed: Sequence[int] = range(lanes)
    while done < count:
        for lane in changed:
            if queues[lane] and lane not in running:
                number = heapq.heappop(queues[lane])[1]
                running[lane] = number
                left[lane] = works[number].seconds
        key = tuple([works[number].demand for number in running.values()])
        speed = speeds.get(key)
        if speed is None:
            speed = speeds[key] = _speeds(key)
        step = min([seconds / rate for seconds, rate in zip(left.values(), speed, strict=True)])
        now += step
        if counting and step:
            idle = 0 not in running
            played.waited += step if idle else 0.0
            for lane in running:
                busy[lane] += step
                if idle:
                    exposed[lane] += step
        woken: set[int] = set()
        for (lane, number), rate in zip(list(running.items()), speed, strict=True):
            left[lane] -= step * rate
            if left[lane] > 1e-12:
                continue
            del running[lane], left[lane]
            ends[number] = now
            done += 1
            woken.add(lane)
            if number == end:
                return played
            counting |= number == begin - 1
            for follower in followers[number]:
                missing[follower] -= 1
                if not missing[follower]:
                    lane_of = works[follower].lane
                    heapq.heappush(queues[lane_of], (now if lane_of else 0.0, follower))
                    woken.add(lane_of)
        changed = sorted(woken)
    return played


def _speeds(demands: tuple[Demand, ...]) -> tuple[float, ...]:
    """Of each running task, as a share of its speed alone: what is asked for beyond what there is slows all who ask."""
    totals = [sum(column) for column in zip_longest(*demands, fillvalue=0.0)]
    return tuple(
        min(
            [
                1.0,
                *(1 / total for share, total in zip(demand, totals, strict=False) if share > 0 and total > 1),
            ]
        )
        for demand in demands
    )
