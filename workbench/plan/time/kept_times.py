"""The times of models' pieces on this machine, as they are kept in the cache. No torch.

Invariant: what cannot be read, or has other pieces than are asked for, is as if it were not there.
"""

from __future__ import annotations

import contextlib

from pydantic import ValidationError

from workbench.plan.time.times import ModelTimes
from workbench.system.folders import cache_folder, read_cached, write_cached

FOLDER = "times"


def read_times(key: str, kinds: int) -> ModelTimes | None:
    """What is kept under `key`, of a model with so many kinds of blocks."""
    times = _parsed(read_cached(_name(key)))
    return times if times is not None and len(times.kinds) == kinds else None


def keep_times(key: str, times: ModelTimes) -> None:
    write_cached(_name(key), times.model_dump_json(indent=1) + "\n")


def forget_busy_times() -> int:
    """Throw away all that was timed while others kept the machine busy; how many models' times that were."""
    forgotten = 0
    with contextlib.suppress(OSError):
        for path in sorted((cache_folder() / FOLDER).glob("*.json")):
            times = _parsed(read_cached(f"{FOLDER}/{path.name}"))
            if times is not None and times.busy:
                path.unlink()
                forgotten += 1
    return forgotten


def _name(key: str) -> str:
    return f"{FOLDER}/{key}.json"


def _parsed(text: str | None) -> ModelTimes | None:
    try:
        return None if text is None else ModelTimes.model_validate_json(text)
    except ValidationError:
        return None
