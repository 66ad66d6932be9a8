"""Ending at once: two signals, one after the other, to the run's own trainer and to no other process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from run_host import live, new_run

from workbench.runs.status import process_started
from workbench.tui.run.steering import end_at_once

_STUBBORN = """
import os, signal
def first(*_):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    os.write(1, b"first\\n")  # a signal may strike within print
signal.signal(signal.SIGINT, first)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def test_the_second_signal_ends_a_trainer_that_finishes_its_step_after_the_first(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        run = new_run(tmp_path, live(pid=child.pid, pid_started=process_started(child.pid)), steps=0)
        first = True

        def sleep(seconds: float) -> None:
            # As long as the trainer takes, not as long as the clock says.
            nonlocal first
            if first:
                assert child.stdout is not None and child.stdout.readline() == "first\n"
                first = False
            else:
                child.wait(20)

        answer = end_at_once(run, sleep=sleep)
        assert answer.done and "last checkpoint is kept" in answer.message
        assert child.wait(20) == 130
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def forbidden(pid: int, number: int) -> None:
    raise AssertionError(f"a signal to process {pid}")


def test_a_process_that_has_taken_over_the_number_gets_no_signal(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(pid_started=1000.0), steps=0)
    answer = end_at_once(run, kill=forbidden)
    assert not answer.done and "has ended already" in answer.message


def test_a_trainer_of_another_machine_gets_no_signal_and_its_machine_is_named(tmp_path: Path) -> None:
    run = new_run(tmp_path, live(host="faraway"), steps=0)
    answer = end_at_once(run, kill=forbidden)
    assert not answer.done and "faraway" in answer.message


def test_a_process_that_may_not_be_ended_is_told(tmp_path: Path) -> None:
    def refused(pid: int, number: int) -> None:
        assert number == signal.SIGINT
        raise PermissionError(1, "Operation not permitted")

    answer = end_at_once(new_run(tmp_path, live(), steps=0), kill=refused, sleep=lambda seconds: None)
    assert not answer.done and "not permitted" in answer.message


def test_a_trainer_that_does_not_end_is_told(tmp_path: Path) -> None:
    sent: list[int] = []
    answer = end_at_once(
        new_run(tmp_path, live(), steps=0),
        kill=lambda pid, number: sent.append(number),
        sleep=lambda seconds: None,
    )
    assert not answer.done and "has not ended" in answer.message
    assert sent == [signal.SIGINT, signal.SIGINT]
