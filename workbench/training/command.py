"""`workbench run`: choose the run, check that it can start, and train it here or in a process of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.config import RunConfig, load_config, parse_config, to_toml
from workbench.config.references import OF_THE_MODEL, REFERENCES, with_absolute_paths
from workbench.errors import EXIT_DONE, ConfigurationError, WorkbenchError
from workbench.presets import find_preset
from workbench.profiles.this_machine import resolved_device
from workbench.runs import (
    ACTIVE,
    LogTee,
    RunDirectory,
    find_run,
    liveness,
    read_status,
    runs_root,
    write_config,
    write_status,
)
from workbench.runs.checkpoints import check_resumable, step_folders
from workbench.runs.deleting import delete_run
from workbench.runs.directory import check_labels
from workbench.runs.ending import ending
from workbench.runs.launch import start_trainer
from workbench.training.journal import StartupStatus
from workbench.training.ranks import (
    ONE_RANK,
    OtherRankError,
    RankDirectory,
    RunRanks,
    SeveralRanks,
    check_one_rank,
    is_restarted,
    ranks_of,
    started_by_torchrun,
)
from workbench.training.resume_check import check_resume, check_same_model, check_steps_left
from workbench.training.signals import Requests, StopBeforeTraining


def run(
    *,
    preset: str | None,
    overrides: Sequence[str] = (),
    resume: str | Path | None = None,
    detach: bool = False,
    runs: Path | None = None,
    run_directory: Path | None = None,
    labels: Sequence[str] = (),
    max_restarts: int = 0,
) -> int:
    """Train `preset` and return the exit code.

    `resume`: a run's folder, or "auto" for this preset's latest run that is not finished (a new one where there is
    none). `run_directory`: the folder that a detached run was given by the process that started it. `labels`: the name
    and the tags of a new run. Where torchrun has started several processes, they train one run together; where
    [parallel] asks for several, torchrun's launcher starts them, and again at most `max_restarts` times.

    Raises:
        WorkbenchError: with the exit code that its kind has.
    """
    if detach:
        check_one_rank("start a run")
    with Requests() as requests:
        try:
            if started_by_torchrun() > 1:
                use_expandable_segments()
                return _run_across_ranks(
                    SeveralRanks(),
                    requests,
                    lambda: choose_run(preset, overrides, resume, runs_root(runs), run_directory, _report),
                    labels,
                )
            choice = choose_run(preset, overrides, resume, runs_root(runs), run_directory, _report)
            choice = _labelled(choice, labels)
            number = _number_of_ranks(choice.config, max_restarts)
            if number == 1 or detach:
                return _start(choice, requests, detach=detach, max_restarts=max_restarts)
        except StopBeforeTraining as stop:
            _report(str(stop))
            return stop.exit_code
        except Exception:
            # A library that is stopped in the middle of its import may turn the stop into an error of its own.
            if requests.stop_code is None or requests.training:
                raise
            _report(str(StopBeforeTraining(requests.stop_code)))
            return requests.stop_code
    return _launch(choice, number, max_restarts)


def _number_of_ranks(config: RunConfig, max_restarts: int) -> int:
    """Return `ranks_of`; say so where they are no GPUs."""
    number = ranks_of(config)
    if max_restarts < 0 or (max_restarts and number == 1):
        raise ConfigurationError(
            f"--max-restarts {max_restarts}: expected a number from 0, with several GPUs (--gpus)"
        )
    if number > 1 and resolved_device(config.train.device) == "cpu":
        _report(f"parallel.gpus = {number}: {number} processes train on the CPU, and share its cores")
    return number


def _launch(choice: RunChoice, number: int, max_restarts: int) -> int:
    """Start the ranks of `choice` and wait for their end; a new run that could not begin leaves no folder."""
    from workbench.training.launcher import launch_ranks

    directory = choice.directory
    if directory is None:
        directory = RunDirectory.create(choice.root, choice.name, choice.labels)
        write_config(directory, to_toml(choice.config))
    directory.acquire(choice.announced_at)
    directory.release()
    code = launch_ranks(
        directory,
        number,
        total_steps=choice.config.train.steps,
        resuming=choice.resuming,
        overrides=choice.overrides,
        max_restarts=max_restarts,
        report=_report,
    )
    if choice.directory is None and not directory.plan.exists():
        with contextlib.suppress(WorkbenchError):
            delete_run(directory)
    return code


def _labelled(choice: RunChoice, labels: Sequence[str]) -> RunChoice:
    if labels and choice.directory is not None:
        raise ConfigurationError(
            f"--name and --tag are for a new run; {choice.directory.name} keeps its name"
        )
    check_labels(labels)
    return replace(choice, labels=tuple(labels))


def _run_across_ranks(
    ranks: RunRanks,
    requests: Requests,
    choose: Callable[[], RunChoice],
    labels: Sequence[str],
) -> int:
    """Rank 0 chooses and prepares the run, the others join it; one message says why it failed."""
    try:
        if ranks.rank:
            code = _join(ranks, requests)
        else:
            code = _start(_labelled(choose(), labels), requests, detach=False, ranks=ranks)
        # A run that was stopped and has saved: torchrun would take any other code for a failure, and restart it.
        return EXIT_DONE if code == requests.stop_code else code
    except OtherRankError as error:
        ranks.leave(error)
        # The rank that failed says so itself.
        return error.exit_code
    except WorkbenchError as error:
        ranks.leave(error)
        if ranks.rank:
            # Rank 0 reports it.
            return error.exit_code
        raise
    except BaseException as error:
        ranks.leave(error)
        raise
    finally:
        ranks.leave(None)


def _join(ranks: RunRanks, requests: Requests) -> int:
    """Train the run that rank 0 has prepared, with records in a folder of this rank's own."""
    from workbench.training.prepare import prepare_run
    from workbench.training.session import train_session

    told = ranks.tell(None)[0]
    run, resuming = RunDirectory.open(Path(told["run"])), bool(told["resuming"])
    directory = RankDirectory.of(run, ranks.rank)
    directory.acquire()
    try:
        with LogTee(directory.log, terminal=False):
            try:
                config = parse_config(told["config"], str(run.config))
                with ranks.together():
                    prepared = prepare_run(config, run.path.parent, _report, run if resuming else None)
                # The engine's arguments are the same on all ranks.
                prepared = replace(prepared, plan=replace(prepared.plan, **told["room"]))
                return train_session(directory, prepared, requests, resuming=resuming, ranks=ranks)
            except WorkbenchError as error:
                _report(str(error))
                raise
    finally:
        directory.release()


def use_expandable_segments() -> None:
    """Let torch's CUDA allocator grow its segments, unless the user has set it up: it reads that when it starts.

    Then memory that is freed in pieces of one size is had again in another: a model that nearly fills its GPU is not
    refused a block while there is room for it. Not in WSL2, whose driver may refuse the calls behind it
    (pytorch/pytorch issue 192330).
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    if "microsoft" not in platform.release().lower() and not any(name in os.environ for name in names):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def _start(
    choice: RunChoice,
    requests: Requests,
    *,
    detach: bool,
    ranks: RunRanks = ONE_RANK,
    max_restarts: int = 0,
) -> int:
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
                    check_steps_left(directory, choice.config)
                    if choice.overrides:
                        check_same_model(directory, stored_config(directory), choice.config)
                    check_resumable(directory)
            # torch takes seconds to import: only once there is something to train.
            startup.progress("importing torch")
            use_expandable_segments()
            from workbench.training.prepare import prepare_run
            from workbench.training.session import train_session

            prepared = prepare_run(
                choice.config, choice.root, startup.report, directory, requests.raise_if_stopped
            )
            requests.raise_if_stopped()
            if directory is not None and choice.resuming:
                check_steps_left(directory, prepared.config)
                check_resume(directory, prepared.config, prepared.model, prepared.data)
        if directory is None:
            directory = RunDirectory.create(choice.root, choice.name, choice.labels)
            directory.acquire()
        if not choice.resuming:
            write_config(directory, to_toml(prepared.config))
        if detach:
            return _detach(directory, choice, prepared.config.train.steps, max_restarts)
        with LogTee(directory.log):
            print(f"run {directory.path}", flush=True)
            try:
                ranks.tell(
                    {
                        "run": str(directory.path),
                        "config": to_toml(prepared.config),
                        "room": {
                            "all_gradients_wait": prepared.plan.all_gradients_wait,
                            "speculation": prepared.plan.speculation,
                        },
                        "resuming": choice.resuming,
                    }
                )
                ranks.agree(None)
                code = train_session(directory, prepared, requests, resuming=choice.resuming, ranks=ranks)
            except OtherRankError as error:
                _report(str(error))
                status = read_status(directory)
                if status.exit_code is None:  # it had not begun to train
                    ended = replace(
                        status, phase="failed", exit_code=error.exit_code, message=str(error), pid=0
                    )
                    write_status(directory, ended)
                raise
            except WorkbenchError as error:
                # Reported while the log still gets it; nothing is left for the command line to report.
                _report(str(error))
                code = error.exit_code
            print(*ending(directory, over=True).lines(sentence=code == EXIT_DONE), sep="\n", flush=True)
            return code
    finally:
        if directory is not None:
            directory.release()


def _detach(directory: RunDirectory, choice: RunChoice, total_steps: int, max_restarts: int) -> int:
    """Start the same run in a session of its own, with no terminal and no pipe that could end it."""
    directory.release()
    if choice.resuming and not step_folders(directory.checkpoints):
        _report(f"run {directory.name} has saved no checkpoint yet: it starts again at its first step")
    pid = start_trainer(
        directory,
        total_steps=total_steps,
        resuming=choice.resuming,
        overrides=choice.overrides,
        max_restarts=max_restarts,
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
    labels: tuple[str, ...] = ()


def choose_run(
    preset: str | None,
    overrides: Sequence[str],
    resume: str | Path | None,
    root: Path,
    run_directory: Path | None,
    report: Callable[[str], None],
) -> RunChoice:
    """Return the run that was asked for (see `command.run`).

    Raises:
        WorkbenchError: there is no such run or preset, or it cannot go on so: all its steps may be done.
    """
    if run_directory is not None:
        directory = RunDirectory.open(run_directory)
        status = read_status(directory)
        return RunChoice(
            directory.name,
            stored_config(directory, overrides),
            directory.path.parent,
            directory,
            resume is not None or is_restarted(),
            tuple(overrides),
            # torchrun's launcher was announced where it has started this process.
            announced_at=status.heartbeat if status.pid in (os.getpid(), os.getppid()) else None,
        )
    if resume is not None and str(resume) != "auto":
        return _resumed(find_run(root, str(resume)), overrides)
    if preset is None:
        raise ConfigurationError("no preset is named: `workbench presets` lists them")
    path = find_preset(preset)
    if resume is not None:
        latest, state = _latest_run(root, path.stem) or (None, "")
        if latest is not None and state in ACTIVE:
            raise WorkbenchError(
                f"run {latest.name} is {state} already; `workbench resume {latest.name}` continues a paused one; "
                "or start another without --resume"
            )
        if latest is not None and state != "finished":
            return _resumed(latest, overrides)
        finished = ""
        if latest is not None:
            more = f"`workbench resume {latest.name} --set train.steps=N`"
            finished = f" ({latest.name} has done all its steps; {more} adds steps)"
        report(f"there is no unfinished run of {path.stem} in {root}{finished}: starting a new one")
    config = with_absolute_paths(load_config(path, overrides, look_for=REFERENCES))
    return RunChoice(path.stem, config, root)


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
    config = with_absolute_paths(parse_config(text, str(directory.config), overrides, look_for=look_for))
    if not config.train.epochs:
        return config
    # Stored steps are what epochs came to; epochs that are asked for now come to others.
    named = config.train.model_dump(exclude={"steps"}, exclude_unset=True)
    return config.model_copy(update={"train": type(config.train)(**named)})


def _resumed(directory: RunDirectory, overrides: Sequence[str]) -> RunChoice:
    config = stored_config(directory, overrides)
    status = read_status(directory)
    check_steps_left(directory, config)
    # Only the tokens decide how many steps the epochs that were asked for come to.
    if status.phase == "finished" and not config.train.epochs and status.step >= config.train.steps:
        raise WorkbenchError(
            f"run {directory.name} is finished: all {status.step} steps are done "
            "(--set train.steps=N or train.epochs=N adds steps)"
        )
    return RunChoice(directory.name, config, directory.path.parent, directory, True, tuple(overrides))


def _latest_run(root: Path, name: str) -> tuple[RunDirectory, str] | None:
    """Return the newest run of this preset that was begun, and its state."""
    for directory in reversed(RunDirectory.list(root)):
        # Without its configuration a run was ended before it began.
        if directory.is_of_preset(name) and directory.config.is_file():
            return directory, liveness(read_status(directory))
    return None
