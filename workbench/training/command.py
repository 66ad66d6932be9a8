"""`workbench run`: choose the run, check that it can start, and train it here or in a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.config import RunConfig, load_config, parse_config, to_toml
from workbench.config.references import OF_THE_MODEL, REFERENCES
from workbench.errors import EXIT_DONE, ConfigurationError, WorkbenchError
from workbench.presets import find_preset
from workbench.runs import (
    LogTee,
    RunDirectory,
    liveness,
    read_status,
    runs_root,
    write_config,
)
from workbench.runs.checkpoints import check_resumable, step_folders
from workbench.runs.launch import start_trainer
from workbench.training.checkpoints.same_model import check_same_model
from workbench.training.signals import Requests, StopBeforeTraining
from workbench.training.start.announced import Starting


@dataclass(frozen=True)
class _Choice:
    """What is to be trained. `directory` is None for a new run."""

    name: str
    config: RunConfig
    root: Path
    directory: RunDirectory | None
    resuming: bool
    overrides: tuple[str, ...] = ()
    """What `config` has on top of what is stored in `directory`; empty for a new run."""
    announced_at: float | None = None
    """When the run's status began to name this process, where that was before it was chosen."""


def run(
    *,
    preset: str | None,
    overrides: Sequence[str] = (),
    resume: str | Path | None = None,
    detach: bool = False,
    runs: Path | None = None,
    run_directory: Path | None = None,
) -> int:
    """Train `preset` and return the exit code.

    `resume`: a run's folder, or "auto" for this preset's latest run that is not finished (a new one where there is
    none). `run_directory`: the folder that a detached run was given by the process that started it.

    Raises:
        WorkbenchError: with the exit code that its kind has.
    """
    with Requests() as requests:
        try:
            choice = _choose(preset, overrides, resume, runs_root(runs), run_directory)
            if choice is None:
                return EXIT_DONE
            return _start(choice, requests, detach=detach)
        except StopBeforeTraining as stop:
            _tell(str(stop))
            return stop.exit_code
        except Exception:
            # A library that is stopped in the middle of its import may turn the stop into an error of its own.
            if requests.stop_code is None or requests.training:
                raise
            _tell(str(StopBeforeTraining(requests.stop_code)))
            return requests.stop_code


def _choose(
    preset: str | None,
    overrides: Sequence[str],
    resume: str | Path | None,
    root: Path,
    run_directory: Path | None,
) -> _Choice | None:
    """The run that was asked for; None where it is finished already."""
    if run_directory is not None:
        directory = RunDirectory.open(run_directory)
        config = _stored_config(directory, overrides)
        status = read_status(directory)
        announced = status.heartbeat if status.pid == os.getpid() else None
        return _Choice(
            directory.name,
            config,
            directory.path.parent,
            directory,
            resume is not None,
            tuple(overrides),
            announced_at=announced,
        )
    if resume is not None and str(resume) != "auto":
        return _resumed(RunDirectory.find(root, str(resume)), overrides)
    if preset is None:
        raise ConfigurationError("no preset is named: `workbench presets` lists them")
    path = find_preset(preset)
    if resume is not None:
        latest = _latest_unfinished(root, path.stem)
        if latest is not None:
            return _resumed(latest, overrides)
        _tell(
            f"there is no unfinished run of {path.stem} in {root}{_done_already(root, path.stem)}: starting a new one"
        )
    return _Choice(path.stem, load_config(path, overrides, look_for=REFERENCES), root, None, False)


def _resumed(directory: RunDirectory, overrides: Sequence[str]) -> _Choice | None:
    config = _stored_config(directory, overrides)
    status = read_status(directory)
    # Epochs are steps in a stored configuration: these were asked for now, and only the tokens tell what they come to.
    if status.phase == "finished" and not config.train.epochs and status.step >= config.train.steps:
        if overrides:
            _refuse_changes(directory, _stored_config(directory), config, overrides)
        _tell(
            f"run {directory.name} is finished: all {status.step} steps are done "
            "(--set train.steps=N or train.epochs=N goes on to a later one)"
        )
        return None
    return _Choice(directory.name, config, directory.path.parent, directory, True, tuple(overrides))


def _refuse_changes(
    directory: RunDirectory, stored: RunConfig, wanted: RunConfig, overrides: Sequence[str]
) -> None:
    """Refuse what is asked of a finished run beside the number of its steps; what it has already is no change."""
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


def _stored_config(
    directory: RunDirectory, overrides: Sequence[str] = (), look_for: Collection[str] = ()
) -> RunConfig:
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


def _done_already(root: Path, name: str) -> str:
    """Which run of this preset might be meant though it is finished, and how it goes on; empty where there is none."""
    for directory in reversed(RunDirectory.list(root)):
        if directory.is_of_preset(name) and liveness(read_status(directory)) == "finished":
            more = f"`workbench resume {directory.name} --set train.steps=N`"
            return f" ({directory.name} has done all its steps; {more} gives it more)"
    return ""


def _latest_unfinished(root: Path, name: str) -> RunDirectory | None:
    """The newest run of this preset that was begun and has steps left."""
    for directory in reversed(RunDirectory.list(root)):
        # Without its configuration a run was ended before it began.
        if not directory.is_of_preset(name) or not directory.config.is_file():
            continue
        state = liveness(read_status(directory))
        if state in ("running", "paused", "stale"):
            raise WorkbenchError(
                f"run {directory.name} is {state} already; `workbench resume {directory.name}` wakes a paused one; "
                "or start another without --resume"
            )
        return None if state == "finished" else directory
    return None


def _start(choice: _Choice, requests: Requests, *, detach: bool) -> int:
    if choice.directory is None:
        RunDirectory.check_root(choice.root)
    directory = choice.directory
    if directory is not None:
        directory.acquire(choice.announced_at)
    try:
        # One that was announced says in its status how far its preparation is, or why that failed.
        announced = directory if choice.announced_at is not None else None
        with Starting(announced, _tell) as starting:
            if directory is not None:
                there = OF_THE_MODEL if choice.resuming else frozenset[str]()
                _stored_config(directory, choice.overrides, REFERENCES.keys() - there)
                if choice.resuming:
                    if choice.overrides:
                        check_same_model(directory, _stored_config(directory), choice.config)
                    check_resumable(directory)
            # torch takes seconds to import: only once there is something to train.
            starting.progress("importing torch")
            from workbench.training.session import train_session
            from workbench.training.start.preparation import prepare_run

            prepared = prepare_run(
                choice.config, choice.root, starting.tell, directory, requests.raise_if_stopped
            )
            requests.raise_if_stopped()
            if directory is not None and choice.resuming:
                from workbench.training.going_on import check_going_on

                check_going_on(directory, prepared.config, prepared.model, prepared.data)
        if directory is None:
            directory = RunDirectory.create(choice.root, choice.name)
            directory.acquire()
        if not choice.resuming:
            write_config(directory, to_toml(prepared.config))
        if detach:
            return _detach(directory, choice, prepared.config.train.steps)
        with LogTee(directory.log):
            print(f"run {directory.path}", flush=True)
            try:
                return train_session(directory, prepared, requests, resuming=choice.resuming)
            except WorkbenchError as error:
                # Said while the log still listens; the command line has nothing left to say.
                _tell(str(error))
                return error.exit_code
    finally:
        if directory is not None:
            directory.release()


def _detach(directory: RunDirectory, choice: _Choice, total_steps: int) -> int:
    """Start the same run in a session of its own, with no terminal and no pipe that could end it."""
    directory.release()
    if choice.resuming and not step_folders(directory.checkpoints):
        _tell(f"run {directory.name} has saved no checkpoint yet: it begins again at its first step")
    pid = start_trainer(
        directory,
        total_steps=total_steps,
        resuming=choice.resuming,
        overrides=choice.overrides,
    )
    print(directory.path)
    _tell(
        f"training in process {pid}; its log is {directory.log}; `workbench attach {directory.name}` watches it"
    )
    return EXIT_DONE


def _tell(message: str) -> None:
    """One line on stderr; a terminal that is gone is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: {message}", file=sys.stderr, flush=True)
