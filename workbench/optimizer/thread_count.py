"""How many threads the host optimizer gains from, by measurement. No torch.

An update is bound by memory: on a machine with many cores a part of them moves all that the memory can give, and more
only take cores from whoever else computes. Not for placing threads on cores.
"""

from __future__ import annotations

from collections.abc import Callable

TOLERANCE = 1.03
"""A count within this factor of the fastest is as good, and the smallest such is taken."""
ROUNDS = 4


def candidates(most: int) -> list[int]:
    """Powers of two below `most`, and `most`."""
    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*counts, most]


def fastest_thread_count(most: int, seconds_with: Callable[[int], float]) -> int:
    """The smallest of the candidates up to `most` that is about as fast as the fastest.

    `seconds_with(threads)` does the same work with that many threads and says how long it took. It is called in turns,
    and each candidate's best time counts: what else the machine does now and then must not decide.
    """
    counts = candidates(most)
    if len(counts) == 1:
        return counts[0]
    best = {count: min(seconds_with(count) for _ in range(2)) for count in counts}
    for _ in range(ROUNDS - 2):
        for count in counts:
            best[count] = min(best[count], seconds_with(count))
    limit = min(best.values()) * TOLERANCE
    return next(count for count in counts if best[count] <= limit)
