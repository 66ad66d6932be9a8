"""The user's own keys: `keymap.toml` beside their presets, actions by name.

    [keys]
    "runs.stop" = "S"
    "chart.zoom_in" = "plus,z"

Invariant: a wrong line costs that line and a sentence, never the screen.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

FILE_NAME = "keymap.toml"


class Keymap(NamedTuple):
    """`keys`: by an action's name, as Textual's `set_keymap` takes them. `problems`: one sentence each."""

    keys: dict[str, str]
    problems: tuple[str, ...]


def read_keymap(path: Path, names: Iterable[str]) -> Keymap:
    """The keys in `path`, of which `names` are the actions that there are; none where there is no such file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Keymap({}, ())
    except OSError as error:
        return Keymap({}, (f"{path}: cannot be read: {error.strerror or error}",))
    except ValueError as error:
        return Keymap({}, (f"{path}: is no TOML: {error}",))
    table = document.get("keys")
    if not isinstance(table, dict):
        return Keymap({}, (f'{path}: needs a table [keys] with lines such as "runs.stop" = "S"',))
    known = set(names)
    keys: dict[str, str] = {}
    problems = []
    for name, key in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            problems.append(f'{path}: keys."{name}": there is no such action{hint}')
        elif not isinstance(key, str) or not key.strip():
            problems.append(f'{path}: keys."{name}" = {key!r}: expected a key such as "S", "f7" or "ctrl+t"')
        else:
            keys[name] = ",".join(part.strip() for part in key.split(",") if part.strip())
    return Keymap(keys, tuple(problems))
