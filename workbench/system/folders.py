"""The user's folders: where runs lie, where what was measured once is kept, and "~" written out.

The cache is only a cache: every reader does without what is not there or cannot be read, and a folder that cannot be
written costs time, never a run.
"""

from __future__ import annotations

import os
from pathlib import Path

from workbench.errors import ConfigurationError
from workbench.system.files import write_atomically


def runs_root(option: Path | None) -> Path:
    """Return the folder that runs lie in: `option` (--runs), else WORKBENCH_RUNS, else ./runs.

    Raises ConfigurationError where it begins with a home that is not there.
    """
    if option is not None:
        return expanded(option, "--runs")
    return expanded(os.environ.get("WORKBENCH_RUNS") or "runs", "WORKBENCH_RUNS")


def expanded(path: str | Path, named: str) -> Path:
    """Return `path` with its home folder written out; `named`: the option or field that gave it ("--runs").

    Raises:
        ConfigurationError: it begins with "~" and there is no such home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = Path(path).parts[0]
        whose = (
            f"user {home[1:]} has no home folder here" if len(home) > 1 else "you have no home folder here"
        )
        raise ConfigurationError(
            f'{named} = "{path}": {whose}; write the whole path instead of {home}'
        ) from None


NOWHERE = Path(os.devnull, "workbench")
"""The path of a folder that can neither be read nor created."""


def cache_folder() -> Path:
    """Return the folder of the cache, which need not exist; without a home, one that can never exist."""
    named = os.environ.get("WORKBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path("~/.cache").expanduser()) / "workbench"
    except RuntimeError:
        return NOWHERE


def read_cached(name: str) -> str | None:
    """Return the text cached as `name` ("model profiles/abc.json"); None where it cannot be read."""
    try:
        return (cache_folder() / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def write_cached(name: str, text: str) -> Path | None:
    """Cache `text` as `name`; return its path, or None where the folder cannot be written."""
    path = cache_folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError:
        return None
    return path
