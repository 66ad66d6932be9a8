"""Where presets are found: a path, or a name in the project's, the user's or the shipped folder.

A name always means the first file that carries it, in this order: one's own preset hides a shipped one of
the same name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workbench.errors import ConfigurationError

if TYPE_CHECKING:
    from workbench.config import RunConfig

Origin = Literal["project", "user", "shipped"]


class Preset(NamedTuple):
    """A preset that can be named. A broken one has an `error` and no description."""

    name: str
    path: Path
    origin: Origin
    description: str
    error: str | None


def find_preset(name: str) -> Path:
    """The file that `name` (a path, or a preset's name with or without .toml) means.

    Raises ConfigurationError with the nearest names when there is none.
    """
    path = Path(name)
    if _is_file(path):
        return path
    if os.sep not in name and (os.altsep is None or os.altsep not in name):
        for known, (found, _) in _named().items():
            if known == name.removesuffix(".toml"):
                return found
    if _is_folder(path):
        raise ConfigurationError(f"{name}: is a folder; name a preset file in it")
    raise ConfigurationError(f"{name}: there is no such preset; {nearest_presets(path.stem)}")


def changed_preset(text: str, before: RunConfig, after: RunConfig) -> str:
    """The preset `text`, which says `before`, so that it says `after`: its comments and its order are kept."""
    import tomlkit

    document: Any = tomlkit.parse(text)
    old_tables, new_tables = before.model_dump(), after.model_dump()
    for table, new in new_tables.items():
        old = old_tables[table]
        if new == old or new is None:
            continue
        if not isinstance(new, dict):
            _put(document, table, new)
            continue
        if table not in document:
            document[table] = tomlkit.table()
        for key, value in new.items():
            if old is None or old[key] != value:
                _put(document[table], key, value)
    return tomlkit.dumps(document)


def _put(table: Any, key: str, value: Any) -> None:
    """Set a key; the comment behind it stays, and of an inner table the keys that are the same."""
    if isinstance(value, dict) and isinstance(table.get(key), dict):
        for inner in [name for name in table[key] if name not in value]:
            del table[key][inner]
        for inner, each in value.items():
            if table[key].get(inner) != each:
                _put(table[key], inner, each)
        return
    table[key] = list(value) if isinstance(value, tuple) else value


def nearest_presets(name: str) -> str:
    """A half sentence that points from a name that is not there to those that are."""
    names = sorted(_named())
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5) or names
    if not near:
        return "no presets were found; name a TOML file"
    quoted = " or ".join(f'"{known}"' for known in near)
    return f"did you mean {quoted}? (`workbench presets` lists them)"


def list_presets() -> list[Preset]:
    """Every preset that can be named, by name; a broken one is listed with what is wrong with it."""
    from workbench.config import load_config

    presets = []
    for name, (path, origin) in sorted(_named().items()):
        try:
            presets.append(Preset(name, path, origin, load_config(path).description, None))
        except ConfigurationError as error:
            presets.append(Preset(name, path, origin, "", str(error)))
    return presets


def user_folder() -> Path | None:
    """WORKBENCH_PRESETS, else workbench/presets in the user's configuration folder; None without a home."""
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
    """The presets that come with workbench: inside the installed package, or beside it in a checkout."""
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
    """The file behind each name."""
    named: dict[str, tuple[Path, Origin]] = {}
    for folder, origin in _folders():
        try:
            files = sorted(folder.glob("*.toml"))
        except OSError:  # a folder that may not be read has no presets
            continue
        for path in files:
            named.setdefault(path.stem, (path, origin))
    return named


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
