"""The model profile of a model and the times of its pieces: shipped, else kept from before, else taken in a
helper process.

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

from workbench.errors import WorkbenchError
from workbench.plan.model_profile import VERSION, ModelProfile, model_profile_key
from workbench.plan.time.kept_times import keep_times, read_times
from workbench.plan.time.times import TIMES_VERSION, ModelTimes
from workbench.profiles.machine.fingerprint import resolved_device
from workbench.system.child_process import ChildError, ChildProcess, Report
from workbench.system.folders import read_cached, write_cached

BUILDERS = ("torch", "transformers")
Ask = Callable[[Mapping[str, Any], Report], Any]
"""Asks a process for a model profile or times: a question for `workbench.profiles.model.__main__.answer`."""


def profiling_process(*, warm: bool = False) -> ChildProcess:
    """Return a process that measures models. `warm`: it imports what questions need at once."""
    return ChildProcess("-m", "workbench.profiles.model", *(["warm"] if warm else []))


def ask_once(question: Mapping[str, Any], report: Report) -> Any:
    """Return the answer of a process that is gone afterwards. Raises as `ChildProcess.ask`."""
    with profiling_process() as process:
        return process.ask(question, report)


def obtain_model_profile(
    model_table: Mapping[str, Any], tell: Report, *, take: bool = True, ask: Ask | None = None
) -> ModelProfile | None:
    """Return the model profile of a [model] table; `tell` is given a sentence where it has to be measured.

    None where none is known and `take` is False. One that lacks something is not kept: there may be more memory later.
    `ask`: how it is asked for; without it of a process that is gone afterwards.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: the helper process failed.
    """
    table = essential(model_table)
    known = read_shipped(table)
    name = f"model_profiles/{_key(table)}.json"
    if known is None:
        known = _parsed_model_profile(read_cached(name))
    if known is not None or not take:
        return known
    tell(f"taking the model profile of {_called(table)}: once, some 30 s for a large model")
    try:
        answer = (ask or ask_once)({"ask": "model_profile", "model": table}, tell)
    except ChildError as error:
        raise WorkbenchError(f"the model profile of {_called(table)} could not be taken: {error}") from error
    model_profile = ModelProfile.model_validate(answer)
    if not any(kind.problem for kind in model_profile.kinds):
        write_cached(name, model_profile_text(model_profile))
    return model_profile


def obtain_times(
    model_table: Mapping[str, Any],
    model_profile: ModelProfile,
    *,
    fingerprint: str,
    sequences: int,
    tokens: int,
    dtype: str,
    device: str,
    tell: Report,
    take: bool = True,
    budget_s: float = 30.0,
) -> ModelTimes | None:
    """The times of the model's pieces on the machine of that `fingerprint`, which is this one where they are
    taken.

    `sequences`, `tokens`, `dtype`, `device`, `budget_s`: see `measure.measure_times`. None where none
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
    known = read_times(key, len(model_profile.kinds))
    if known is not None or not take:
        return known
    tell(f"timing the pieces of {_called(table)} at this size: once, up to a minute")
    question = {
        "ask": "times",
        "model": table,
        "model_profile": model_profile.model_dump(mode="json"),
        **sizes,
        "fingerprint": fingerprint,
        "budget_s": budget_s,
    }
    try:
        times = ModelTimes.model_validate(ask_once(question, tell))
    except ChildError as error:
        raise WorkbenchError(f"the pieces of {_called(table)} could not be timed: {error}") from error
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
    """Return the cache key of a model profile: local files count by their content, not their path."""
    named = {**table, "pretrained": "", "revision": ""} if table.get("description") else table
    return model_profile_key(named, _versions())


def _digest(pretrained: str) -> str:
    """Of the description in a folder, which may change under its name; empty for an id of the hub."""
    try:
        text = (Path(pretrained).expanduser() / "config.json").read_bytes()
    except (OSError, RuntimeError, ValueError):
        return ""
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def shipped_name(model_table: Mapping[str, Any]) -> str:
    """The file name under which the model profile of a shipped preset's model is shipped."""
    return f"{model_profile_key(essential(model_table))}.json"


def read_shipped(model_table: Mapping[str, Any]) -> ModelProfile | None:
    """The model profile that comes with Workbench; None where this model has none."""
    path = resources.files("workbench.plan") / "model_profiles" / shipped_name(model_table)
    try:
        return _parsed_model_profile(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def model_profile_text(model_profile: ModelProfile) -> str:
    """The model profile as it is kept; the same bytes for the same model profile."""
    content = {
        "version": model_profile.version,
        **model_profile.model_dump(mode="json", exclude_defaults=True),
    }
    return json.dumps(content, indent=1) + "\n"


def _parsed_model_profile(text: str | None) -> ModelProfile | None:
    if text is None:
        return None
    try:
        model_profile = ModelProfile.model_validate_json(text)
    except ValidationError:
        return None
    return model_profile if model_profile.version == VERSION else None


def _versions() -> list[str]:
    """Major and minor versions of what builds a model and runs its blocks; "N/A" of what is not installed."""
    return [".".join(_version(name).split("+")[0].split(".")[:2]) for name in BUILDERS]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "N/A"
