"""`torchrun … -m workbench run`: one run on several ranks, whose checkpoints know nothing of their number."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_files import assert_same_tensors
from trainers import Trainers, at_step, events, exit_code, losses, wait_for

from workbench.runs import RunDirectory, read_status

CHANGES = ("offload.state=host", "offload.weights=device", "train.precision=fp32")


class Torchrun:
    """Starts ranks of `workbench`, each group in a session of its own, all of it ended with the module."""

    def __init__(self, trainers: Trainers) -> None:
        self.trainers = trainers
        self._started: list[subprocess.Popen[str]] = []

    def start(self, ranks: int, *words: object, restarts: int = 0) -> subprocess.Popen[str]:
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        with (self.trainers.folder / "torchrun.log").open("w") as log:
            process = self.trainers.start_python(
                *launcher,
                f"--max-restarts={restarts}",
                "-m",
                "workbench",
                *words,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def train(self, name: str, ranks: int, *changes: str, restarts: int = 0) -> Any:
        """Begin a run, that goes on after a restart; (process, run directory) once it has a folder."""
        path = self.trainers.preset(name)
        sets = [word for change in changes for word in ("--set", change)]
        process = self.start(ranks, "run", path, "--resume", "auto", *sets, restarts=restarts)
        run = wait_for(lambda: self.trainers.run_of(name) or process.poll() is not None, "a run directory")
        assert isinstance(run, RunDirectory), self.output
        return process, run

    @property
    def output(self) -> str:
        """What the ranks that were started last have printed."""
        return (self.trainers.folder / "torchrun.log").read_text()

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def torchrun(trainers: Trainers) -> Iterator[Torchrun]:
    started = Torchrun(trainers)
    try:
        yield started
    finally:
        started.end()


def checkpoint(run: RunDirectory, step: int) -> Path:
    return run.checkpoints / f"step-{step:08d}"


def test_a_rank_that_is_killed_ends_all_and_a_restart_goes_on_as_if_it_never_had(torchrun: Torchrun) -> None:
    """With dropout: each rank's own random numbers go on as well."""
    changes = (*CHANGES, "train.steps=24", "checkpoint.every=4", "train.gradient_accumulation=2")
    process, whole = torchrun.train("whole", 2, *changes)
    assert exit_code(process) == 0, torchrun.output
    process, run = torchrun.train("killed", 2, *changes, restarts=1)
    wait_for(at_step(run, 6), "step 6")
    os.kill(read_status(RunDirectory(run.path / "ranks" / "1")).pid, signal.SIGKILL)
    assert exit_code(process) == 0, torchrun.output
    [resumed] = events(run, "resume")
    assert resumed.fields["checkpoint"] is not None
    assert losses(run) == losses(whole)
    assert_same_tensors(checkpoint(whole, 24), checkpoint(run, 24))


def test_stop_saves_at_the_same_step_on_all(trainers: Trainers, torchrun: Torchrun) -> None:
    process, run = torchrun.train("stopped", 2, *CHANGES, "train.steps=100000", restarts=1)
    wait_for(at_step(run, 3), "step 3")
    assert trainers.call("pause", run.path).returncode == 0
    wait_for(lambda: read_status(run).phase == "paused", "a pause")
    assert trainers.call("save", run.path).returncode == 0
    assert trainers.call("stop", run.path).returncode == 0
    assert exit_code(process) == 0, torchrun.output  # else it would be restarted
    status = read_status(run)
    assert status.phase == "stopped", torchrun.output
    assert checkpoint(run, status.step).is_dir()
    assert losses(RunDirectory(run.path / "ranks" / "1")) == losses(run)


def test_what_ranks_cannot_train_is_said_once_and_leaves_no_run(
    trainers: Trainers, torchrun: Torchrun
) -> None:
    changes = (*CHANGES, "data.sequence_length=4096")
    sets = [word for each in changes for word in ("--set", each)]
    process = torchrun.start(2, "run", trainers.preset("refused"), *sets)
    assert exit_code(process) != 0
    sentence = "data.sequence_length = 4096: the model has"
    assert torchrun.output.count(sentence) == 1, torchrun.output
    assert trainers.run_of("refused") is None
