"""Everything that is wrong with a document's values: of form, then contradictions.

What a preset's reader and a form share. Invariant: a rule about a value that is ill-formed itself, or stands under a
misspelt name, is left out, so that one mistake is one problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError

from workbench.config.problems import Problem, meant_by, problems_in, value_at
from workbench.config.rules import broken_rules
from workbench.config.schema import TABLES, RunConfig
from workbench.config.toml_lines import KeyPath


class Checked(NamedTuple):
    """`config`: what the well-formed values say, a run's only where there are no `problems`."""

    config: RunConfig
    problems: list[Problem]


def check_values(values: dict[str, Any], look_for: Collection[str] = ()) -> Checked:
    """Check a document's values. `look_for`: the fields of which is seen whether what they name is there."""
    problems: list[Problem] = []
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        problems += problems_in(error, values)
        config = RunConfig.model_validate(_without(values, {problem.path for problem in problems}))
    meant = [name for problem in problems for name in _meant_fields(problem.path, values)]
    paths = [problem.path for problem in problems]
    ill_formed = frozenset(name for path in (*paths, *meant) for name in _covered_fields(path))
    for broken in broken_rules(config, ill_formed):
        problems.append(Problem(tuple(broken.field.split(".")), broken.wrong, broken.right))
    if look_for:
        from workbench.config.references import missing_references

        there = {name for name in look_for if name not in ill_formed}
        broken_at = {problem.path for problem in problems}
        problems += [found for found in missing_references(config, there) if found.path not in broken_at]
    return Checked(config, problems)


def _meant_fields(path: KeyPath, values: dict[str, Any]) -> Iterator[KeyPath]:
    """What an unknown key or table was probably meant to be."""
    first = str(path[0])
    is_known = first in RunConfig.model_fields and (
        len(path) == 1 or first not in TABLES or path[1] in TABLES[first].model_fields
    )
    if not is_known:
        for name in meant_by(path, value_at(values, path)):
            yield tuple(name.split("."))


def _without(values: dict[str, Any], paths: set[KeyPath], at: KeyPath = ()) -> dict[str, Any]:
    """A copy of the document without what stands at `paths`."""
    return {
        key: _without(value, paths, (*at, key)) if isinstance(value, dict) else value
        for key, value in values.items()
        if (*at, key) not in paths
    }


def _covered_fields(path: KeyPath) -> Iterator[str]:
    """The dotted names of the fields that an ill-formed `path` leaves without a value."""
    first = str(path[0])
    if len(path) > 1:
        yield f"{first}.{path[1]}"
        return
    yield first
    if first in TABLES:
        yield from (f"{first}.{key}" for key in TABLES[first].model_fields)
