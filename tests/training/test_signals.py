"""Signals become requests; before training a stop strikes at once. (A second stop ends the process: see end_to_end.)"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from workbench.training.signals import Requests, StopBeforeTraining


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_before_training_strikes_where_it_comes_and_says_so(number: int, code: int) -> None:
    with Requests() as requests, pytest.raises(StopBeforeTraining, match="before the first step") as stop:
        send(number)
    assert stop.value.exit_code == requests.stop_code == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_while_training_is_kept_for_the_end_of_the_step(
    number: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with Requests() as requests:
        requests.training = True
        send(number)
        requests.request_stop(1)
        assert requests.stop and requests.stop_code == code, "the first stop decides the exit code"
    assert "finishing the step, then saving; a second one exits at once" in capsys.readouterr().err


def test_usr1_asks_for_a_save_and_hup_for_nothing() -> None:
    with Requests() as requests:
        send(signal.SIGHUP)
        assert not requests.save and not requests.stop
        send(signal.SIGUSR1)
        assert requests.save and not requests.stop


def test_afterwards_the_signals_are_as_they_were_and_no_thread_is_left() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    threads = set(threading.enumerate())
    descriptors = open_descriptors()
    for _ in range(3):
        with Requests():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert [signal.getsignal(number) for number in numbers] == before
    assert set(threading.enumerate()) == threads
    assert open_descriptors() == descriptors
