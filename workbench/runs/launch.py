"""Start a training in a process and a session of its own, and find out how it ended; nothing heavy is imported for it.

The screen and `run --detach` share it. Invariant: the trainer needs nothing of whoever started it: no terminal, no
pipe, no process group; and from the moment that `start` returns, the run's status names its process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.errors import ConfigurationError, WorkbenchError
from workbench.runs.checkpoints import check_resumable
from workbench.runs.directory import RunDirectory
from workbench.runs.ending import cause_of_death, death
from workbench.runs.records import write_config
from workbench.runs.status import ACTIVE, liveness, process_started, read_status, write_status
from workbench.system.child_process import module_arguments, package_environment
from workbench.system.oom_kills import oom_kills, own_cgroup

_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class ExitReason:
    """The end of a run, as far as it is known."""

    exit_code: int | None
    """As a shell has it: 128 and the signal's number where a signal ended it. None: not known, or not ended."""
    message: str
    """One sentence from the run's status; empty where it left none."""
    lines: tuple[str, ...]
    """The last lines of its log, the oldest first."""
    log: Path


def start(text: str, name: str, root: Path, overrides: Sequence[str] = ()) -> RunDirectory:
    """Train the configuration `text` (TOML) as a new run in `root`; it is starting when this returns.

    `name` is the preset's, which the run's folder is called after. What is wrong with the model, the data or the
    machine is found by the trainer: see `exit_reason`.

    Raises:
        ConfigurationError: the text is no valid configuration, or `root` cannot be written; nothing is left behind.
        WorkbenchError: the process could not be started.
    """
    from workbench.config import parse_config, to_toml
    from workbench.config.references import with_absolute_paths

    config = with_absolute_paths(parse_config(text, name, overrides))
    run = RunDirectory.create(root, name)
    write_config(run, to_toml(config))
    start_trainer(run, total_steps=config.train.steps)
    return run


def resume(run: RunDirectory, overrides: Sequence[str] = ()) -> None:
    """Continue `run` from its last checkpoint; it is starting when this returns.

    Raises:
        ConfigurationError: its configuration cannot be read.
        WorkbenchError: it has a trainer, all its steps are done, no checkpoint of it is whole, or the process could
            not be started.
    """
    from workbench.config import parse_config

    status = read_status(run)
    state = liveness(status)
    if state in ACTIVE:
        raise WorkbenchError(f"run {run.name} is {state} already")
    try:
        text = run.config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"run {run.name} cannot be resumed: {run.config} cannot be read: {error}"
        ) from error
    train = parse_config(text, str(run.config), overrides).train
    # Only the tokens decide how many steps the epochs come to.
    if state == "finished" and not train.epochs and status.step >= train.steps:
        raise WorkbenchError(
            f"run {run.name} is finished: all its {train.steps} steps are done; "
            f"`workbench resume {run.name} --set train.steps=N` adds steps"
        )
    # A trainer whose status cannot be read still holds the run.
    lock = RunDirectory(run.path)
    lock.acquire()
    lock.release()
    check_resumable(run)
    start_trainer(run, total_steps=train.steps, resuming=True, overrides=overrides)


def start_trainer(
    run: RunDirectory,
    *,
    total_steps: int,
    resuming: bool = False,
    overrides: Sequence[str] = (),
    max_restarts: int = 0,
) -> int:
    """Start the process that trains `run`, whose `config.toml` is there and which nobody holds; return its pid.

    The process has /dev/null for its input and the run's log for its output: a pipe would end it with its reader.
    When it ends before this process does, the status gets the exit code that it could not write itself.

    Raises WorkbenchError where it cannot be started.
    """
    command = trainer_command(run, resuming=resuming, overrides=overrides)
    if max_restarts:
        command.append(f"--max-restarts={max_restarts}")
    try:
        with run.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=package_environment(),
            )
    except OSError as error:
        raise WorkbenchError(f"run {run.name} could not be started: {error}") from error
    announce(run, child.pid, total_steps)
    threading.Thread(target=_collect, args=(run, child), name="trainer-exit", daemon=True).start()
    return child.pid


def trainer_command(run: RunDirectory, *, resuming: bool, overrides: Sequence[str] = ()) -> list[str]:
    """Return the command line of the process that trains `run`."""
    command = [sys.executable, *module_arguments("workbench"), "run", "--run-directory", str(run.path)]
    if resuming:
        command += ["--resume", "auto", *(f"--set={override}" for override in overrides)]
    return command


def exit_reason(run: RunDirectory, lines: int = 20) -> ExitReason:
    """Return how `run` ended, with the last `lines` lines of its log. Never raises."""
    status = read_status(run)
    message = death(run, status) if liveness(status) == "died" else status.message
    return ExitReason(status.exit_code, message, tail(run.log, lines), run.log)


def tail(path: Path, lines: int) -> tuple[str, ...]:
    """Return the last `lines` lines of a text file however long it is; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES)
    except OSError:
        return ()
    whole = text.decode("utf-8", "replace").splitlines()
    if size > _TAIL_BYTES and len(whole) > 1:
        del whole[0]  # begins in its middle
    return tuple(whole[-lines:]) if lines > 0 else ()


def announce(run: RunDirectory, pid: int, total_steps: int) -> None:
    """Name the new trainer in the status at once: it takes seconds to get there, and may be steered or die before."""
    before = read_status(run)
    if before.pid == pid:  # it was quicker
        return
    status = replace(
        before,
        phase="starting",
        total_steps=total_steps,
        pid=pid,
        pid_started=process_started(pid) or 0.0,
        host=socket.gethostname(),
        cgroup=(cgroup := own_cgroup()),
        oom_kills=oom_kills(Path(cgroup)) if cgroup else None,
        eta_s=None,
        exit_code=None,
        message="",
        progress="",
    )
    with contextlib.suppress(WorkbenchError):  # the trainer meets the same trouble, and ends with it
        write_status(run, status, durable=False)


def _collect(run: RunDirectory, child: subprocess.Popen[bytes]) -> None:
    """Wait for the trainer's end and record its exit code where it could not: it was killed."""
    code = child.wait()
    lock = RunDirectory(run.path)
    # Not when another trainer has taken the run over meanwhile, and not when its folder is gone.
    with contextlib.suppress(WorkbenchError, OSError):
        if read_status(run).exit_code is not None:
            return
        lock.acquire()
        try:
            status = read_status(run)
            if status.pid == child.pid and status.exit_code is None:
                ended = replace(status, exit_code=code if code >= 0 else 128 - code)
                ended = replace(ended, message=status.message or cause_of_death(ended))
                write_status(run, ended, durable=False)
        finally:
            lock.release()
