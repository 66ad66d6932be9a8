"""A field's value as it stands in an input, and what was typed read back as a value.

Nothing is judged here: what cannot be read as the field's kind stays a text, and the configuration's own checks say
what is wrong with it. Invariant: what is shown reads back as the same value.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from workbench.config import DocumentedField
from workbench.config.toml_text import toml_key, toml_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

Kind = Literal["switch", "choice", "whole", "number", "text", "table", "any"]
"""`any`: a text without quotes, or any other value as TOML writes it."""

_BY_TYPE: dict[str, Kind] = {
    "true or false": "switch",
    "a whole number": "whole",
    "a number": "number",
    "a text": "text",
    "a table": "table",
}


class UnreadableError(ValueError):
    """What was typed is no value at all; the sentence says where."""


def kind_of(field: DocumentedField) -> Kind:
    """What sort of input a field needs."""
    return "choice" if field.choices else _BY_TYPE.get(field.type, "any")


def shown(value: Any, kind: Kind) -> str:
    """`value` as it stands in an input; a table on lines of TOML."""
    if kind == "table" and isinstance(value, dict):
        return "\n".join(f"{toml_key(key)} = {toml_value(held)}" for key, held in value.items())
    if isinstance(value, str):
        return value if kind != "any" or _from_toml(value) is None else toml_value(value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return toml_value(value)


def typed(text: str, kind: Kind) -> Any:
    """What `text` says.

    Raises:
        UnreadableError: it is to be a table and is no TOML.
    """
    if kind in ("text", "choice"):
        return text
    if kind == "table":
        return _table(text)
    stripped = text.strip()
    if kind == "any":
        found = _from_toml(stripped)
        return stripped if found is None else found
    if kind == "switch":
        return {"true": True, "false": False}.get(stripped, stripped)
    return _number(stripped, whole=kind == "whole")


def _number(text: str, *, whole: bool) -> Any:
    if not text.isascii():
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number


def _from_toml(text: str) -> Any:
    """The value that TOML reads in `text`; None where it reads none. Dates, which no field takes, are texts."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return None
    value = parsed["value"] if len(parsed) == 1 else None
    return value if isinstance(value, (bool, int, float, str, list, dict)) else None


def _table(text: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"is not valid TOML: {error}") from None
    return table
