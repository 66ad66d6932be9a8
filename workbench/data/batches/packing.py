"""Which pieces share a row: best fit, the longest first (Johnson, Near-optimal bin packing algorithms, 1973).

Within 11/9 of the fewest rows that there can be, in practice nearer than one in a hundred.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows of indices into `lengths`, ascending in each row, whose lengths add up to `capacity` at most.

    Every index is in exactly one row, and equal lengths give equal rows. Each length is between 1 and `capacity`.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # of rows that are not full, ascending
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        at = bisect_left(room, (length, 0))
        if at < len(room):
            free, row = room.pop(at)
            rows[row].append(index)
        else:
            free, row = capacity, len(rows)
            rows.append([index])
        if free > length:
            insort(room, (free - length, row))
    for row_indices in rows:
        row_indices.sort()
    return rows
