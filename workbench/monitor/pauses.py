"""Growing pauses between attempts at something that does not answer."""

from __future__ import annotations

FIRST_S, LONGEST_S = 1.0, 60.0


class Pause:
    """After each failure twice as long as before, between FIRST_S and LONGEST_S."""

    def __init__(self) -> None:
        self._length = 0.0
        self._until = float("-inf")

    def over(self, now: float) -> bool:
        """Whether it is time for another attempt. `now`: seconds of any clock that only rises."""
        return now >= self._until

    def failed(self, now: float) -> None:
        self._length = min(LONGEST_S, max(FIRST_S, 2 * self._length))
        self._until = now + self._length

    def worked(self) -> None:
        self._length, self._until = 0.0, float("-inf")
