"""Model profiles and the times of a model's pieces: shipped, else cached, else measured in a process of their own.

That process has torch and the blocks in it; this one imports neither.

Invariant: what is cached is found by what it depends on and nothing else: the [model] table, the versions of the
packages that build it, and for times the machine and the sizes. What cannot be read is measured again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from workbench.errors import WorkbenchError
from workbench.profiles.model_profile import (
    TIMES_VERSION,
    VERSION,
    ModelProfile,
    ModelTimes,
    model_profile_key,
)
from workbench.profiles.this_machine import resolved_device, version_of
from workbench.system.child_process import ChildError, ChildProcess, Report, module_arguments
from workbench.system.folders import cache_folder, read_cached, write_cached

BUILDERS = ("torch", "transformers")
TIMES = "times"
Parsed = TypeVar("Parsed", bound=BaseModel)
Ask = Callable[[Mapping[str, Any], Report], Any]
"""Asks a process for a model profile or times: a question for `workbench.profiles.block_times.answer`."""


def profiling_process(*, warm: bool = False) -> ChildProcess:
    """Return a process that measures models. `warm`: it imports what questions need at once."""
    return ChildProcess(*module_arguments("workbench.profiles.block_times"), *(["warm"] if warm else []))


def ask_once(question: Mapping[str, Any], report: Report) -> Any:
    """Return the answer of a process that is gone afterwards. Raises as `ChildProcess.ask`."""
    with profiling_process() as process:
        return process.ask(question, report)


def obtain_model_profile(
    model_table: Mapping[str, Any], report: Report, *, take: bool = True, ask: Ask | None = None
) -> ModelProfile | None:
    """Return the model profile of a [model] table; `report` gets a sentence where it has to be measured.

    None where none is known and `take` is False. A profile that lacks costs is not cached. `ask`: how a process is
    asked; by default one that is gone afterwards.

    Raises:
        ConfigurationError: the table describes no model that can be built.
        WorkbenchError: the process failed.
    """
    table = essential(model_table)
    known = read_shipped(table)
    name = f"model_profiles/{_key(table)}.json"
    if known is None:
        known = _parsed_model_profile(read_cached(name))
    if known is not None or not take:
        return known
    report(f"profiling {_called(table)}, once")
    try:
        answer = (ask or ask_once)({"ask": "model_profile", "model": table}, report)
    except ChildError as error:
        raise WorkbenchError(f"{_called(table)} could not be profiled: {error}") from error
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
    report: Report,
    take: bool = True,
    budget_s: float = 30.0,
) -> ModelTimes | None:
    """Return the times of the model's pieces on the machine of that `fingerprint`, this one where they are measured.

    `sequences`, `tokens`, `dtype`, `device`, `budget_s`: see `block_times.measure_times`. None where none are known and
    `take` is False.

    Raises:
        ConfigurationError: the table describes no model that can be built.
        WorkbenchError: the process failed, or a block of each kind does not fit in memory.
    """
    table = essential(model_table)
    # By its own name, so that "auto" and what it means are one.
    sizes = {"sequences": sequences, "tokens": tokens, "dtype": dtype, "device": resolved_device(device)}
    content = json.dumps([TIMES_VERSION, fingerprint, _key(table), sizes], sort_keys=True)
    name = f"{TIMES}/{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}.json"
    known = _parsed(ModelTimes, read_cached(name))
    if known is not None and len(known.kinds) == len(model_profile.kinds):
        return known
    if not take:
        return None
    report(f"timing the pieces of {_called(table)} at this size: once, up to a minute")
    question = {
        "ask": "times",
        "model": table,
        "model_profile": model_profile.model_dump(mode="json"),
        **sizes,
        "fingerprint": fingerprint,
        "budget_s": budget_s,
    }
    try:
        times = ModelTimes.model_validate(ask_once(question, report))
    except ChildError as error:
        raise WorkbenchError(f"the pieces of {_called(table)} could not be timed: {error}") from error
    write_cached(name, times.model_dump_json(indent=1) + "\n")
    return times


def forget_times() -> None:
    """Forget the times of all models' pieces: the machine is measured again, and they may be of a busier one."""
    shutil.rmtree(cache_folder() / TIMES, ignore_errors=True)


def _called(table: Mapping[str, Any]) -> str:
    """Return a short name of an essential table's model: "gpt2", or the last part of a folder or an id."""
    name = str(table["architecture"] or table["pretrained"]).rstrip("/").rpartition("/")[2]
    return name or "the model"


def essential(model_table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a [model] table without what changes no amount, the same whether defaults are written out or not.

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
        # An adapter's scale changes no amount, and its dropout only by being there.
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
    """Return a hash of the configuration in a folder, which may change under its name; empty for an id of the hub."""
    try:
        text = (Path(pretrained).expanduser() / "config.json").read_bytes()
    except (OSError, RuntimeError, ValueError):
        return ""
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def shipped_name(model_table: Mapping[str, Any]) -> str:
    """Return the file name under which the model profile of a shipped preset's model is shipped."""
    return f"{model_profile_key(essential(model_table))}.json"


def read_shipped(model_table: Mapping[str, Any]) -> ModelProfile | None:
    """Return the model profile that comes with Workbench; None where this model has none."""
    path = resources.files("workbench.profiles") / "models" / shipped_name(model_table)
    try:
        return _parsed_model_profile(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def model_profile_text(model_profile: ModelProfile) -> str:
    """Return the model profile as it is stored; the same bytes for the same profile."""
    content = {
        "version": model_profile.version,
        **model_profile.model_dump(mode="json", exclude_defaults=True),
    }
    return json.dumps(content, indent=1) + "\n"


def _parsed_model_profile(text: str | None) -> ModelProfile | None:
    found = _parsed(ModelProfile, text)
    return found if found is not None and found.version == VERSION else None


def _parsed(kind: type[Parsed], text: str | None) -> Parsed | None:
    """Return what `text` holds; None where there is none, or it cannot be read."""
    try:
        return None if text is None else kind.model_validate_json(text)
    except ValidationError:
        return None


def _versions() -> list[str]:
    """Return major and minor versions of the packages that build a model; "N/A" for one that is not installed."""
    return [".".join(version_of(name).split("+")[0].split(".")[:2]) for name in BUILDERS]
