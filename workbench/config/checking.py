"""Check a document's values: their types and ranges, then contradictions, each as a problem with its remedy.

The reader of presets and the screen's form share this. One field gives one problem, however many errors pydantic has
for it, and a rule about a value that is wrong itself is left out: one mistake is one problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from workbench.config.references import missing_references
from workbench.config.rules import Problem, broken_rules, nearest
from workbench.config.schema import TABLES, DocumentedField, RunConfig, fields
from workbench.config.toml_text import KeyPath, value_at


class Checked(NamedTuple):
    """`config`: of the well-formed values; complete only where there are no `problems`."""

    config: RunConfig
    problems: list[Problem]


def check_values(values: dict[str, Any], look_for: Collection[str] = ()) -> Checked:
    """Check a document's values. `look_for`: the fields whose files, folders and names are looked up."""
    problems: list[Problem] = []
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        problems += problems_in(error, values)
        config = RunConfig.model_validate(_without(values, {problem.path for problem in problems}))
    ill_formed = {name for problem in problems for name in _covered_fields(problem.path)}
    if all(_is_known(problem.path) for problem in problems):  # else a field may lack what was misspelt
        problems += list(broken_rules(config, ill_formed))
    if look_for:
        broken_at = {problem.path for problem in problems}
        found = missing_references(config, set(look_for) - ill_formed)
        problems += [each for each in found if each.path not in broken_at]
    return Checked(config, problems)


def _is_known(path: KeyPath) -> bool:
    """Return True where a configuration has such a table or key."""
    first = str(path[0])
    if first not in TABLES:
        return first in RunConfig.model_fields
    return len(path) == 1 or path[1] in TABLES[first].model_fields


def _without(values: dict[str, Any], paths: set[KeyPath], at: KeyPath = ()) -> dict[str, Any]:
    """Return a copy of the document without what stands at `paths`."""
    return {
        key: _without(value, paths, (*at, key)) if isinstance(value, dict) else value
        for key, value in values.items()
        if (*at, key) not in paths
    }


def _covered_fields(path: KeyPath) -> Iterator[str]:
    """Yield the dotted names of the fields that an ill-formed `path` leaves without a value."""
    first = str(path[0])
    if len(path) > 1:
        yield f"{first}.{path[1]}"
        return
    yield first
    if first in TABLES:
        yield from (f"{first}.{key}" for key in TABLES[first].model_fields)


def problems_in(error: ValidationError, document: dict[str, Any]) -> Iterator[Problem]:
    """Yield one problem for each field, key or table of `document` that `error` complains about."""
    documented = {field.name: field for field in fields()}
    kinds: dict[KeyPath, list[str]] = {}
    for detail in error.errors(include_url=False):
        kinds.setdefault(_path_of(detail["loc"]), []).append(detail["type"])
    for path, kinds_here in kinds.items():
        value = value_at(document, path)
        field = documented.get(".".join(map(str, path)))
        if "extra_forbidden" in kinds_here:
            yield _unknown(path, value)
        elif len(path) > 2:
            yield Problem(path, *_INNER_TABLES[path[:2]])
        elif field is None:
            yield Problem(path, f"is {_in_words(value)}", f"must be a table, written [{path[0]}]")
        else:
            yield Problem(path, _wrong_value(value, kinds_here, field), f"must be {field.must_be}")


_INNER_TABLES: dict[KeyPath, tuple[str, str]] = {
    ("model", "config"): (
        "cannot be passed to a model",
        "must contain only strings, finite numbers, true and false",
    ),
    ("evaluate", "sources"): ("is not a path", "must be a file or a folder, as a string"),
    ("optimizer", "learning_rate_scales"): ("is not a factor", "must be a number above 0 and up to 1,000"),
}
"""The message and the right form for a wrong value in a table whose keys are the user's own."""


def _homes(name: str) -> list[str]:
    """Return the tables that have a key of this name."""
    return [table for table, model in TABLES.items() if name in model.model_fields]


def _path_of(location: tuple[int | str, ...]) -> KeyPath:
    """Return table and key of an error, without the union members and places in arrays that pydantic appends."""
    if location[:2] in _INNER_TABLES:
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


_FIELDS_WITH_ARRAYS = {"betas", "source", "targets", "freeze", "no_decay"}

_WORDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (str, "a string"),
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
