"""Choose the run that `workbench run` trains: a new one of a preset, or one that goes on. No torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.config import RunConfig, load_config, parse_config
from workbench.config.references import REFERENCES
from workbench.errors import ConfigurationError, WorkbenchError
from workbench.presets import find_preset
from workbench.runs import ACTIVE, RunDirectory, liveness, read_status


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
        latest, state = _latest_run(root, path.stem) or (None, "")
        if latest is not None and state in ACTIVE:
            raise WorkbenchError(
                f"run {latest.name} is {state} already; `workbench resume {latest.name}` wakes a paused one; "
                "or start another without --resume"
            )
        if latest is not None and state != "finished":
            return _resumed(latest, overrides, report)
        finished = ""
        if latest is not None:
            more = f"`workbench resume {latest.name} --set train.steps=N`"
            finished = f" ({latest.name} has done all its steps; {more} gives it more)"
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


def _resumed(
    directory: RunDirectory, overrides: Sequence[str], report: Callable[[str], None]
) -> RunChoice | None:
    config = stored_config(directory, overrides)
    status = read_status(directory)
    # Only the tokens decide how many steps the epochs that were asked for come to.
    if status.phase == "finished" and not config.train.epochs and status.step >= config.train.steps:
        report(
            f"run {directory.name} is finished: all {status.step} steps are done "
            "(--set train.steps=N or train.epochs=N goes on to a later one)"
        )
        return None
    return RunChoice(directory.name, config, directory.path.parent, directory, True, tuple(overrides))


def _latest_run(root: Path, name: str) -> tuple[RunDirectory, str] | None:
    """Return the newest run of this preset that was begun, and its state."""
    for directory in reversed(RunDirectory.list(root)):
        # Without its configuration a run was ended before it began.
        if directory.is_of_preset(name) and directory.config.is_file():
            return directory, liveness(read_status(directory))
    return None
