"""Check that a run's model and data fit its newest checkpoint, and say how the state was taken over.

Invariants: nothing is refused here that loading the checkpoint would take; whatever of the state was not taken over bit
for bit is said, and is in the run's `resume` event.
"""

from __future__ import annotations

from typing import Any

import torch

from workbench.config import RunConfig
from workbench.config.toml_text import toml_value
from workbench.data.prepare import TokenData
from workbench.engine.blocks.discovery import find_units
from workbench.engine.precision import PRECISIONS
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import newest_checkpoint
from workbench.training.batches import training_sampler
from workbench.training.checkpoints.load import Conversion, check_same_parameters


def check_resume(directory: RunDirectory, config: RunConfig, model: Any, data: TokenData) -> None:
    """Check `model` (on whatever device) and `data` against the newest checkpoint of `directory`, if it has one.

    Loading the checkpoint finds the same, but only after memory was allocated or a process was started.

    Raises:
        ConfigurationError: the model has other parameters than were saved, or the data cursor does not fit.
    """
    saved = newest_checkpoint(directory.checkpoints)
    if saved is None:
        return
    present = {
        name: parameter.numel()
        for unit in find_units(model)
        for name, parameter in unit.parameters.items()
        if parameter.requires_grad
    }
    check_same_parameters(saved, present)
    training_sampler(config, data).load_state(saved.manifest.progress.data)


def settings_of(config: RunConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Return the settings that decide how the state lies and is updated. `dtype`: of the weights in use."""
    precision = next(name for name, known in PRECISIONS.items() if known == dtype)
    offload = {f"offload.{key}": value for key, value in config.offload.model_dump().items()}
    return {"train.precision": precision, **offload}


def changed_settings(saved: dict[str, Any], present: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that differ, as [saved, present]; nothing of those that the checkpoint does not have."""
    return {
        key: [saved[key], value] for key, value in present.items() if key in saved and saved[key] != value
    }


def resume_line(name: str, changed: dict[str, list[Any]], conversion: Conversion) -> str:
    """Return one line: which checkpoint, what has changed since, and how the state was taken over."""
    line = f"resuming from {name}"
    if changed:
        each = (
            f"{key} = {toml_value(now)} (saved under {toml_value(was)})"
            for key, (was, now) in changed.items()
        )
        line += f", with {', '.join(each)}"
    sentences = conversion.sentences()
    if sentences:
        return f"{line}: {'; '.join(sentences)}"
    return f"{line}: the state is taken over bit for bit" if changed else line
