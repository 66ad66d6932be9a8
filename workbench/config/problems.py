"""From what pydantic found wrong to sentences: what is wrong with a value, and what would be right.

One field gives one problem, however many errors its type has (a union fails once per member). The words for
what is right come from the field's own documentation.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from workbench.config.schema import TABLES, DocumentedField, RunConfig, fields
from workbench.config.toml_lines import KeyPath

LONGEST_VALUE_SHOWN = 160
"""Letters: a path that is wrong has to be seen whole."""


class Problem(NamedTuple):
    """Something wrong at `path`, in two half sentences."""

    path: KeyPath
    wrong: str
    right: str


def problems_in(error: ValidationError, document: dict[str, Any]) -> Iterator[Problem]:
    """One problem for each field, key or table of `document` that `error` complains about."""
    documented = {field.name: field for field in fields()}
    kinds: dict[KeyPath, list[str]] = {}
    for detail in error.errors(include_url=False):
        kinds.setdefault(_path_of(detail["loc"]), []).append(detail["type"])
    for path, kinds_here in kinds.items():
        value = value_at(document, path)
        field = documented.get(".".join(map(str, path)))
        if "extra_forbidden" in kinds_here:
            yield _unknown(path, value)
        elif path[:2] == ("model", "config") and len(path) > 2:
            yield Problem(
                path, "cannot be handed to a model", "must be made of texts, finite numbers, true and false"
            )
        elif field is None:
            yield Problem(path, f"is {_in_words(value)}", f"must be a table, written [{path[0]}]")
        else:
            yield Problem(path, _wrong_value(value, kinds_here, field), f"must be {field.must_be}")


def value_at(document: dict[str, Any], path: KeyPath) -> Any:
    """The value at `path`, or None where the document does not say."""
    value: Any = document
    for name in path:
        if isinstance(value, list) and isinstance(name, int) and name < len(value):
            value = value[name]
            continue
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def as_written(value: Any) -> str:
    """A value as TOML writes it, on one line and not too long."""
    text = toml_value(value)
    return text if len(text) <= LONGEST_VALUE_SHOWN else text[: LONGEST_VALUE_SHOWN - 1] + "…"


def on_one_line(message: str) -> str:
    """A message whose line ends and control characters are spelt out, whatever a user's text holds."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in message)


def toml_value(value: Any) -> str:
    """A value in TOML, on one line; dates, which no field takes, as they print."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(held)}" for key, held in value.items()) + "}"
    return str(value)


def toml_key(key: str) -> str:
    """A key in TOML, quoted only where it must be."""
    bare = key and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in key)
    return key if bare else toml_value(key)


def nearest(wrong: str, right: Iterable[str]) -> str | None:
    """The one of `right` that `wrong` was probably meant to be, if any."""
    near = difflib.get_close_matches(wrong.lower(), list(right), n=1)
    return near[0] if near else None


def meant_by(path: KeyPath, value: Any) -> Iterator[str]:
    """The dotted names of the fields and tables that an unknown key or table was probably meant to be."""
    name = str(path[-1])
    if len(path) == 1 and isinstance(value, dict):
        near = nearest(name, TABLES)
        yield from [near] if near else []
        return
    model = TABLES[str(path[0])] if len(path) > 1 else RunConfig
    near = nearest(name, model.model_fields)
    if near:
        yield f"{path[0]}.{near}" if len(path) > 1 else near
    yield from (f"{table}.{name}" for table in _homes(name))


def _homes(name: str) -> list[str]:
    """The tables that have a key of this name."""
    return [table for table, model in TABLES.items() if name in model.model_fields]


def _path_of(location: tuple[int | str, ...]) -> KeyPath:
    """Table and key of an error, without the union members and places in arrays that pydantic appends."""
    if location[:2] == ("model", "config"):
        return location[:3]
    return location[:2] if location[0] in TABLES else location[:1]


_WRONG_SIZE = {
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than": "is too large",
    "less_than_equal": "is too large",
    "finite_number": "is not finite",
    "string_too_short": "is empty",
}


def _wrong_value(value: Any, kinds: list[str], field: DocumentedField) -> str:
    if isinstance(value, list) and field.key in _FIELDS_WITH_ARRAYS:
        return "is empty" if not value else "has something else in it"
    for kind in kinds:
        if kind in _WRONG_SIZE:
            return _WRONG_SIZE[kind]
    if isinstance(value, str) and not {"literal_error", "string_pattern_mismatch"}.isdisjoint(kinds):
        near = nearest(value, field.choices)
        return "is not known" + (f' (did you mean "{near}"?)' if near else "")
    return f"is {_in_words(value)}"


_FIELDS_WITH_ARRAYS = {"betas", "source", "targets"}

_WORDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (str, "a text"),
    (int, "a whole number"),
    (float, "a number with a fraction"),
    (list, "an array"),
    (dict, "a table"),
)


def _in_words(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**1000:
        return "far too large"
    return next((words for kind, words in _WORDS if isinstance(value, kind)), "a date or time")


def _unknown(path: KeyPath, value: Any) -> Problem:
    name = str(path[-1])
    if len(path) == 1 and isinstance(value, dict):
        near = nearest(name, TABLES)
        known = "the tables are " + ", ".join(f"[{table}]" for table in TABLES)
        return Problem(path, "there is no such table", f"did you mean [{near}]?" if near else known)
    place = f"in [{path[0]}]" if len(path) > 1 else "above the first table"
    keys = list((TABLES[str(path[0])] if len(path) > 1 else RunConfig).model_fields)
    near = nearest(name, keys)
    homes = [f"[{table}]" for table in _homes(name)]
    if near:
        right = f'did you mean "{near}"?'
    elif homes:
        right = "it belongs in " + " or ".join(homes)
    else:
        right = f"the keys {place} are " + ", ".join(key for key in keys if key not in TABLES)
    return Problem(path, f"there is no such key {place}", right)
