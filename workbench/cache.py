"""Where what was measured once is kept: `$WORKBENCH_CACHE`, else `workbench` in the user's cache folder.

A cache only: every reader does without what is not there or cannot be read, and a folder that cannot be written costs
time, never a run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def cache_folder() -> Path:
    """The folder, which need not be there yet."""
    named = os.environ.get("WORKBENCH_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "workbench"


def read_cached(name: str) -> str | None:
    """The text kept as `name` ("censuses/abc.json"); None where there is none that can be read."""
    try:
        return (cache_folder() / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def write_cached(name: str, text: str) -> Path | None:
    """Keep `text` as `name`, whole or not at all; its path, or None where the folder cannot be written."""
    path = cache_folder() / name
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return None
    return path
