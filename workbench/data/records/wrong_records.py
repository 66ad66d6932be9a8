"""Several wrong records told in one message: the first few with their places, the rest counted.

Invariant: a place may cost a look through its file, so that none is asked for that is not told.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench.errors import ConfigurationError

TOLD = 5


class WrongRecords:
    """Gathers them in the order in which they are added."""

    def __init__(self) -> None:
        self.count = 0
        self._told: list[tuple[str, str]] = []

    def add(self, place: Callable[[], str], reason: object) -> None:
        """`place`: where the record stands; `reason`: what is wrong with it, and what would be right."""
        self.count += 1
        if len(self._told) < TOLD:
            self._told.append((place(), str(reason)))

    def refuse(self) -> None:
        """Raise a ConfigurationError that tells them, where there are any."""
        if not self.count:
            return
        if self.count == 1:
            [(place, reason)] = self._told
            raise ConfigurationError(f"data.source: {place}: {reason}")
        lines, before = ["data.source has wrong records:"], None
        for place, reason in self._told:
            lines.append(f"  {place}: {'the same' if reason == before else reason}")
            before = reason
        if self.count > TOLD:
            lines.append(f"  and {self.count - TOLD:,} more so far")
        raise ConfigurationError("\n".join(lines))
