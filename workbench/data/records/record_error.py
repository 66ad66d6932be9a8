"""What is wrong with one record of the data, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RecordError(Exception):
    """A record that cannot be read: what is wrong, and what would be right. Whoever reads the file adds the place."""


def kind_of(value: Any) -> str:
    """What a value of JSON is."""
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


def names_of(record: Mapping[str, Any]) -> str:
    """The fields of a record, for a message."""
    return ", ".join(f'"{name}"' for name in record) or "no field"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
    (type(None), "null"),
)
