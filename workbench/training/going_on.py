"""What stands between a run and its last checkpoint, found before anything is allocated or a process is started.

Loading the checkpoint finds the same, later and where nobody may be looking. Invariant: nothing is refused here that
loading would take.
"""

from __future__ import annotations

from typing import Any

from workbench.config import RunConfig
from workbench.data.prepare import TokenData
from workbench.engine.blocks.discovery import find_units
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import SavedStep, find_checkpoints
from workbench.training.batches.rows import training_sampler
from workbench.training.checkpoints.same_model import check_same_parameters


def check_going_on(directory: RunDirectory, config: RunConfig, model: Any, data: TokenData) -> None:
    """Hold `model` (on whatever device) and `data` to the newest checkpoint of `directory`; nothing where it has none.

    Raises:
        ConfigurationError: the model has other parameters than were saved, or the data cursor does not fit.
    """
    saved = next(find_checkpoints(directory.checkpoints, lambda _: None), None)
    if saved is None:
        return
    if "layout" in saved.manifest:
        _check_parameters(saved, model)
    training_sampler(config, data).load_state(saved.manifest["progress"]["data"])


def _check_parameters(saved: SavedStep, model: Any) -> None:
    there = {name: numel for unit in saved.manifest["layout"] for name, _, _, numel in unit["parameters"]}
    here = {
        name: parameter.numel()
        for unit in find_units(model)
        for name, parameter in unit.parameters.items()
        if parameter.requires_grad
    }
    check_same_parameters(saved, there, here)
