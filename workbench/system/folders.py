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
    """The folder that runs lie in: `option` (--runs), else WORKBENCH_RUNS, else ./runs.

    Raises ConfigurationError where it begins with a home that is not there.
    """
    if option is not None:
        return expanded(option, "--runs")
    return expanded(os.environ.get("WORKBENCH_RUNS") or "runs", "WORKBENCH_RUNS")


def expanded(path: str | Path, named: str) -> Path:
    """`path` with its home folder written out; `named` is what gave it, as messages call it: "offload.disk_path".

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
"""What can neither be read nor made."""


def cache_folder() -> Path:
    """The folder, which need not be there yet; one that can never be where this user has no home to put it in."""
    named = os.environ.get("WORKBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path("~/.cache").expanduser()) / "workbench"
    except RuntimeError:
        return NOWHERE


def read_cached(name: str) -> str | None:
    """The text kept as `name` ("model profiles/abc.json"); None where there is none that can be read."""
    try:
        return (cache_folder() / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def write_cached(name: str, text: str) -> Path | None:
    """Keep `text` as `name`, whole or not at all; its path, or None where the folder cannot be written."""
    path = cache_folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError:
        return None
    return path
