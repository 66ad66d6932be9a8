"""The census of a model and the times of its pieces: shipped, else kept from before, else taken in a helper process.

The helper has torch and the blocks in it and is gone afterwards; this process imports neither.

Invariant: what is kept is found by what it depends on and nothing else: the [model] table, the versions that build
it, and for times the machine and the sizes. What cannot be read is taken anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib import metadata, resources
from typing import Any

from pydantic import ValidationError

from workbench.cache import read_cached, write_cached
from workbench.census.helper_process import ask_helper
from workbench.plan.census import VERSION, Census, census_key
from workbench.plan.times import ModelTimes
from workbench.probe.fingerprint import resolved_device

BUILDERS = ("torch", "transformers")
Tell = Callable[[str], None]


def obtain_census(model_table: Mapping[str, Any], tell: Tell, *, take: bool = True) -> Census | None:
    """The census of the model that a [model] table asks for; `tell` is given a sentence where one has to be taken.

    None where none is known and `take` is False. One that lacks something is not kept: there may be more memory later.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: the helper process failed.
    """
    table = essential(model_table)
    known = read_shipped(table)
    name = f"censuses/{census_key(table, _versions())}.json"
    if known is None:
        known = _parsed_census(read_cached(name))
    if known is not None or not take:
        return known
    tell("taking the census of the model, which is kept for the next time")
    answer = ask_helper({"ask": "census", "model": table}, tell)
    census = Census.model_validate(answer)
    if not any(kind.problem for kind in census.kinds):
        write_cached(name, census_text(census))
    return census


def obtain_times(
    model_table: Mapping[str, Any],
    census: Census,
    *,
    fingerprint: str,
    sequences: int,
    tokens: int,
    dtype: str,
    device: str,
    tell: Tell,
    take: bool = True,
    budget_s: float = 30.0,
) -> ModelTimes | None:
    """The times of the model's pieces on the machine of that `fingerprint`, which is this one where they are taken.

    `sequences`, `tokens`, `dtype`, `device`, `budget_s`: see `workbench.census.measure.measure_times`. None where none
    are known and `take` is False.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: the helper process failed, or a block of each kind does not fit in memory.
    """
    table = essential(model_table)
    # By its own name, so that "auto" and what it means are one.
    sizes = {"sequences": sequences, "tokens": tokens, "dtype": dtype, "device": resolved_device(device)}
    content = json.dumps([fingerprint, census_key(table, _versions()), sizes], sort_keys=True)
    name = f"times/{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}.json"
    known = _parsed_times(read_cached(name), len(census.kinds))
    if known is not None or not take:
        return known
    tell("timing the model's pieces, which is kept for the next time")
    question = {
        "ask": "times",
        "model": table,
        "census": census.model_dump(mode="json"),
        **sizes,
        "fingerprint": fingerprint,
        "budget_s": budget_s,
    }
    times = ModelTimes.model_validate(ask_helper(question, tell))
    write_cached(name, times.model_dump_json(indent=1) + "\n")
    return times


def essential(model_table: Mapping[str, Any]) -> dict[str, Any]:
    """A [model] table with what it says, whether its defaults are written out or not."""
    return {
        "architecture": model_table.get("architecture") or "",
        "pretrained": model_table.get("pretrained") or "",
        "trust_remote_code": bool(model_table.get("trust_remote_code", False)),
        "config": dict(model_table.get("config") or {}),
    }


def shipped_name(model_table: Mapping[str, Any]) -> str:
    """The file name under which the census of a shipped preset's model is shipped."""
    return f"{census_key(essential(model_table))}.json"


def read_shipped(model_table: Mapping[str, Any]) -> Census | None:
    """The census that comes with Workbench; None where this model has none."""
    path = resources.files("workbench.plan") / "censuses" / shipped_name(model_table)
    try:
        return _parsed_census(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def census_text(census: Census) -> str:
    """The census as it is kept; the same bytes for the same census."""
    content = {"version": census.version, **census.model_dump(mode="json", exclude_defaults=True)}
    return json.dumps(content, indent=1) + "\n"


def _parsed_census(text: str | None) -> Census | None:
    if text is None:
        return None
    try:
        census = Census.model_validate_json(text)
    except ValidationError:
        return None
    return census if census.version == VERSION else None


def _parsed_times(text: str | None, kinds: int) -> ModelTimes | None:
    if text is None:
        return None
    try:
        times = ModelTimes.model_validate_json(text)
    except ValidationError:
        return None
    return times if len(times.kinds) == kinds else None


def _versions() -> list[str]:
    """Major and minor versions of what builds a model and runs its blocks; "N/A" of what is not installed."""
    return [".".join(_version(name).split("+")[0].split(".")[:2]) for name in BUILDERS]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "N/A"
