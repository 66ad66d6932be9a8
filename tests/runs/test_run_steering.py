"""Asking a trainer and hearing what it answers, whatever becomes of it meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.runs import ControlReader, RunDirectory, Status, read_events, write_status
from workbench.runs.control import ask


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path, "p")
    write_status(run, Status(phase="training", step=3, total_steps=9))
    return run


def test_the_trainers_answer_is_given(run: RunDirectory) -> None:
    trainer = ControlReader(run)

    def trainer_answers(seconds: float) -> None:
        for command in trainer.poll():
            trainer.acknowledge(command, f"{command.verb}d after step 3")

    assert ask(run, "pause", sleep=trainer_answers) == (True, "paused after step 3")


def test_the_answer_of_another_command_is_not_taken_for_its_own(run: RunDirectory) -> None:
    trainer = ControlReader(run)
    answer = ask(run, "save", sleep=lambda _: None, answer_s=0.0)
    assert answer.done is False and "no answer to save yet" in answer.message
    [late] = trainer.poll()

    def ends(seconds: float) -> None:
        trainer.acknowledge(late, "saved late")
        write_status(run, Status(phase="stopped", message="by hand"))

    assert ask(run, "save", sleep=ends) == (False, "it ended before it could save: it was stopped (by hand)")


def test_an_answer_given_just_before_the_end_is_not_missed(run: RunDirectory) -> None:
    trainer = ControlReader(run)

    def last_act(seconds: float) -> None:
        [command] = trainer.poll()
        trainer.acknowledge(command, "stopping")
        write_status(run, Status(phase="stopped"))

    assert ask(run, "stop", sleep=last_act) == (True, "stopping")


def test_whoever_gives_up_waits_no_longer_but_the_command_stands(run: RunDirectory) -> None:
    trainer = ControlReader(run)
    assert ask(run, "stop", given_up=lambda: True, sleep=lambda _: pytest.fail("it waited")).done is False
    assert [command.verb for command in trainer.poll()] == ["stop"]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (Status(phase="finished"), "cannot stop: it has finished"),
        (Status(phase="failed", message="no room"), "cannot stop: it failed (no room)"),
        (
            Status(phase="training", pid=2**22 + 1, pid_started=1.0),
            "cannot stop: its process 4194305 is gone",
        ),
    ],
)
def test_a_run_without_a_trainer_is_not_asked(run: RunDirectory, status: Status, told: str) -> None:
    write_status(run, status)
    assert ask(run, "stop") == (False, told)
    assert not run.control.exists() and read_events(run).events == []


def test_a_folder_that_cannot_be_written_is_told(run: RunDirectory) -> None:
    run.control.mkdir()
    answer = ask(run, "stop")
    assert answer.done is False and "control.jsonl: cannot be written" in answer.message
