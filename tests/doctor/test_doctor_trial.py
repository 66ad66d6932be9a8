"""The helper process: what it learns here, and that hanging or dying in it is told and goes no further."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from workbench.doctor.trial import STAGES, TrialProcess

TELL = 'import os, signal, sys, time\nfd = int(sys.argv[1])\nos.write(fd, b\'{"stage": "one", "values": {"a": 1}}\\n'
BEGIN = '{"stage": "two"}\\n'


def program(end: str) -> str:
    """One stage that succeeds, a second that is begun, and how the process ends in it."""
    return f"{TELL}{BEGIN}')\n{end}\n"


def test_every_stage_has_an_outcome_on_this_machine() -> None:
    with TrialProcess() as trial:
        trial.use_gpu()
        outcomes = {stage: trial.outcome(stage) for stage in STAGES}
    assert {stage: outcome.problem for stage, outcome in outcomes.items() if outcome.problem} == {}
    assert outcomes["torch"].values["threads"] >= 1
    assert 0 <= outcomes["update"].values["error"] < 1e-5
    assert isinstance(outcomes["cuda"].values["devices"], list)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        (
            "print('the driver is unhappy', file=sys.stderr); sys.exit(3)",
            "ended with code 3 (the driver is unhappy)",
        ),
        ('os.write(fd, b\'{"stage": "two", "val\'); os._exit(0)', "ended with code 0"),
    ],
)
def test_a_death_is_told_of_its_stage_and_what_was_learnt_before_stays(end: str, words: str) -> None:
    with TrialProcess(program(end)) as trial:
        assert trial.outcome("one").values == {"a": 1}
        two, three = trial.outcome("two"), trial.outcome("three")
    assert words in two.problem and two.reached
    assert words in three.problem and not three.reached


def test_a_process_that_hangs_is_given_up_and_killed() -> None:
    began = time.monotonic()
    with TrialProcess(program("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"), 0.5) as trial:
        two = trial.outcome("two")
        process: Any = trial._process
    assert "gave no answer within" in two.problem
    assert process.poll() is not None
    assert time.monotonic() - began < 20


def test_a_process_that_nobody_asks_about_ends_with_the_block() -> None:
    with TrialProcess(program("time.sleep(60)")) as trial:
        process: Any = trial._process
    assert process.poll() is not None


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with TrialProcess() as trial:
        trial.use_gpu()
        outcome = trial.outcome("torch")
    assert (
        "could not be started (Resource temporarily unavailable)" in outcome.problem and not outcome.reached
    )
