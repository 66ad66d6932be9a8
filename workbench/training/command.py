"""`workbench run`: choose the run, check that it can start, and train it here or in a process of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.config import to_toml
from workbench.config.references import OF_THE_MODEL, REFERENCES
from workbench.errors import EXIT_DONE, WorkbenchError
from workbench.runs import LogTee, RunDirectory, runs_root, write_config
from workbench.runs.checkpoints import check_resumable, step_folders
from workbench.runs.launch import start_trainer
from workbench.training.heartbeat import StartupStatus
from workbench.training.resume_check import check_resume, check_same_model
from workbench.training.run_choice import RunChoice, choose_run, stored_config
from workbench.training.signals import Requests, StopBeforeTraining


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
            choice = choose_run(preset, overrides, resume, runs_root(runs), run_directory, _report)
            if choice is None:
                return EXIT_DONE
            return _start(choice, requests, detach=detach)
        except StopBeforeTraining as stop:
            _report(str(stop))
            return stop.exit_code
        except Exception:
            # A library that is stopped in the middle of its import may turn the stop into an error of its own.
            if requests.stop_code is None or requests.training:
                raise
            _report(str(StopBeforeTraining(requests.stop_code)))
            return requests.stop_code


def _start(choice: RunChoice, requests: Requests, *, detach: bool) -> int:
    if choice.directory is None:
        RunDirectory.check_root(choice.root)
    directory = choice.directory
    if directory is not None:
        directory.acquire(choice.announced_at)
    try:
        # The status of one that was announced shows how far its preparation is, or why that failed.
        announced = directory if choice.announced_at is not None else None
        with StartupStatus(announced, _report) as startup:
            if directory is not None:
                # The checkpoints of a run that goes on hold its model.
                unneeded = OF_THE_MODEL if choice.resuming else frozenset[str]()
                stored_config(directory, choice.overrides, REFERENCES.keys() - unneeded)
                if choice.resuming:
                    if choice.overrides:
                        check_same_model(directory, stored_config(directory), choice.config)
                    check_resumable(directory)
            # torch takes seconds to import: only once there is something to train.
            startup.progress("importing torch")
            from workbench.training.prepare import prepare_run
            from workbench.training.session import train_session

            prepared = prepare_run(
                choice.config, choice.root, startup.report, directory, requests.raise_if_stopped
            )
            requests.raise_if_stopped()
            if directory is not None and choice.resuming:
                check_resume(directory, prepared.config, prepared.model, prepared.data)
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
                # Reported while the log still gets it; nothing is left for the command line to report.
                _report(str(error))
                return error.exit_code
    finally:
        if directory is not None:
            directory.release()


def _detach(directory: RunDirectory, choice: RunChoice, total_steps: int) -> int:
    """Start the same run in a session of its own, with no terminal and no pipe that could end it."""
    directory.release()
    if choice.resuming and not step_folders(directory.checkpoints):
        _report(f"run {directory.name} has saved no checkpoint yet: it begins again at its first step")
    pid = start_trainer(
        directory,
        total_steps=total_steps,
        resuming=choice.resuming,
        overrides=choice.overrides,
    )
    print(directory.path)
    _report(
        f"training in process {pid}; its log is {directory.log}; `workbench attach {directory.name}` watches it"
    )
    return EXIT_DONE


def _report(message: str) -> None:
    """One line on stderr; a terminal that is gone is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(f"workbench: {message}", file=sys.stderr, flush=True)
