"""What is said at each field of a form and above all of them: problems, refusals, notes, and counts for the tables.

Invariant: every problem of a draft is said somewhere, at its field or above the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.tui.form.checking import Around
from workbench.tui.form.draft import Draft
from workbench.tui.form.planning import Outlook
from workbench.tui.form.tables import TABLE_NAMES, table_of

NOTHING = Around()


@dataclass(frozen=True)
class Remarks:
    """`problems` and `notes` by field, `above` for what belongs to none, `marks` for each table (changed, wrong)."""

    problems: Mapping[str, str]
    notes: Mapping[str, str]
    above: tuple[str, ...]
    marks: Mapping[str, tuple[int, int]]
    changed: int
    wrong: int


def remarks(draft: Draft, outlook: Outlook | None, around: Around = NOTHING) -> Remarks:
    """All there is to say of `draft`. `outlook` and `around`: the newest, which may be of a key before."""
    found = draft.check().problems
    ill_formed = {problem.field for problem in found}
    if not draft.unreadable:
        found += tuple(each for each in around.missing if not each.field or each.field not in ill_formed)
    problems: dict[str, str] = {}
    above = []
    wrong = dict.fromkeys(TABLE_NAMES, 0)
    for problem in found:
        if problem.field:
            problems.setdefault(problem.field, problem.words)
        else:
            above.append(problem.words)
        wrong[table_of(problem.field) if problem.field else problem.table or TABLE_NAMES[0]] += 1
    notes = {**around.remarks, **(outlook.notes if outlook is not None else {})}
    if outlook is not None and outlook.refused and not draft.unreadable:
        if not outlook.at:
            above.append(outlook.refused)
        elif outlook.at not in problems:
            problems[outlook.at] = outlook.refused.removeprefix(outlook.at).lstrip(" :")
            wrong[table_of(outlook.at)] += 1
    if draft.unreadable:
        above.append("F4 opens it in an editor")
    elif any(problem.is_unknown for problem in found if not problem.field):
        above.append("F8 drops keys that there are not")
    changed = draft.changed
    counts = {table: sum(table_of(field) == table for field in changed) for table in TABLE_NAMES}
    marks = {table: (counts[table], wrong[table]) for table in TABLE_NAMES}
    return Remarks(problems, notes, tuple(above), marks, len(changed), len(found))
