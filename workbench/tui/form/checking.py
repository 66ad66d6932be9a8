"""What is wrong with a configuration's values, field by field: the same checks as `parse_config`, for a form.

A form wants problems at their fields and goes on working while there are some; `parse_config` wants one message and an
end. Invariant: there are no problems exactly when `parse_config` accepts the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from workbench.config import RunConfig
from workbench.config.problems import Problem, as_written, problems_in, toml_key, value_at
from workbench.config.rules import broken_rules
from workbench.config.schema import TABLES
from workbench.config.toml_lines import KeyPath


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
    found: list[Problem] = []
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found += problems_in(error, values)
        config = RunConfig.model_validate(_without(values, {problem.path for problem in found}))
    ill_formed = frozenset(name for problem in found for name in _covered(problem.path))
    for broken in broken_rules(config, ill_formed):
        found.append(Problem(tuple(broken.field.split(".")), broken.wrong, broken.right))
    problems = tuple(_at_its_field(problem, values) for problem in found)
    return Checked(None if problems else config, problems)


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
        name = ".".join(toml_key(str(part)) for part in (path[2:] if is_field else path))
        written = f" = {as_written(value)}" if value is not None and not isinstance(value, dict) else ""
        words = f"{f'[{name}]' if isinstance(value, dict) and len(path) == 1 else name}{written}: {words}"
    field = (f"{table}.{key}" if table else key) if is_field else ""
    return FieldProblem(table, field, words, path)


def _without(values: dict[str, Any], paths: set[KeyPath], at: KeyPath = ()) -> dict[str, Any]:
    return {
        key: _without(value, paths, (*at, key)) if isinstance(value, dict) else value
        for key, value in values.items()
        if (*at, key) not in paths
    }


def _covered(path: KeyPath) -> Iterator[str]:
    """The dotted names of the fields that an ill-formed `path` leaves without a value."""
    first = str(path[0])
    if len(path) > 1:
        yield f"{first}.{path[1]}"
    else:
        yield first
        if first in TABLES:
            yield from (f"{first}.{key}" for key in TABLES[first].model_fields)
