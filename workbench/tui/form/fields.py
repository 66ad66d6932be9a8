"""The fields of the form: the table and the input that each belongs to, and its value as the text of that input.

Text that cannot be read as the field's type stays text, and the checks of the configuration say what is wrong with it.
Invariant: `parse_text(as_text(value, kind), kind)` is the same value.
"""

from __future__ import annotations

from typing import Any, Literal

from workbench.config import DocumentedField, fields
from workbench.config.schema import TABLES
from workbench.config.toml_text import toml_key, toml_value
from workbench.system.foreign import parse_toml

FIELDS: dict[str, DocumentedField] = {field.name: field for field in fields()}
"""Every field by its dotted name, in the order of a preset."""
TABLE_NAMES = tuple(TABLES)

Kind = Literal["switch", "choice", "whole", "number", "text", "table", "any"]
"""`any`: text without quotes, or any other value as TOML writes it."""
_BY_TYPE: dict[str, Kind] = {
    "true or false": "switch",
    "a whole number": "whole",
    "a number": "number",
    "a string": "text",
    "a table": "table",
}


class UnreadableError(ValueError):
    """The text is not valid TOML; the message says where."""


def table_of(field: str) -> str:
    """Return the table that shows a field: a key above all tables is shown with the first."""
    return field.partition(".")[0] if "." in field else TABLE_NAMES[0]


def fields_of(table: str) -> list[DocumentedField]:
    """Return the fields that `table` shows."""
    return [field for field in FIELDS.values() if table_of(field.name) == table]


def kind_of(field: DocumentedField) -> Kind:
    """Return the kind of input that a field needs."""
    return "choice" if field.choices else _BY_TYPE.get(field.type, "any")


def as_text(value: Any, kind: Kind) -> str:
    """Return the text of an input that holds `value`; a table is lines of TOML."""
    if kind == "table" and isinstance(value, dict):
        return "\n".join(f"{toml_key(key)} = {toml_value(inner)}" for key, inner in value.items())
    if isinstance(value, str):
        return value if kind != "any" or _from_toml(value) is None else toml_value(value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return toml_value(value)


def parse_text(text: str, kind: Kind) -> Any:
    """Return the value that `text` means.

    Raises:
        UnreadableError: `kind` is "table" and `text` is not TOML.
    """
    if kind in ("text", "choice"):
        return text
    stripped = text.strip()
    if kind == "table":
        try:
            return parse_toml(text)
        except ValueError as error:
            raise UnreadableError(f"is not valid TOML: {error}") from None
    if kind == "any":
        value = _from_toml(stripped)
        return stripped if value is None else value
    if kind == "switch":
        return {"true": True, "false": False}.get(stripped, stripped)
    return _number(stripped)


def _number(text: str) -> Any:
    """Return an int, else a float, else the text; `int` and `float` would read digits of other scripts too."""
    for type_ in (int, float) if text.isascii() else ():
        try:
            return type_(text)
        except ValueError:
            continue
    return text


def _from_toml(text: str) -> Any:
    """Return the value that TOML reads in `text`; None where there is none, or a date, which no field takes."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return None
    value = parsed["value"] if len(parsed) == 1 else None
    return value if isinstance(value, (bool, int, float, str, list, dict)) else None
