"""Errors in records: one as an exception, several as one message with file and line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import ConfigurationError

LISTED = 5


class RecordError(Exception):
    """A record cannot be read. The message says what is wrong and what would be right; the reader adds the place."""


class RecordErrors:
    """Collects the errors of a source in order."""

    def __init__(self) -> None:
        self.count = 0
        self._listed: list[tuple[str, str]] = []

    def add(self, place: str, reason: str) -> None:
        """Add the error of the record at `place` ("chats.jsonl:12")."""
        self.count += 1
        if len(self._listed) < LISTED:
            self._listed.append((place, reason))

    def raise_if_any(self) -> None:
        """Raise a ConfigurationError that lists the first `LISTED` errors, if there are any."""
        if not self.count:
            return
        if self.count == 1:
            [(place, reason)] = self._listed
            raise ConfigurationError(f"data.source: {place}: {reason}")
        lines, before = ["data.source has wrong records:"], None
        for place, reason in self._listed:
            lines.append(f"  {place}: {'the same' if reason == before else reason}")
            before = reason
        if self.count > LISTED:
            lines.append(f"  and {self.count - LISTED:,} more so far")
        raise ConfigurationError("\n".join(lines))


def kind_of(value: Any) -> str:
    """Return the name of a JSON value's type, with its article: "a string"."""
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


def names_of(record: Mapping[str, Any]) -> str:
    """Return the names of a record's fields, for a message."""
    return ", ".join(f'"{name}"' for name in record) or "no field"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
    (type(None), "null"),
)
