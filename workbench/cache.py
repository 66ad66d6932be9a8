"""Where what was measured once is kept: `$WORKBENCH_CACHE`, else `workbench` in the user's cache folder.

A cache only: every reader does without what is not there or cannot be read, and a folder that cannot be written costs
time, never a run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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
    """The text kept as `name` ("censuses/abc.json"); None where there is none that can be read."""
    try:
        return (cache_folder() / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def write_cached(name: str, text: str) -> Path | None:
    """Keep `text` as `name`, whole or not at all; its path, or None where the folder cannot be written."""
    path = cache_folder() / name
    temporary = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return None
    return path
