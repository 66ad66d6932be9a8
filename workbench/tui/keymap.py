"""The user's own keys: `keymap.toml` beside their presets, actions by name.

    [keys]
    "runs.stop" = "S"
    "chart.zoom_in" = "plus,z"

Invariant: a wrong line costs that line and a message, never the screen.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, key_to_character

import workbench.tui
from workbench.system.foreign import parse_toml

FILE_NAME = "keymap.toml"
MODIFIERS = {"ctrl", "shift", "alt", "super", "hyper", "meta"}
KEY_NAMES = {*(str(key.value) for key in Keys), *KEY_NAME_REPLACEMENTS.values()}
EXPECTED = 'expected a key such as "S", "f7" or "ctrl+t"'

Places = Iterable[Mapping[str, str]]
"""For each class of widgets that binds keys: the keys ("q,escape") of its actions, by the actions' names."""


class Keymap(NamedTuple):
    """`keys`: by an action's name, as Textual's `set_keymap` takes them. `problems`: one sentence each."""

    keys: dict[str, str]
    problems: tuple[str, ...]


def bound_classes() -> Iterator[type[DOMNode]]:
    """Import every module of the screen and yield its widget and screen classes."""
    for module in pkgutil.walk_packages(workbench.tui.__path__, "workbench.tui."):
        found = importlib.import_module(module.name)
        for value in vars(found).values():
            if isinstance(value, type) and issubclass(value, DOMNode) and value.__module__ == module.name:
                yield value


def bindings_of(owner: type[DOMNode]) -> dict[str, str]:
    """Return the keys of all named bindings that hold in a class, by name; a base's gives way to one for its keys."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        bindings = vars(each).get("BINDINGS", ()) if issubclass(each, DOMNode) else ()
        own = {each.id: each.key for each in bindings if isinstance(each, Binding) and each.id}
        taken = {key for keys in own.values() for key in _parts(keys)}
        found = {name: keys for name, keys in found.items() if not taken & {*_parts(keys)}} | own
    return found


def places() -> list[dict[str, str]]:
    """Return `bindings_of` every class that has some."""
    return [found for each in bound_classes() if (found := bindings_of(each))]


def read_keymap(path: Path, places: Places) -> Keymap:
    """Return the keys in `path` for the actions of `places`; no keys where there is no such file. Never raises."""
    try:
        document = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Keymap({}, ())
    except OSError as error:
        return Keymap({}, (f"{path}: cannot be read: {error.strerror or error}",))
    except ValueError as error:
        return Keymap({}, (f"{path}: is not valid TOML: {error}",))
    table = document.get("keys")
    if not isinstance(table, dict):
        return Keymap({}, (f'{path}: needs a table [keys] with lines such as "runs.stop" = "S"',))
    places = tuple(places)
    known = {name for place in places for name in place}
    wrong = {name: problem for name, key in table.items() if (problem := _problem(name, key, known))}
    keys = {name: ",".join(_parts(key)) for name, key in table.items() if name not in wrong}
    problems = dict.fromkeys([*wrong.values(), *_clashes(keys, places)])
    return Keymap(keys, tuple(f"{path}: {problem}" for problem in problems))


def _problem(name: str, key: object, known: set[str]) -> str:
    """Return the mistake in one line of the table; empty where there is none."""
    if name not in known:
        if isinstance(key, dict):
            hint = f'; names with a point are written in quotes: "{name}.{next(iter(key), "")}" = "S"'
        else:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
        return f'keys."{name}": there is no such action{hint}'
    if not isinstance(key, str) or not _parts(key):
        return f'keys."{name}" = {key!r}: {EXPECTED}'
    wrong = next((part for part in _parts(key) if not _is_key(part)), None)
    if wrong is None:
        return ""
    near = difflib.get_close_matches(wrong, KEY_NAMES, n=1)
    hint = f'did you mean "{near[0]}"?' if near else EXPECTED
    return f'keys."{name}" = "{key}": there is no key "{wrong}"; {hint}'


def _parts(keys: str) -> list[str]:
    return [part.strip() for part in keys.split(",") if part.strip()]


def _is_key(key: str) -> bool:
    """Tell whether Textual has a key of this name."""
    *modifiers, base = key.split("+") if len(key) > 1 else [key]
    is_known = len(base) == 1 or base in KEY_NAMES or key_to_character(base) is not None
    return is_known and MODIFIERS.issuperset(modifiers)


def _clashes(keys: Mapping[str, str], places: Places) -> Iterator[str]:
    """Yield a sentence for each key of the user's that already stands for another action in the same place."""
    for place in places:
        taken: dict[str, str] = {}
        for name in sorted(place, key=keys.__contains__):  # the user's own last
            for key in _parts(keys.get(name, place[name])):
                other = taken.setdefault(key, name)
                if other != name and name in keys:
                    yield f'keys."{name}" = "{keys[name]}": "{key}" is also the key of "{other}"'
