"""The user's own keys: `keymap.toml` beside their presets, actions by name.

    [keys]
    "runs.stop" = "S"
    "chart.zoom_in" = "plus,z"

Invariant: a wrong line costs that line and a sentence, never the screen.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

FILE_NAME = "keymap.toml"
MODIFIERS = ("ctrl", "shift", "alt", "super", "hyper", "meta")
EXPECTED = 'expected a key such as "S", "f7" or "ctrl+t"'

Places = Iterable[Mapping[str, str]]
"""Of each place that keys are bound in: its actions by their names, with their keys, "q,escape"."""


class Keymap(NamedTuple):
    """`keys`: by an action's name, as Textual's `set_keymap` takes them. `problems`: one sentence each."""

    keys: dict[str, str]
    problems: tuple[str, ...]


def read_keymap(path: Path, places: Places) -> Keymap:
    """The keys in `path`, with the actions of `places` as those that there are; none where there is no such file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Keymap({}, ())
    except OSError as error:
        return Keymap({}, (f"{path}: cannot be read: {error.strerror or error}",))
    except (ValueError, RecursionError) as error:
        return Keymap({}, (f"{path}: is no TOML: {error}",))
    table = document.get("keys")
    if not isinstance(table, dict):
        return Keymap({}, (f'{path}: needs a table [keys] with lines such as "runs.stop" = "S"',))
    places = tuple(places)
    known = {name for place in places for name in place}
    keys: dict[str, str] = {}
    problems = []
    for name, key in table.items():
        problem = _problem(name, key, known)
        if problem:
            problems.append(f"{path}: {problem}")
        else:
            keys[name] = ",".join(_parts(key))
    problems += [f"{path}: {said}" for said in dict.fromkeys(_clashes(keys, places))]
    return Keymap(keys, tuple(problems))


def _problem(name: str, key: object, known: set[str]) -> str:
    """What is wrong with one line; empty where nothing is."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        if isinstance(key, dict):
            hint = f'; names with a point are written in quotes: "{name}.{next(iter(key), "")}" = "S"'
        return f'keys."{name}": there is no such action{hint}'
    if not isinstance(key, str) or not _parts(key):
        return f'keys."{name}" = {key!r}: {EXPECTED}'
    wrong = next((part for part in _parts(key) if not _is_key(part)), None)
    if wrong is None:
        return ""
    near = difflib.get_close_matches(wrong, _named_keys(), n=1)
    hint = f'did you mean "{near[0]}"?' if near else EXPECTED
    return f'keys."{name}" = "{key}": there is no key "{wrong}"; {hint}'


def _parts(keys: str) -> list[str]:
    return [part.strip() for part in keys.split(",") if part.strip()]


def _is_key(key: str) -> bool:
    """Whether Textual has a key of this name."""
    from textual.keys import key_to_character

    *modifiers, base = key.split("+") if len(key) > 1 else [key]
    if not set(modifiers) <= set(MODIFIERS):
        return False
    return len(base) == 1 or base in _named_keys() or key_to_character(base) is not None


def _named_keys() -> list[str]:
    from textual.keys import KEY_NAME_REPLACEMENTS, Keys

    return [*(str(key.value) for key in Keys), *KEY_NAME_REPLACEMENTS.values()]


def _clashes(keys: Mapping[str, str], places: Places) -> Iterator[str]:
    """A sentence for each key that the user gave to one action and that means another one in the same place."""
    for place in places:
        taken: dict[str, str] = {}
        for name in sorted(place, key=keys.__contains__):  # the user's own last
            for key in _parts(keys.get(name, place[name])):
                other = taken.setdefault(key, name)
                if other != name and name in keys:
                    yield f'keys."{name}" = "{keys[name]}": "{key}" is the key of "{other}", too'
