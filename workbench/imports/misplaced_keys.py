"""Keys that stand where DeepSpeed has no such key, and would have a meaning elsewhere: read there, and told.

That is how configurations look whose braces were lost, or that were cut out of something larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.imports import placement
from workbench.imports.forgiving_json import KeyPath, Repair
from workbench.imports.key_names import is_known, place


def settled(
    values: dict[str, Any], lines: Mapping[KeyPath, int]
) -> tuple[dict[str, Any], dict[KeyPath, int], list[Repair]]:
    """The file with its keys where DeepSpeed has them, their lines, and what was moved.

    A whole that is wrapped in one key more is unwrapped; one that is the inside of a section gets it; a key that its
    section does not have, and a section around that one does, moves out there, unless something stands there already.
    """
    moved = dict(lines)
    repairs: list[Repair] = []
    values, moved = _unwrapped(values, moved, repairs)
    values, moved = _wrapped(values, moved, repairs)
    _move_out((), values, moved, repairs, values)
    return values, moved, repairs


def _unwrapped(
    values: dict[str, Any], lines: dict[KeyPath, int], repairs: list[Repair]
) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    for name, inner in values.items():
        alone = len(values) == 1 and not is_known((name,))
        if alone and isinstance(inner, dict) and any(is_known((key,)) for key in inner):
            repairs.append(Repair(lines[(name,)], f'read what stands in "{name}" as the whole'))
            return inner, {path[1:]: line for path, line in lines.items() if len(path) > 1}
    return values, lines


def _wrapped(
    values: dict[str, Any], lines: dict[KeyPath, int], repairs: list[Repair]
) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    if not values or any(is_known((key,)) for key in values):
        return values, lines
    for section in (placement.ZERO,):
        if all(is_known((section, key)) for key in values):
            first = min(lines.values())
            repairs.append(Repair(first, f'read the whole as the inside of "{section}"'))
            return {section: values}, {(section,): first} | {
                (section, *path): line for path, line in lines.items()
            }
    return values, lines


def _move_out(
    at: KeyPath,
    section: dict[str, Any],
    lines: dict[KeyPath, int],
    repairs: list[Repair],
    whole: dict[str, Any],
) -> None:
    for key in list(section):
        path = (*at, key)
        value = section[key]
        if not is_known(path):
            home = next((at[:n] for n in range(len(at) - 1, -1, -1) if is_known((*at[:n], key))), None)
            outer = _inside(whole, home) if home is not None else None
            if home is None or outer is None or key in outer:
                continue
            repairs.append(
                Repair(
                    lines[path], f'moved "{key}" out of {".".join(at)}; it belongs {place(".".join(home))}'
                )
            )
            outer[key] = section.pop(key)
            for old in [known for known in lines if known[: len(path)] == path]:
                new = (*home, key, *old[len(path) :])
                lines[new] = lines.pop(old)
        elif isinstance(value, dict):
            _move_out(path, value, lines, repairs, whole)


def _inside(whole: dict[str, Any], path: KeyPath) -> dict[str, Any] | None:
    inner: Any = whole
    for name in path:
        inner = inner.get(name) if isinstance(inner, dict) else None
    return inner if isinstance(inner, dict) else None
