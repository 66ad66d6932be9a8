"""Find and keep presets: by a path, or by a name in the project's, the user's or the shipped folder.

A name always means the first file that carries it, in this order: one's own preset hides a shipped one of the same
name. Those that come with workbench are never written or deleted.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workbench.errors import ConfigurationError
from workbench.system.files import write_atomically
from workbench.system.folders import read_cached, write_cached
from workbench.system.foreign import parse_json

if TYPE_CHECKING:
    from workbench.config import RunConfig

Origin = Literal["project", "user", "shipped"]

LONGEST_NAME = 100
MOST_RECENT = 50
FIRST = "quickstart"
"""Trains anywhere, in minutes, with nothing to fetch."""
_RECENT = "recent-presets.json"
_IN_A_NAME = frozenset(string.ascii_letters + string.digits + "._-")


class Preset(NamedTuple):
    """A preset that can be named. A broken one has an `error` and no description."""

    name: str
    path: Path
    origin: Origin
    description: str
    error: str | None


def find_preset(name: str) -> Path:
    """Return the file that `name` (a path, or a preset's name with or without .toml) means.

    Raises ConfigurationError with the nearest names, or of a path with the nearest file, when there is none.
    """
    path = Path(name)
    if _is_file(path):
        return path
    in_a_folder = os.sep in name or (os.altsep is not None and os.altsep in name)
    if not in_a_folder:
        for known, (found, _) in _named().items():
            if known == name.removesuffix(".toml"):
                return found
    if _is_folder(path):
        raise ConfigurationError(f"{name}: is a folder; name a preset file in it")
    if in_a_folder or name.endswith(".toml"):
        raise ConfigurationError(f"{name}: there is no such file{_nearest_file(path)}")
    raise ConfigurationError(f"{name}: there is no such preset; {_nearest_presets(path.stem)}")


def _nearest_file(path: Path) -> str:
    """Return how a message about a file that is not there goes on: a file or a preset that is called nearly so."""
    there = _is_folder(path.parent)
    with contextlib.suppress(OSError):  # a folder that may not be read
        beside = (
            sorted(each.name for each in path.parent.glob("*.toml") if each.name != "pyproject.toml")
            if there
            else []
        )
        if near := difflib.get_close_matches(path.name, beside, n=1):
            return f"; did you mean {path.parent / near[0]}?"
    names = _near_names(path.stem, _named())
    hint = _did_you_mean(names) if names else "`workbench presets` lists those that have a name"
    return f"; {hint}" if there else f", nor a folder {path.parent}; {hint}"


def changed_preset(text: str, before: RunConfig, after: RunConfig) -> str:
    """Return the preset `text`, which holds `before`, changed to hold `after`; comments and order are kept."""
    edits: dict[str, Any] = {}
    old_tables, new_tables = before.model_dump(), after.model_dump()
    for table, new in new_tables.items():
        old = old_tables[table]
        if new == old or new is None:
            continue
        if not isinstance(new, dict):
            edits[table] = new
            continue
        edits |= {f"{table}.{key}": value for key, value in new.items() if old is None or old[key] != value}
    return edited_preset(text, edits)


def edited_preset(text: str, edits: Mapping[str, Any]) -> str:
    """Return the preset `text` with the values of `edits`, by "table.key" or "key"; None takes one away.

    Comments and order are kept. `text` is valid TOML; whether it is a right preset does not matter.
    """
    import tomlkit

    document: Any = tomlkit.parse(text)
    for name, value in edits.items():
        table, _, key = name.partition(".")
        if not key:
            _put(document, table, value)
            continue
        if not isinstance(document.get(table), dict):
            if value is None:
                continue
            document[table] = tomlkit.table()
        _put(document[table], key, value)
    changed: str = tomlkit.dumps(document)
    return changed


def _put(table: Any, key: str, value: Any) -> None:
    """Set a key, or take it away (None). The comment behind it stays, and so do the same keys of an inner table."""
    if value is None:
        table.pop(key, None)
        return
    if isinstance(value, dict) and isinstance(table.get(key), dict):
        for inner in [name for name in table[key] if name not in value]:
            del table[key][inner]
        for inner, each in value.items():
            if table[key].get(inner) != each:
                _put(table[key], inner, each)
        return
    table[key] = list(value) if isinstance(value, tuple) else value


def save_preset(name: str, text: str, *, replace: bool = False) -> Path:
    """Keep `text` as the user's own preset `name`, whole or not at all; return its path.

    Raises:
        ConfigurationError: the name cannot be a file's, is there already and not to be replaced, or cannot be written.
    """
    folder = user_folder()
    if folder is None:
        raise ConfigurationError("there is no home to keep presets in; WORKBENCH_PRESETS names a folder")
    name = name.strip().removesuffix(".toml")
    if not name or not set(name) <= _IN_A_NAME or name.startswith((".", "-")) or len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f'"{name}" cannot be a preset\'s name; use letters, digits, ".", "-" and "_", not "." or "-" first'
        )
    path = folder / f"{name}.toml"
    if path.exists() and not replace:
        raise ConfigurationError(f"{path}: already exists; give another name")
    _write(path, text)
    return path


def overwrite_preset(path: Path, text: str) -> None:
    """Put `text` in the place of one's own preset at `path`, whole or not at all.

    Raises:
        ConfigurationError: it came with workbench, or cannot be written.
    """
    if is_shipped(path):
        raise ConfigurationError(
            f"{path}: is shipped with workbench and is never changed; save it under a name"
        )
    _write(path, text)


def duplicate_preset(path: Path, name: str = "") -> Path:
    """Copy the preset at `path`, whatever is in it, into the user's folder: as `name`, else as the first that is free.

    Raises:
        ConfigurationError: it cannot be read, or see `save_preset`.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be copied: {error}") from error
    return save_preset(name or free_name(path.stem), text)


def free_name(name: str) -> str:
    """Return a name like `name` that no preset has: "NAME-2" and on."""
    taken = _named()
    return next(made for number in count(2) if (made := f"{name}-{number}") not in taken)


def delete_preset(path: Path) -> None:
    """Delete one's own preset.

    Raises:
        ConfigurationError: it is none, it came with workbench, or the file cannot be deleted.
    """
    owned = {found.resolve() for found, origin in _named().values() if origin != "shipped"}
    if is_shipped(path) or path.resolve() not in owned:
        raise ConfigurationError(f"{path}: only presets of the project or of your own are deleted")
    try:
        path.unlink()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be deleted: {error.strerror or error}") from error


def is_shipped(path: Path) -> bool:
    """Return True for a file that comes with workbench."""
    return path.resolve().parent == shipped_folder().resolve()


def remember_preset(path: Path) -> None:
    """Note that a preset was used now; nothing where that cannot be kept."""
    absolute = str(path.absolute())
    known = [absolute, *(each for each in map(str, recent_presets()) if each != absolute)]
    write_cached(_RECENT, json.dumps(known[:MOST_RECENT]) + "\n")


def recent_presets() -> list[Path]:
    """Return the files of the presets used last, the newest first; they need not be there any more."""
    try:
        known = parse_json(read_cached(_RECENT) or "[]")
    except ValueError:
        return []
    return [Path(each) for each in known if isinstance(each, str)] if isinstance(known, list) else []


def _nearest_presets(name: str) -> str:
    """Return a hint from a name that is not there to those that are."""
    names = sorted(_named(), key=_place_of)
    if not names:
        return "no presets were found; name a TOML file"
    near = _near_names(name, names)
    return _did_you_mean(near) if near else f"the presets are {', '.join(names)}; or name a TOML file"


def list_presets() -> list[Preset]:
    """Return every preset that can be named, by family and size, but for the first to try, which comes first.

    A broken one is listed with what is wrong with it.
    """
    from workbench.config import (
        load_config,
    )  # pydantic's import takes as long as half of the screen's first picture

    presets = []
    for name, (path, origin) in _named().items():
        try:
            presets.append(Preset(name, path, origin, load_config(path).description, None))
        except ConfigurationError as error:
            presets.append(Preset(name, path, origin, "", str(error)))
    return sorted(presets, key=lambda preset: _place_of(preset.name))


def user_folder() -> Path | None:
    """Return WORKBENCH_PRESETS, else workbench/presets in the user's configuration folder; None without a home."""
    named = os.environ.get("WORKBENCH_PRESETS")
    if named:
        return Path(named)
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if configured.is_absolute():
        return configured / "workbench" / "presets"
    try:
        return Path.home() / ".config" / "workbench" / "presets"
    except RuntimeError:
        return None


def shipped_folder() -> Path:
    """Return the folder of the shipped presets: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "_presets"
    return installed if installed.is_dir() else package.parent / "presets"


def _folders() -> Iterator[tuple[Path, Origin]]:
    shipped = shipped_folder()
    project = Path("presets")
    user = user_folder()
    if project.absolute().resolve() != shipped.resolve():
        yield project, "project"
    if user is not None:
        yield user, "user"
    yield shipped, "shipped"


def _named() -> dict[str, tuple[Path, Origin]]:
    """Return the file and the origin of each name."""
    named: dict[str, tuple[Path, Origin]] = {}
    for folder, origin in _folders():
        try:
            files = sorted(folder.glob("*.toml"))
        except OSError:  # a folder that may not be read has no presets
            continue
        for path in files:
            named.setdefault(path.stem, (path, origin))
    return named


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):  # a name too long, a folder that may not be entered, a NUL
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


# Names

_PARTS = re.compile(r"(\d+(?:\.\d+)?)([mbt](?![a-z]))?|([^\d]+)")
_SIZES = {"m": 1e6, "b": 1e9, "t": 1e12}


def _place_of(name: str) -> tuple[bool, list[tuple[int, float, str]]]:
    """Return the key to sort by: the first to try, then by family and size ("gpt2-124m" before "gpt2-1.5b")."""
    parts: list[tuple[int, float, str]] = []
    for number, unit, text in _PARTS.findall(name.lower()):
        parts.append((0, float(number) * _SIZES.get(unit, 1.0), unit) if number else (1, 0.0, text))
    return name != FIRST, [*parts, (0, 0.0, name)]


def _near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that `name` may have meant, the likeliest first; at most three."""
    return difflib.get_close_matches(name.lower(), sorted(names), n=3, cutoff=0.5)


def _did_you_mean(near: list[str]) -> str:
    """Return a question with the names of `near`, of which there is one at least."""
    quoted = " or ".join(f'"{known}"' for known in near)
    return f"did you mean {quoted}? (`workbench presets` lists them)"
