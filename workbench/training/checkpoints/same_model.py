"""A run that goes on keeps its model: what names another one is refused, for the checkpoints hold what is trained.

Invariant: what a run's stored configuration says of its model is what its checkpoints are of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.config import RunConfig
from workbench.config.toml_text import as_written
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import SavedStep, find_checkpoints


def check_same_model(directory: RunDirectory, stored: RunConfig, wanted: RunConfig) -> None:
    """Refuse a `wanted` configuration of the run in `directory` whose model is another than the `stored` one's.

    Before there is a checkpoint it may be another.

    Raises:
        ConfigurationError: naming the first field that differs.
    """
    differing = next(_differing(stored, wanted), None)
    saved = next(find_checkpoints(directory.checkpoints, lambda _: None), None) if differing else None
    if differing is None or saved is None:
        return
    name, was, now = differing
    raise ConfigurationError(
        f"--set {name} = {as_written(now)}: run {directory.name} goes on with the model that its checkpoint "
        f"{saved.path.name} holds, saved {_under(name, was)}; leave it out, or start a new run with it"
    )


def check_same_parameters(saved: SavedStep, there: dict[str, int], here: dict[str, int]) -> None:
    """Raise the ConfigurationError of another model unless the sizes of trained parameters are the same by name."""
    odd = sorted(set(here).symmetric_difference(there))
    if odd:
        where = "has no" if odd[0] in here else "also has a"
        raise ConfigurationError(
            f"{saved.path} is a checkpoint of another model: it {where} trained parameter {odd[0]}; "
            "leave [model] and [adapter] as they were"
        )
    for name, numel in here.items():
        if there[name] != numel:
            raise ConfigurationError(
                f"{saved.path} is a checkpoint of another model: {name} has {there[name]:,} elements there and "
                f"{numel:,} here; leave [model] and [adapter] as they were"
            )


def _differing(stored: RunConfig, wanted: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """The fields of the model that differ, by their dotted names."""
    # An adapter's checkpoints have nothing of the model beneath it, which may have moved. A model that came from no
    # files is built of its settings, of which some (dropout) may change.
    has_adapter, has_files = stored.adapter is not None, bool(stored.model.pretrained)
    names = ["architecture"]
    names += [] if has_adapter and has_files else ["pretrained", "revision"]
    names += ["config"] if has_files else []
    for name in names:
        was, now = getattr(stored.model, name), getattr(wanted.model, name)
        if was != now:
            yield f"model.{name}", was, now
    if stored.adapter is None or wanted.adapter is None:
        if stored.adapter != wanted.adapter:
            yield "adapter", stored.adapter, {} if wanted.adapter is None else wanted.adapter.model_dump()
        return
    for name in ("rank", "targets"):
        was, now = getattr(stored.adapter, name), getattr(wanted.adapter, name)
        if was != now:
            yield f"adapter.{name}", was, now


def _under(name: str, was: Any) -> str:
    return f"under {name} = {as_written(was)}" if was else "without it"
