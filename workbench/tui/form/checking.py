"""What is wrong with a configuration's values, field by field: the same checks as `parse_config`, for a form.

A form wants problems at their fields and goes on working while there are some; `parse_config` wants one message and an
end. `look_around` finds what is said of a configuration beyond that; it looks at the disk. Invariant: `check` finds no
problems exactly when `parse_config` accepts the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from workbench.config import RunConfig
from workbench.config.checking import Problem, check_values
from workbench.config.references import REFERENCES, missing_references
from workbench.config.rules import field_warnings
from workbench.config.schema import TABLES
from workbench.config.toml_text import KeyPath, as_written, toml_key, value_at


class FieldProblem(NamedTuple):
    """`field`: its dotted name; empty where the problem is with a table or an unknown key, which `words` then names.

    `table`: where it is shown; empty above all tables and for tables that there are not. `path`: the value in question.
    """

    table: str
    field: str
    words: str
    path: KeyPath

    @property
    def is_unknown(self) -> bool:
        """Whether a key or table stands there that no configuration has."""
        first = str(self.path[0])
        if first not in TABLES:
            return first not in RunConfig.model_fields
        return len(self.path) > 1 and str(self.path[1]) not in TABLES[first].model_fields


class Checked(NamedTuple):
    """`config`: what the values say; None while there are problems."""

    config: RunConfig | None
    problems: tuple[FieldProblem, ...]


def check(values: dict[str, Any]) -> Checked:
    """Check a document's values."""
    config, found = check_values(values)
    problems = tuple(_at_its_field(problem, values) for problem in found)
    return Checked(None if problems else config, problems)


class Around(NamedTuple):
    """`missing`: what is named and is not there. `remarks`: what will hardly have been meant, by the field's name."""

    missing: tuple[FieldProblem, ...] = ()
    remarks: Mapping[str, str] = {}


def look_around(values: dict[str, Any]) -> Around:
    """What a document's values name that is not there, and what is odd about them. It reads the disk: for a thread."""
    config, wrong = check_values(values)
    found = check_values(values, REFERENCES).problems
    missing = tuple(_at_its_field(problem, values) for problem in found if problem not in wrong)
    remarks = {} if wrong else {remark.field: remark.words for remark in field_warnings(config)}
    return Around(missing, remarks)


def missing_at_fields(config: RunConfig, looked_for: Iterable[str]) -> tuple[FieldProblem, ...]:
    """What of the fields `looked_for` names what is not there."""
    found = missing_references(config, frozenset(looked_for))
    return tuple(_at_its_field(problem, config.model_dump()) for problem in found)


def _at_its_field(problem: Problem, values: dict[str, Any]) -> FieldProblem:
    path = problem.path
    first = str(path[0])
    table = first if first in TABLES else ""
    fields = TABLES[first].model_fields if table else RunConfig.model_fields
    key = str(path[1]) if table and len(path) > 1 else "" if table else first
    is_field = key in fields and key not in TABLES
    value = value_at(values, path)
    words = (
        f"{'is empty' if value == '' and 'is a text' in problem.wrong else problem.wrong}; {problem.right}"
    )
    if not is_field or len(path) > 2:
        words = f"{_named(path[2:] if is_field else path, value)}: {words}"
    field = (f"{table}.{key}" if table else key) if is_field else ""
    return FieldProblem(table, field, words, path)


def _named(path: KeyPath, value: Any) -> str:
    """What stands at `path`, below what is named already: an entry of an array by its value, all else by its key."""
    if isinstance(path[-1], int):
        return as_written(value)
    name = ".".join(toml_key(str(part)) for part in path)
    if isinstance(value, dict):
        return f"[{name}]" if len(path) == 1 else name
    return name if value is None else f"{name} = {as_written(value)}"
