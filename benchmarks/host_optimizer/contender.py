"""What every contender is made into, so that the measurement treats all alike."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[[int], None]
"""Does so many steps."""


class UnavailableError(Exception):
    """A contender cannot run here; its text says why, in words for the user."""


def repeat(step: Callable[[], object]) -> Run:
    """A `Run` of a function that does one step."""

    def run(calls: int) -> None:
        for _ in range(calls):
            step()

    return run
