"""`workbench run --gpus N`: the ranks of one machine, started, steered and ended as one run."""

from __future__ import annotations

import os
import signal

from trainers import Trainers, at_step, exit_code, in_phase, wait_for

from workbench.runs import RunDirectory, read_run_metrics, read_status

CHANGES = ("train.precision=fp32", "offload.state=host", "offload.weights=device")


def test_ctrl_c_saves_on_all_ranks_and_a_rank_that_is_killed_is_named(trainers: Trainers) -> None:
    process, run = trainers.train("two", *CHANGES, "train.steps=100000", words=["--gpus", "2"])
    wait_for(at_step(run, 3), "step 3")
    process.send_signal(signal.SIGINT)
    assert exit_code(process) == 130
    status = read_status(run)
    assert status.phase == "stopped" and status.exit_code == 130
    assert (run.checkpoints / f"step-{status.step:08d}" / "DONE").exists()
    second = RunDirectory(run.path / "ranks" / "1")
    assert read_run_metrics(second).last()["step"] == status.step
    # In the background, with the number of ranks that the run has stored.
    assert trainers.call("resume", run.path).returncode == 0
    wait_for(at_step(run, status.step + 2), "two more steps")
    pid = read_status(second).pid
    os.kill(pid, signal.SIGKILL)
    wait_for(in_phase(run, "failed"), "the end")
    assert read_status(run).message.startswith(f"rank 1: its process {pid} is gone")
    wait_for(
        lambda: run.log.read_text().count(f"workbench: rank 1: its process {pid} is gone") == 1, "its message"
    )


def test_a_run_that_cannot_begin_ends_with_its_own_code_and_leaves_no_folder(trainers: Trainers) -> None:
    changes = ("--set", "model.config.n_layer=200", "--set", "model.config.n_embd=65536")
    done = trainers.call("run", trainers.preset("large"), "--gpus", "2", *changes)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("this does not fit on this machine") == 1
    assert "2 processes train on the CPU" in done.stderr
    assert trainers.run_of("large") is None
