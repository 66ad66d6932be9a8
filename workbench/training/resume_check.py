"""Check that a run can go on: the fields, the parameters and the data that must agree; and say what has changed.

Nothing of torch is imported before a model is given. Invariants: a run that goes on keeps its model, for its
checkpoints hold what is trained; nothing is refused here that loading the checkpoint would take; whatever of the state
was not taken over bit for bit is reported, and is in the run's `resume` event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.config import RunConfig
from workbench.config.toml_text import as_written, toml_value
from workbench.errors import ConfigurationError
from workbench.runs import RunDirectory
from workbench.runs.checkpoints import newest_checkpoint

if TYPE_CHECKING:
    from workbench.data.prepare import TokenData


def check_same_model(directory: RunDirectory, stored: RunConfig, wanted: RunConfig) -> None:
    """Refuse a `wanted` configuration whose model is another than the `stored` one's, once there is a checkpoint.

    Raises:
        ConfigurationError: naming the first field that differs.
    """
    before, now = _fixed_fields(stored, stored, wanted), _fixed_fields(wanted, stored, wanted)
    name = next((name for name in before if before[name] != now[name]), None)
    saved = newest_checkpoint(directory.checkpoints) if name else None
    if name is None or saved is None:
        return
    under = f"under {name} = {as_written(before[name])}" if before[name] else "without it"
    raise ConfigurationError(
        f"--set {name} = {as_written(now[name])}: run {directory.name} continues with the model of its checkpoint "
        f"{saved.path.name}, saved {under}; leave it out, or start a new run with it"
    )


def check_steps_left(directory: RunDirectory, config: RunConfig) -> None:
    """Refuse fewer steps than the newest checkpoint of `directory` has done; of epochs the text is asked first.

    Raises:
        ConfigurationError: with the steps that it has done.
    """
    saved = None if config.train.epochs else newest_checkpoint(directory.checkpoints)
    if saved is not None and config.train.steps < saved.step:
        raise ConfigurationError(
            f"train.steps = {config.train.steps}: run {directory.name} has done {saved.step} steps already; give a "
            f"larger number, or start a new run"
        )


def _fixed_fields(config: RunConfig, stored: RunConfig, wanted: RunConfig) -> dict[str, Any]:
    """Return the fields of `config` that must agree in `stored` and `wanted`; all others may change at a resumption."""
    model, adapter = config.model, config.adapter
    fields: dict[str, Any] = {"model.architecture": model.architecture}
    # An adapter's checkpoints have nothing of the model beneath it, which may have moved.
    if stored.adapter is None or not stored.model.pretrained:
        fields |= {"model.pretrained": model.pretrained, "model.revision": model.revision}
    # A model that came from no files is built of its settings, of which some (dropout) may change.
    if stored.model.pretrained:
        fields["model.config"] = model.config
    if stored.adapter is None or wanted.adapter is None:
        fields["adapter"] = {} if adapter is None else adapter.model_dump()
    elif adapter is not None:
        fields |= {"adapter.rank": adapter.rank, "adapter.targets": adapter.targets}
    return fields


def check_resume(directory: RunDirectory, config: RunConfig, model: Any, data: TokenData) -> None:
    """Check `model` (on whatever device) and `data` against the newest checkpoint of `directory`, if it has one.

    Loading the checkpoint finds the same, but only after memory was allocated or a process was started.

    Raises:
        ConfigurationError: the model has other parameters than were saved, or the data cursor does not fit.
    """
    from workbench.engine.blocks.discovery import find_units
    from workbench.training.batches import training_sampler
    from workbench.training.checkpoints.load import check_same_parameters

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


def settings_of(config: RunConfig, precision: str) -> dict[str, Any]:
    """Return the settings that decide the state's layout and updates. `precision`: of the weights in use."""
    offload = {f"offload.{key}": value for key, value in config.offload.model_dump().items()}
    return {"train.precision": precision, **offload}


def changed_settings(saved: dict[str, Any], present: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that differ, as [saved, present]; nothing of those that the checkpoint does not have."""
    return {
        key: [saved[key], value] for key, value in present.items() if key in saved and saved[key] != value
    }


def resume_line(name: str, changed: dict[str, list[Any]], converted: list[str]) -> str:
    """Return one line: which checkpoint, what has changed since, and how the state was taken over."""
    line = f"resuming from {name}"
    if changed:
        each = (
            f"{key} = {toml_value(now)} (saved under {toml_value(was)})"
            for key, (was, now) in changed.items()
        )
        line += f", with {', '.join(each)}"
    if converted:
        return f"{line}: {'; '.join(converted)}"
    return f"{line}: the state is restored bit for bit" if changed else line
