"""What a run is told when it goes on from a checkpoint under other settings than those that it was saved under.

Invariant: whatever of the state was not taken over bit for bit is said, and is in the run's `resume` event.
"""

from __future__ import annotations

from typing import Any

import torch

from workbench.config import RunConfig
from workbench.config.toml_text import toml_value
from workbench.engine.precision import PRECISIONS
from workbench.training.checkpoints.saved_state import Conversion


def settings_of(config: RunConfig, dtype: torch.dtype) -> dict[str, Any]:
    """What decides how the state lies and how it is updated, by its dotted name. `dtype`: of the weights in use."""
    precision = next(name for name, known in PRECISIONS.items() if known == dtype)
    offload = {f"offload.{key}": value for key, value in config.offload.model_dump().items()}
    return {"train.precision": precision, **offload}


def changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """The settings that differ, as [saved, present]; nothing of those that the checkpoint does not know."""
    return {key: [before[key], value] for key, value in now.items() if key in before and before[key] != value}


def words(name: str, changed: dict[str, list[Any]], conversion: Conversion) -> str:
    """One line: which checkpoint, what has changed since, and how the state came over."""
    line = f"resuming from {name}"
    if changed:
        each = (
            f"{key} = {toml_value(now)} (saved under {toml_value(was)})"
            for key, (was, now) in changed.items()
        )
        line += f", with {', '.join(each)}"
    told = conversion.sentences()
    if told:
        return f"{line}: {'; '.join(told)}"
    return f"{line}: the state is taken over bit for bit" if changed else line
