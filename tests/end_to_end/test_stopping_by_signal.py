"""Stopping, saving and going on: what signals and terminals do to a run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from trainers import PATIENCE_S, Trainers, at_step, events, exit_code, losses, wait_for

from workbench.runs import RunDirectory, liveness, read_run_metrics, read_status


def last_step(run: RunDirectory) -> int:
    return int(read_run_metrics(run).last()["step"])


def handlers_installed(process: subprocess.Popen[str]) -> bool:
    """Whether the process handles SIGTERM by itself by now, as /proc tells."""
    if process.poll() is not None:
        return True
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_usr1_saves_and_goes_on_hup_does_nothing_int_saves_and_exits_130_term_143(trainers: Trainers) -> None:
    process, run = trainers.train("signals", "train.steps=1000000", "log.every=1000")
    wait_for(at_step(run, 1), "the first step")
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: events(run, "checkpoint"), "a checkpoint")
    saved = events(run, "checkpoint")[0].fields["step"]
    assert (run.checkpoints / f"step-{saved:08}" / "DONE").exists()
    process.send_signal(signal.SIGHUP)
    wait_for(at_step(run, saved + 3), "more steps")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert exit_code(process) == 130
    stopped = last_step(run)
    status = read_status(run)
    assert (status.phase, status.step, status.exit_code) == ("stopped", stopped, 130)
    assert liveness(status) == "stopped"
    assert (run.checkpoints / f"step-{stopped:08}" / "DONE").exists()
    assert events(run, "finished")[-1].fields["exit_code"] == 130

    process = trainers.start("run", "--resume", run.path)
    wait_for(at_step(run, stopped + 2), "a step after resuming")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert "SIGTERM: finishing the step, then saving; a second one exits at once" in err
    assert f"resuming from step-{stopped:08}" in out
    assert read_status(run).exit_code == 143
    assert (run.checkpoints / f"step-{last_step(run):08}" / "DONE").exists()
    assert list(losses(run)) == list(range(1, last_step(run) + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_stop_exits_at_once_in_the_middle_of_a_step(
    trainers: Trainers, number: signal.Signals, code: int
) -> None:
    # A step of so many micro-batches lasts for minutes.
    process, run = trainers.train(f"long-{code}", "train.gradient_accumulation=5000")
    wait_for(lambda: read_status(run).progress.startswith("micro-batch"), "a step that is under way")
    process.send_signal(number)
    wait_for(lambda: "a second one exits at once" in run.log.read_text(), "the answer to the first")
    assert process.poll() is None
    process.send_signal(number)
    assert exit_code(process) == code
    assert not list(run.checkpoints.iterdir())
    assert liveness(read_status(run)) == "died"


def test_a_second_stop_exits_at_once_even_inside_one_instruction() -> None:
    program = """
import hashlib
from workbench.training.signals import Requests
with Requests() as requests:
    requests.training = True
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert "SIGINT: finishing the step" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 143
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_before_the_first_step_ends_at_once_and_says_so(
    trainers: Trainers, number: signal.Signals, code: int
) -> None:
    process = trainers.start("run", trainers.preset(f"before-{code}"))
    wait_for(lambda: handlers_installed(process), "signal handlers")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert err.splitlines()[-1] == f"workbench: stopped before the first step (exit {code})"
    assert "Traceback" not in err and not out
    assert trainers.run_of(f"before-{code}") is None


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_closing_the_terminal_stops_no_run(trainers: Trainers, early: bool) -> None:
    terminal, inside = os.openpty()
    process = trainers.start(
        *("run", trainers.preset(f"terminal-{early}"), "--set", "train.steps=300"),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    if early:
        wait_for(lambda: handlers_installed(process), "signal handlers")
    else:
        shown = b""
        while b"step 00002/300" not in shown:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    assert exit_code(process) == 0
    run = trainers.run_of(f"terminal-{early}")
    assert run is not None and last_step(run) == 300
    assert "step 00300/300 | " in run.log.read_text()
