"""Put keys where DeepSpeed has them: a configuration whose braces were lost has them one or more sections too deep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.imports.deepspeed import placement
from workbench.imports.deepspeed.keys import is_known, place
from workbench.imports.lenient_json import KeyPath, Repair

Values = dict[str, Any]
Lines = dict[KeyPath, int]


def put_in_place(values: Values, lines: Mapping[KeyPath, int]) -> tuple[Values, Lines, list[Repair]]:
    """Return the file with its keys where DeepSpeed has them, their lines, and the repairs.

    A whole that is wrapped in one more key is unwrapped; a whole that is the inside of `zero_optimization` gets that
    key around it; a key that its section does not have, and a section around that one has, moves out there, unless
    one of that name is there already.
    """
    lines, repairs = dict(lines), []
    names = list(values)
    inner = values[names[0]] if len(names) == 1 and not is_known((names[0],)) else None
    if isinstance(inner, dict) and any(is_known((key,)) for key in inner):
        repairs.append(Repair(lines[(names[0],)], f'read the inside of "{names[0]}" as the whole'))
        values, lines = inner, {path[1:]: line for path, line in lines.items() if len(path) > 1}
    elif values and all(is_known((placement.ZERO, key)) and not is_known((key,)) for key in values):
        first = min(lines.values())
        repairs.append(Repair(first, f'read the whole as the inside of "{placement.ZERO}"'))
        values = {placement.ZERO: values}
        lines = {(placement.ZERO,): first, **{(placement.ZERO, *path): line for path, line in lines.items()}}
    # A section that has moved out may hold keys that belong farther out: search again from the start.
    while (found := next(_misplaced((), values, [values]), None)) is not None:
        path, home = found
        source, target = _inside(values, path[:-1]), _inside(values, home)
        target[path[-1]] = source.pop(path[-1])
        repairs.append(
            Repair(
                lines[path],
                f'moved "{path[-1]}" out of {".".join(path[:-1])}; it belongs {place(".".join(home))}',
            )
        )
        for old in [each for each in lines if each[: len(path)] == path]:
            lines[home + path[-1:] + old[len(path) :]] = lines.pop(old)
    return values, lines, repairs


def _misplaced(at: KeyPath, section: Values, around: list[Values]) -> Iterator[tuple[KeyPath, KeyPath]]:
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


def _inside(whole: Values, path: KeyPath) -> Values:
    for name in path:
        whole = whole[name]
    return whole
