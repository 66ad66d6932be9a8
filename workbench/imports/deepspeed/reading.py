"""A DeepSpeed configuration in, a verdict on every key out.

The order of the readers matters once: the scheduler comes after the optimizer, whose learning rate it may replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.imports.deepspeed.batch import read_batch
from workbench.imports.deepspeed.keys import ZERO, is_known, judge_leftovers, place
from workbench.imports.deepspeed.optimizer import read_optimizer, read_scheduler
from workbench.imports.deepspeed.placement import read_placement
from workbench.imports.deepspeed.precision import read_precision
from workbench.imports.findings import Auto, Findings
from workbench.imports.lenient_json import KeyPath, Repair


def read(values: Mapping[str, Any], lines: Mapping[KeyPath, int]) -> tuple[Findings, list[Repair]]:
    """Judge every key of a DeepSpeed configuration; return what was found, and which keys were moved."""
    placed, places, moves = _put_in_place(dict(values), lines)
    found = Findings(placed, places)
    for judge in (read_batch, read_precision, read_optimizer, read_scheduler, read_placement, _read_logging):
        judge(found)
    judge_leftovers(found)
    return found, moves


def _read_logging(found: Findings) -> None:
    """Set [log] from steps_per_print and TensorBoard."""
    key, events = "steps_per_print", "tensorboard.enabled"
    member = found.get(key)
    if member is not None and isinstance(member.value, (int, float)) and member.value > 10**6:
        found.judge(
            key, "meaningless here", "never in a run's length; log.every says how often a line is printed"
        )
    else:
        steps = found.whole(key)
        if isinstance(steps, Auto):
            found.auto("log.every", key)
        elif steps is not None:
            found.put("log.every", steps, key, "steps between progress lines")
    section = found.members.get(("tensorboard",))
    if section is not None and isinstance(section.value, dict) and found.switch(events) is True:
        found.put("log.tracker", ["tensorboard"], events, "metrics are also written as TensorBoard events")
    else:
        found.judge(events, "meaningless here", "no events are written, as by default")


# Keys in the wrong place

_Values = dict[str, Any]
_Lines = dict[KeyPath, int]


def _put_in_place(values: _Values, lines: Mapping[KeyPath, int]) -> tuple[_Values, _Lines, list[Repair]]:
    """Return the file with its keys where DeepSpeed has them, their lines, and the repairs.

    A configuration whose braces were lost has its keys too deep: a key that its section does not have, and a section
    around that one has, moves out there, unless one of that name is there already. A whole that is wrapped in one more
    key is unwrapped; a whole that is the inside of `zero_optimization` gets that key around it.
    """
    lines, repairs = dict(lines), []
    names = list(values)
    inner = values[names[0]] if len(names) == 1 and not is_known((names[0],)) else None
    if isinstance(inner, dict) and any(is_known((key,)) for key in inner):
        repairs.append(Repair(lines[(names[0],)], f'read the inside of "{names[0]}" as the whole'))
        values, lines = inner, {path[1:]: line for path, line in lines.items() if len(path) > 1}
    elif values and all(is_known((ZERO, key)) and not is_known((key,)) for key in values):
        first = min(lines.values())
        repairs.append(Repair(first, f'read the whole as the inside of "{ZERO}"'))
        values = {ZERO: values}
        lines = {(ZERO,): first, **{(ZERO, *path): line for path, line in lines.items()}}
    # A section that has moved out may hold keys that belong farther out: search again from the start.
    while (found := next(_misplaced((), values, [values]), None)) is not None:
        path, home = found
        source, target = _inside(values, path[:-1]), _inside(values, home)
        target[path[-1]] = source.pop(path[-1])
        words = f'moved "{path[-1]}" out of {".".join(path[:-1])}; it belongs {place(".".join(home))}'
        repairs.append(Repair(lines[path], words))
        for old in [each for each in lines if each[: len(path)] == path]:
            lines[home + path[-1:] + old[len(path) :]] = lines.pop(old)
    return values, lines, repairs


def _misplaced(at: KeyPath, section: _Values, around: list[_Values]) -> Iterator[tuple[KeyPath, KeyPath]]:
    """Yield each misplaced key's path and its right section; `around`: the whole and the sections on the way."""
    for key, value in section.items():
        path = (*at, key)
        if is_known(path):
            if isinstance(value, dict):
                yield from _misplaced(path, value, [*around, value])
            continue
        homes = (depth for depth in range(len(at) - 1, -1, -1) if is_known((*at[:depth], key)))
        depth = next(homes, None)
        if depth is not None and key not in around[depth]:
            yield path, at[:depth]


def _inside(whole: _Values, path: KeyPath) -> _Values:
    for name in path:
        whole = whole[name]
    return whole
