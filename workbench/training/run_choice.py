"""Which run `workbench run` trains: a new one of a preset, or one that goes on. No torch.

Invariant: a run that goes on keeps its model, for its checkpoints hold what is trained.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import RunConfig, load_config, parse_config
from workbench.config.references import REFERENCES
from workbench.config.toml_text import as_written
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.presets import find_preset
from workbench.runs import ACTIVE, RunDirectory, liveness, read_status
from workbench.runs.checkpoints import find_checkpoints


@dataclass(frozen=True)
class RunChoice:
    """The run to train. `directory` is None for a new run."""

    name: str
    config: RunConfig
    root: Path
    directory: RunDirectory | None = None
    resuming: bool = False
    overrides: tuple[str, ...] = ()
    """The changes in `config` to what is stored in `directory`; empty for a new run."""
    announced_at: float | None = None
    """When the run's status began to name this process, where that was before it was chosen."""


def choose_run(
    preset: str | None,
    overrides: Sequence[str],
    resume: str | Path | None,
    root: Path,
    run_directory: Path | None,
    report: Callable[[str], None],
) -> RunChoice | None:
    """Return the run that was asked for (see `command.run`); None where it has done all its steps.

    Raises:
        WorkbenchError: there is no such run or preset, or it cannot go on so.
    """
    if run_directory is not None:
        directory = RunDirectory.open(run_directory)
        status = read_status(directory)
        return RunChoice(
            directory.name,
            stored_config(directory, overrides),
            directory.path.parent,
            directory,
            resume is not None,
            tuple(overrides),
            announced_at=status.heartbeat if status.pid == os.getpid() else None,
        )
    if resume is not None and str(resume) != "auto":
        return _resumed(RunDirectory.find(root, str(resume)), overrides, report)
    if preset is None:
        raise ConfigurationError("no preset is named: `workbench presets` lists them")
    path = find_preset(preset)
    if resume is not None:
        latest = _latest_unfinished(root, path.stem)
        if latest is not None:
            return _resumed(latest, overrides, report)
        finished = _finished_run(root, path.stem)
        report(f"there is no unfinished run of {path.stem} in {root}{finished}: starting a new one")
    return RunChoice(path.stem, load_config(path, overrides, look_for=REFERENCES), root)


def stored_config(
    directory: RunDirectory, overrides: Sequence[str] = (), look_for: Collection[str] = ()
) -> RunConfig:
    """Return the configuration in `directory` with `overrides`. Raises ConfigurationError where it cannot be read."""
    try:
        text = directory.config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"run {directory.name} cannot be resumed: its {directory.config.name} cannot be read: {error}"
        ) from error
    config = parse_config(text, str(directory.config), overrides, look_for=look_for)
    if not config.train.epochs:
        return config
    # Stored steps are what epochs came to; epochs that are asked for now come to others.
    named = config.train.model_dump(exclude={"steps"}, exclude_unset=True)
    return config.model_copy(update={"train": type(config.train)(**named)})


def check_same_model(directory: RunDirectory, stored: RunConfig, wanted: RunConfig) -> None:
    """Refuse a `wanted` configuration whose model is another than the `stored` one's, once there is a checkpoint.

    Raises:
        ConfigurationError: naming the first field that differs.
    """
    differing = next(_model_differences(stored, wanted), None)
    saved = next(find_checkpoints(directory.checkpoints, lambda _: None), None) if differing else None
    if differing is None or saved is None:
        return
    name, was, now = differing
    under = f"under {name} = {as_written(was)}" if was else "without it"
    raise ConfigurationError(
        f"--set {name} = {as_written(now)}: run {directory.name} goes on with the model that its checkpoint "
        f"{saved.path.name} holds, saved {under}; leave it out, or start a new run with it"
    )


def _resumed(
    directory: RunDirectory, overrides: Sequence[str], report: Callable[[str], None]
) -> RunChoice | None:
    config = stored_config(directory, overrides)
    status = read_status(directory)
    # Only the tokens decide how many steps the epochs that were asked for come to.
    if status.phase == "finished" and not config.train.epochs and status.step >= config.train.steps:
        if overrides:
            _refuse_changes(directory, stored_config(directory), config, overrides)
        report(
            f"run {directory.name} is finished: all {status.step} steps are done "
            "(--set train.steps=N or train.epochs=N goes on to a later one)"
        )
        return None
    return RunChoice(directory.name, config, directory.path.parent, directory, True, tuple(overrides))


def _refuse_changes(
    directory: RunDirectory, stored: RunConfig, wanted: RunConfig, overrides: Sequence[str]
) -> None:
    """Refuse changes to a finished run without more steps; a value that it has already is no change."""
    check_same_model(directory, stored, wanted)
    steps = {"steps": stored.train.steps}
    if wanted.model_copy(update={"train": wanted.train.model_copy(update=steps)}) == stored:
        return
    model = " and a model of the same parameters" if wanted.model != stored.model else ""
    raise ConfigurationError(
        f"{' '.join(f'--set {override}' for override in overrides)}: run {directory.name} is finished, and "
        f"goes on only with more steps than {stored.train.steps} (--set train.steps=N as well){model}; or start a new "
        "run with it"
    )


def _latest_unfinished(root: Path, name: str) -> RunDirectory | None:
    """Return the newest run of this preset that was begun, if it has steps left."""
    for directory in reversed(RunDirectory.list(root)):
        # Without its configuration a run was ended before it began.
        if not directory.is_of_preset(name) or not directory.config.is_file():
            continue
        state = liveness(read_status(directory))
        if state in ACTIVE:
            raise WorkbenchError(
                f"run {directory.name} is {state} already; `workbench resume {directory.name}` wakes a paused one; "
                "or start another without --resume"
            )
        return None if state == "finished" else directory
    return None


def _finished_run(root: Path, name: str) -> str:
    """Return, in brackets, the finished run of this preset that may be meant; empty where there is none."""
    for directory in reversed(RunDirectory.list(root)):
        if directory.is_of_preset(name) and liveness(read_status(directory)) == "finished":
            more = f"`workbench resume {directory.name} --set train.steps=N`"
            return f" ({directory.name} has done all its steps; {more} gives it more)"
    return ""


def _model_differences(stored: RunConfig, wanted: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, stored, wanted) of the model's fields that differ."""
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
