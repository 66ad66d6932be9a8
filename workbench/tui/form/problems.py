"""Everything that the form writes at its fields: problems, warnings, notes, and the counts beside its tables.

The checks are those of `parse_config`, which raises one error with all of them; a form goes on working meanwhile.
Invariants: `check` finds no problems exactly where `parse_config` accepts the same values, and every problem is shown,
at its field or above the form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.config import RunConfig
from workbench.config.checking import check_values
from workbench.config.references import REFERENCES, missing_references
from workbench.config.rules import Problem, field_warnings
from workbench.config.schema import TABLES
from workbench.config.toml_text import KeyPath, as_written, toml_key, value_at
from workbench.tui.form.fields import TABLE_NAMES, table_of

if TYPE_CHECKING:
    from workbench.tui.form.draft import Draft
    from workbench.tui.form.planner import PlanResult


class FieldProblem(NamedTuple):
    """A problem with the value at `path`, in `words`.

    `field` is the dotted name of a field of the form; empty for a table or an unknown key, which `words` then name.
    `table` shows it; empty above all tables and for an unknown table.
    """

    table: str
    field: str
    words: str
    path: KeyPath

    @property
    def is_unknown(self) -> bool:
        """True where the path leads to a key or table that no configuration has."""
        first = str(self.path[0])
        if first not in TABLES:
            return bool(first) and first not in RunConfig.model_fields
        return len(self.path) > 1 and str(self.path[1]) not in TABLES[first].model_fields


class Checked(NamedTuple):
    """The configuration that a document's values are, None while there are problems."""

    config: RunConfig | None
    problems: tuple[FieldProblem, ...]


def check(values: dict[str, Any]) -> Checked:
    """Check the values of a document, without looking at the disk."""
    config, found = check_values(values)
    problems = tuple(_at_field(problem, values) for problem in found)
    return Checked(None if problems else config, problems)


class References(NamedTuple):
    """Files, packages and architectures that a configuration names and that are `missing`; `warnings` by field."""

    missing: tuple[FieldProblem, ...] = ()
    warnings: Mapping[str, str] = {}


def check_references(values: dict[str, Any]) -> References:
    """Look for everything that the values of a document name. It reads the disk: call it in a thread."""
    config, wrong = check_values(values)
    found = check_values(values, REFERENCES).problems
    missing = tuple(_at_field(problem, values) for problem in found if problem not in wrong)
    return References(
        missing, {} if wrong else {warning.field: warning.words for warning in field_warnings(config)}
    )


def missing_at_fields(config: RunConfig, names: Iterable[str]) -> tuple[FieldProblem, ...]:
    """Return the problems of the fields `names` (dotted) that refer to something missing."""
    found = missing_references(config, frozenset(names))
    return tuple(_at_field(problem, config.model_dump()) for problem in found)


def _at_field(problem: Problem, values: dict[str, Any]) -> FieldProblem:
    path = problem.path
    first = str(path[0])
    table = first if first in TABLES else ""
    known = TABLES[first].model_fields if table else RunConfig.model_fields
    key = str(path[1]) if table and len(path) > 1 else "" if table else first
    is_field = key in known and key not in TABLES
    value = value_at(values, path)
    wrong = "is empty" if value == "" and "is a string" in problem.wrong else problem.wrong
    words = f"{wrong}; {problem.right}"
    if not is_field or len(path) > 2:
        words = f"{_name_of(path[2:] if is_field else path, value)}: {words}"
    return FieldProblem(table, (f"{table}.{key}" if table else key) if is_field else "", words, path)


def _name_of(path: KeyPath, value: Any) -> str:
    """Return the name of what stands at `path`: an entry of an array is named by its value, all else by its key."""
    if isinstance(path[-1], int):
        return as_written(value)
    name = ".".join(toml_key(str(part)) for part in path)
    if isinstance(value, dict):
        return f"[{name}]" if len(path) == 1 else name
    return name if value is None else f"{name} = {as_written(value)}"


@dataclass(frozen=True)
class FormMessages:
    """`problems` and `notes` by field; `above`: lines above the form; `counts`: (changed, wrong) fields by table."""

    problems: Mapping[str, str]
    notes: Mapping[str, str]
    above: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]

    @property
    def changed(self) -> int:
        return sum(changed for changed, _ in self.counts.values())

    @property
    def wrong(self) -> int:
        return sum(wrong for _, wrong in self.counts.values())


def form_messages(draft: Draft, result: PlanResult | None, references: References) -> FormMessages:
    """Collect the messages of the form; `result` and `references` are the newest, perhaps of one key before."""
    found = list(draft.check().problems)
    if not draft.unreadable:
        ill_formed = {problem.field for problem in found}
        found += [each for each in references.missing if not each.field or each.field not in ill_formed]
    if result is not None and result.refused and not draft.unreadable:
        at, words = result.field, result.refused
        if not any(problem.field == at for problem in found if at):
            words = words.removeprefix(at).lstrip(" :") if at else words
            found.append(FieldProblem(table_of(at) if at else "", at, words, ("",)))
    problems: dict[str, str] = {}
    above: list[str] = []
    wrong = dict.fromkeys(TABLE_NAMES, 0)
    for problem in found:
        if problem.field:
            problems.setdefault(problem.field, problem.words)
        else:
            above.append(problem.words)
        wrong[table_of(problem.field) if problem.field else problem.table or TABLE_NAMES[0]] += 1
    if draft.unreadable:
        above.append("F4 opens it in an editor")
    elif any(problem.is_unknown for problem in found):
        above.append("F8 drops unknown keys")
    changed = [table_of(field) for field in draft.changed]
    counts = {table: (changed.count(table), wrong[table]) for table in TABLE_NAMES}
    notes = {**references.warnings, **(result.notes if result is not None else {})}
    return FormMessages(problems, notes, tuple(above), counts)
