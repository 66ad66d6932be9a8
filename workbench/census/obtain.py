"""The census of a model and the times of its pieces: shipped, else kept from before, else taken in a helper process.

The helper has torch and the blocks in it; this process imports neither.

Invariant: what is kept is found by what it depends on and nothing else: the [model] table, the versions that build
it, and for times the machine and the sizes. What cannot be read is taken anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.cache import read_cached, write_cached
from workbench.census.helper_process import Tell, ask_helper
from workbench.plan.census import VERSION, Census, census_key
from workbench.plan.time.kept_times import keep_times, read_times
from workbench.plan.time.times import TIMES_VERSION, ModelTimes
from workbench.probe.fingerprint import resolved_device

BUILDERS = ("torch", "transformers")
Ask = Callable[[Mapping[str, Any], Tell], Any]
"""Asks a helper process a question; see `workbench.census.helper_process`."""


def obtain_census(
    model_table: Mapping[str, Any], tell: Tell, *, take: bool = True, ask: Ask | None = None
) -> Census | None:
    """The census of the model that a [model] table asks for; `tell` is given a sentence where one has to be taken.

    None where none is known and `take` is False. One that lacks something is not kept: there may be more memory later.
    `ask`: how it is asked for; without it of a process that is gone afterwards.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: the helper process failed.
    """
    table = essential(model_table)
    known = read_shipped(table)
    name = f"censuses/{_key(table)}.json"
    if known is None:
        known = _parsed_census(read_cached(name))
    if known is not None or not take:
        return known
    tell(f"taking the census of {_called(table)}: once, some 30 s for a large model")
    answer = (ask or ask_helper)({"ask": "census", "model": table}, tell)
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
    content = json.dumps([TIMES_VERSION, fingerprint, _key(table), sizes], sort_keys=True)
    key = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
    known = read_times(key, len(census.kinds))
    if known is not None or not take:
        return known
    tell(f"timing the pieces of {_called(table)} at this size: once, up to a minute")
    question = {
        "ask": "times",
        "model": table,
        "census": census.model_dump(mode="json"),
        **sizes,
        "fingerprint": fingerprint,
        "budget_s": budget_s,
    }
    times = ModelTimes.model_validate(ask_helper(question, tell))
    keep_times(key, times)
    return times


def _called(table: Mapping[str, Any]) -> str:
    """The model of an essential table in words: "gpt2", or "Llama-2-7b-hf" of a folder or an id that ends so."""
    name = str(table["architecture"] or table["pretrained"]).rstrip("/").rpartition("/")[2]
    return name or "the model"


def essential(model_table: Mapping[str, Any]) -> dict[str, Any]:
    """A [model] table with what it says of the model, whether its defaults are written out or not.

    Where it describes the model, the files of pretrained weights have nothing to add.
    """
    described = bool(model_table.get("architecture"))
    pretrained = "" if described else str(model_table.get("pretrained") or "")
    table: dict[str, Any] = {
        "architecture": model_table.get("architecture") or "",
        "pretrained": pretrained,
        "trust_remote_code": bool(pretrained) and bool(model_table.get("trust_remote_code", False)),
        "config": dict(model_table.get("config") or {}),
    }
    if pretrained:
        table["revision"] = model_table.get("revision") or ""
        table["description"] = _digest(pretrained)
    adapter = model_table.get("adapter")
    if adapter:
        # What its scale or its dropout is changes no amount, only whether it drops.
        table["adapter"] = {
            "rank": adapter["rank"],
            "dropout": bool(adapter["dropout"]),
            "targets": sorted(set(adapter["targets"])),
        }
    return table


def _key(table: Mapping[str, Any]) -> str:
    """What an essential table's census is kept under: of files that are here what they say, and not where they are."""
    named = {**table, "pretrained": "", "revision": ""} if table.get("description") else table
    return census_key(named, _versions())


def _digest(pretrained: str) -> str:
    """Of the description in a folder, which may change under its name; empty for an id of the hub."""
    try:
        text = (Path(pretrained).expanduser() / "config.json").read_bytes()
    except (OSError, RuntimeError, ValueError):
        return ""
    return hashlib.blake2b(text, digest_size=12).hexdigest()


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


def _versions() -> list[str]:
    """Major and minor versions of what builds a model and runs its blocks; "N/A" of what is not installed."""
    return [".".join(_version(name).split("+")[0].split(".")[:2]) for name in BUILDERS]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "N/A"
