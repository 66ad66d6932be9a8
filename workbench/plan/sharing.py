"""The rule by which what runs at the same time shares a machine: the plan and the virtual clock both apply it.

A resource is shared in proportion: where more of it is asked for than there is, all who ask are slowed alike, and who
asks for several goes at the pace of the scarcest.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import zip_longest

Demand = tuple[float, ...]
"""Share of each shared resource that a task takes when it runs alone, 0 to 1."""


@lru_cache(maxsize=4096)
def shared_speeds(demands: tuple[Demand, ...]) -> tuple[float, ...] | None:
    """Return the speed of each running task as a share of its speed alone; None where none is slowed."""
    totals = [sum(column) for column in zip_longest(*demands, fillvalue=0.0)]
    speeds = tuple(
        min(
            [
                1.0,
                *(1 / total for share, total in zip(demand, totals, strict=False) if share > 0 and total > 1),
            ]
        )
        for demand in demands
    )
    return None if min(speeds, default=1.0) == 1 else speeds
