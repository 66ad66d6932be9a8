"""Tasks on lanes, played through in time: a lane does one task after the other, and what lanes share slows them.

Arithmetic over any set of tasks; what they are and how long they take is the business of its callers. Who waits for
whom is kept apart from how long it takes: a form asks again and again with other seconds only.

Invariant: a task starts when its lane is free and all that it waits for is done. Lane 0, the program, takes tasks in
the order of their numbers, and so does any lane that is said to; the others in the order in which they became ready.
Of a shared resource the lanes that want it get no more than there is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import truediv

from workbench.plan.sharing import Demand, shared_speeds

NOTHING_LEFT_S = 1e-12
IDLE = -1


class Order:
    """Tasks on `count` lanes and what each waits for: numbers of earlier tasks. `alike`: tasks of one number take the
    same. `by_number`: lanes other than 0 that take what is ready in the order of its numbers. `instead`: pairs of tasks
    of one lane, of which the one that begins first does the work of both.

    Raises:
        ValueError: a task waits for itself or a later one.
    """

    def __init__(
        self,
        count: int,
        lanes: Sequence[int],
        waits: Sequence[Sequence[int]],
        alike: Sequence[int],
        by_number: Collection[int] = (),
        instead: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.count = count
        self.by_number = frozenset({0, *by_number})
        self.lanes = tuple(lanes)
        self.alike = tuple(alike)
        followers: list[list[int]] = [[] for _ in lanes]
        for number, earlier_ones in enumerate(waits):
            for earlier in earlier_ones:
                if earlier >= number:
                    raise ValueError(f"task {number} waits for task {earlier}, which is not an earlier one")
                followers[earlier].append(number)
        self.followers = tuple(map(tuple, followers))
        self.waited_for = tuple(map(len, waits))
        self.partners = {**dict(instead), **{second: first for first, second in instead}}
        self.first = tuple(number for number, count in enumerate(self.waited_for) if not count)


@dataclass
class Played:
    """The result, in seconds. `ends`: of each task. `busy`: of each lane. `exposed`: of those, while lane 0 stood
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
    settled_s: Sequence[float] = (),
    begin: int = 0,
    end: int | None = None,
) -> Played:
    """Run the tasks of `order`, which alone on the machine take `seconds` and, of what is shared, `demands`.

    Both are by the order's numbers of what is alike. `settled_s`: seconds of one whose partner has done its work.

    Busy, exposed and waited seconds are those after task `begin - 1` has ended (0: from the start) until task `end`
    ends (None: until all have); nothing is played beyond.
    """
    lanes, followers, alike = order.lanes, order.followers, order.alike
    by_number, partners = order.by_number, order.partners
    begun: set[int] = set()
    missing = list(order.waited_for)
    queues: list[list[tuple[float, int]]] = [[] for _ in range(order.count)]
    for number in order.first:
        heappush(queues[lanes[number]], (0.0, number))
    played = Played([0.0] * len(lanes), [0.0] * order.count, [0.0] * order.count)
    busy, exposed, ends = played.busy, played.exposed, played.ends
    places: dict[Demand, int] = {}
    place_of = [places.setdefault(demand, len(places)) for demand in demands]
    distinct = tuple(places)
    current = [IDLE] * order.count
    # Of the lanes that have a task, in the order in which these began: the lane, its demand's place, the seconds left.
    running: list[int] = []
    wanted: list[int] = []
    left: list[float] = []
    now, waited, counting, to_do = 0.0, 0.0, begin == 0, len(lanes)
    before_window = begin - 1
    speeds: dict[tuple[int, ...], tuple[float, ...] | None] = {}
    changed = list(range(order.count))
    while to_do:
        at_once = False
        for lane in changed:
            if queues[lane] and current[lane] == IDLE:
                current[lane] = number = heappop(queues[lane])[1]
                kind = alike[number]
                running.append(lane)
                wanted.append(place_of[kind])
                left.append(seconds[kind])
                if number in partners:
                    begun.add(number)
                    if partners[number] in begun:
                        left[-1] = settled_s[kind]
                if not left[-1]:
                    at_once = True
        if not at_once:
            key = tuple(wanted)
            if key not in speeds:
                speeds[key] = shared_speeds(tuple([distinct[place] for place in key]))
            speed = speeds[key]
            if speed is None:
                step = min(left)
                left = [rest - step for rest in left]
            else:
                step = min(map(truediv, left, speed))
                left = [rest - step * rate for rest, rate in zip(left, speed, strict=True)]
            now += step
            if counting:
                for lane in running:
                    busy[lane] += step
                if current[0] == IDLE:
                    waited += step
                    for lane in running:
                        exposed[lane] += step
        over = [place for place, rest in enumerate(left) if rest <= NOTHING_LEFT_S]
        changed = [running[place] for place in over]
        to_do -= len(over)
        for place in reversed(over):
            del running[place], wanted[place], left[place]
        for lane in changed.copy():
            number, current[lane] = current[lane], IDLE
            ends[number] = now
            if number == end:
                to_do = 0
                break
            if number == before_window:
                counting = True
            for follower in followers[number]:
                missing[follower] -= 1
                if not missing[follower]:
                    lane_of = lanes[follower]
                    heappush(queues[lane_of], (0.0 if lane_of in by_number else now, follower))
                    changed.append(lane_of)
        changed.sort()
    played.waited = waited
    return played
