"""Start the ranks of a run on this machine by torchrun's own launcher, and end as they do.

The ranks are processes `workbench run --run-directory RUN`, children of this one; rank 0 writes the run's status.
Invariant: this process does nothing to the run while rank 0 lives, and no rank outlives it unless it is killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from workbench.errors import EXIT_DONE, EXIT_ERROR, WorkbenchError
from workbench.runs import RunDirectory, Status, read_status, write_status
from workbench.runs.ending import cause_of_death
from workbench.runs.launch import announce, trainer_command
from workbench.system.child_process import package_environment
from workbench.system.processor import usable_cpus
from workbench.training.signals import EXIT_CODES, StopBeforeTraining

LOOK_EVERY_S = 2.0
"""Seconds between looks at the ranks: when one has failed, the others have as long to say so themselves."""
TRAINING = ("training", "evaluating", "saving", "paused")


def launch_ranks(
    run: RunDirectory,
    number: int,
    *,
    total_steps: int,
    resuming: bool,
    overrides: Sequence[str],
    max_restarts: int,
    report: Callable[[str], None],
) -> int:
    """Train `run`, which nobody holds, on `number` ranks and return the exit code.

    After a failure they are started again from the last checkpoint, `max_restarts` times at most.

    Raises:
        WorkbenchError: the launcher could not start them.
    """
    try:
        with _Signals(run), _surroundings(number):
            announce(run, os.getpid(), total_steps)
            codes = _run_ranks(
                trainer_command(run, resuming=resuming, overrides=overrides), number, max_restarts
            )
    except StopBeforeTraining as stop:
        status = read_status(run)
        if status.exit_code is not None:
            return status.exit_code
        if status.phase not in TRAINING:
            report(str(stop))
            _write(run, replace(status, phase="stopped", exit_code=stop.exit_code, message=str(stop)))
        return stop.exit_code
    return _end(run, codes, report)


def _run_ranks(command: Sequence[str], number: int, max_restarts: int) -> dict[int, int]:
    """Return the exit codes of the ranks that failed, none where all are done.

    Raises:
        WorkbenchError: they could not be started.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="workbench-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=number,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=max_restarts,
            monitor_interval=LOOK_EVERY_S,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            signals_to_handle="SIGQUIT",
        )
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in error.failures.items()}
        except (OSError, RuntimeError) as error:
            raise WorkbenchError(f"{number} processes could not be started: {error}") from error
    return {}


def _end(run: RunDirectory, codes: dict[int, int], report: Callable[[str], None]) -> int:
    """Return the exit code of ranks of which those in `codes` failed; say why where rank 0 could not."""
    status = read_status(run)
    if status.exit_code is not None:
        return status.exit_code
    if not codes:
        return EXIT_DONE
    rank, code = min(codes.items())
    ended = replace(status, exit_code=code if code >= 0 else 128 - code)
    ended = replace(ended, message=f"rank {rank}: {status.message or cause_of_death(ended)}")
    report(ended.message)
    _write(run, ended)
    return EXIT_ERROR


def _write(run: RunDirectory, status: Status) -> None:
    with contextlib.suppress(WorkbenchError):
        write_status(run, status)


@contextlib.contextmanager
def _surroundings(number: int) -> Iterator[None]:
    """Give the ranks this very package and a part of the cores each; keep the launcher's own remarks back."""
    before = dict(os.environ)
    os.environ.update(package_environment())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // number)))
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)


class _Signals:
    """Passes signals on to rank 0, which acts on them together with the others.

    A stop before the first step, and a second one, ends all ranks at once: rank 0 might not be there yet, and one that
    ends by a signal would be started again.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._stopped = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._pass_on)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        status = read_status(self._run)
        trains = status.phase in TRAINING and status.pid != os.getpid()
        again = self._stopped
        if number in EXIT_CODES:
            self._stopped = True
            if again or not trains:
                raise StopBeforeTraining(EXIT_CODES[signal.Signals(number)])
        if trains:
            with contextlib.suppress(ProcessLookupError):
                os.kill(status.pid, number)
