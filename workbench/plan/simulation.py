"""Tasks on lanes, played through in time: a lane does one task after the other, and what lanes share slows them.

Arithmetic over any set of tasks; what they are and how long they take is the business of its callers. Who waits for
whom is kept apart from how long it takes: a form asks again and again with other seconds only.

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
NOTHING_LEFT_S = 1e-12


class Order:
    """Tasks on `count` lanes and what each waits for: numbers of earlier tasks.

    Raises:
        ValueError: a task waits for itself or a later one.
    """

    def __init__(self, count: int, lanes: Sequence[int], waits: Sequence[Sequence[int]]) -> None:
        self.count = count
        self.lanes = tuple(lanes)
        followers: list[list[int]] = [[] for _ in lanes]
        for number, earlier_ones in enumerate(waits):
            for earlier in earlier_ones:
                if earlier >= number:
                    raise ValueError(f"task {number} waits for task {earlier}, which is not an earlier one")
                followers[earlier].append(number)
        self.followers = tuple(map(tuple, followers))
        self.waited_for = tuple(map(len, waits))
        self.first = tuple(number for number, count in enumerate(self.waited_for) if not count)


@dataclass
class Played:
    """What came of it, in seconds. `ends`: of each task. `busy`: of each lane. `exposed`: of those, while lane 0 stood
    still; `waited`: lane 0 standing still between its first and its last task. Both within `window` of a call."""

    ends: list[float]
    busy: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    waited: float = 0.0


def play(
    order: Order,
    seconds: Sequence[float],
    demands: Sequence[Demand],
    *,
    begin: int = 0,
    end: int | None = None,
) -> Played:
    """Run the tasks of `order`, which alone on the machine take `seconds` and, of what is shared, `demands`.

    Busy, exposed and waited seconds are those after task `begin - 1` has ended (0: from the start) until task `end`
    ends (None: until all have); nothing is played beyond.
    """
    lanes, followers = order.lanes, order.followers
    missing = list(order.waited_for)
    queues: list[list[tuple[float, int]]] = [[] for _ in range(order.count)]
    for number in order.first:
        heapq.heappush(queues[lanes[number]], (0.0, number))
    played = Played([0.0] * len(lanes), [0.0] * order.count, [0.0] * order.count)
    busy, exposed, ends = played.busy, played.exposed, played.ends
    running: dict[int, int] = {}
    """The task of each lane that has one."""
    left = [0.0] * order.count
    now, counting, done = 0.0, begin == 0, 0
    speeds: dict[tuple[Demand, ...], tuple[float, ...]] = {}
    changed: Sequence[int] = range(order.count)
    while done < len(lanes):
        for lane in changed:
            if queues[lane] and lane not in running:
                running[lane] = number = heapq.heappop(queues[lane])[1]
                left[lane] = seconds[number]
        key = tuple([demands[number] for number in running.values()])
        speed = speeds.get(key)
        if speed is None:
            speed = speeds[key] = _speeds(key)
        step = min([left[lane] / rate for lane, rate in zip(running, speed, strict=True)])
        if step:
            now += step
            if counting:
                idle = 0 not in running
                if idle:
                    played.waited += step
                for lane in running:
                    busy[lane] += step
                    if idle:
                        exposed[lane] += step
        over = []
        for lane, rate in zip(running, speed, strict=True):
            left[lane] -= step * rate
            if left[lane] <= NOTHING_LEFT_S:
                over.append(lane)
        woken = set(over)
        for lane in over:
            number = running.pop(lane)
            ends[number] = now
            done += 1
            if number == end:
                return played
            counting |= number == begin - 1
            for follower in followers[number]:
                missing[follower] -= 1
                if not missing[follower]:
                    lane_of = lanes[follower]
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
