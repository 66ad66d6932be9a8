"""Paths as people write them: "~" and "~name" written out. On its own, so that a start is not held up by it.

Invariant: a home that is not there is one sentence, whoever asked.
"""

from __future__ import annotations

from pathlib import Path

from workbench.errors import ConfigurationError


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
