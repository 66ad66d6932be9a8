"""control.jsonl: each command reaches the trainer it was meant for, once, and its answer whoever asked."""

from __future__ import annotations

import pytest

from workbench.runs import ControlReader, RunDirectory, Status, read_events, send_control, write_status
from workbench.runs.control import ask


def test_commands_arrive_once_in_order_and_their_answers_carry_the_id(run: RunDirectory) -> None:
    reader = ControlReader(run)
    assert reader.poll() == []
    sent = [send_control(run, verb) for verb in ("pause", "resume", "save", "stop")]
    commands = reader.poll()
    assert [command.id for command in commands] == sent
    assert [command.verb for command in commands] == ["pause", "resume", "save", "stop"]
    assert len(set(sent)) == 4
    assert reader.poll() == []
    reader.acknowledge(commands[0], "paused after step 7")
    (event,) = read_events(run).events
    assert event.kind == "control"
    assert event.fields == {"id": sent[0], "verb": "pause", "message": "paused after step 7"}


def test_a_command_sent_while_no_trainer_lived_is_void(run: RunDirectory) -> None:
    send_control(run, "stop")
    run.acquire()
    reader = ControlReader(run)
    assert reader.poll() == []
    send_control(run, "save")
    assert [command.verb for command in reader.poll()] == ["save"]


def test_a_command_sent_while_the_trainer_was_starting_is_obeyed_unless_answered(run: RunDirectory) -> None:
    run.acquire()
    send_control(run, "pause")
    send_control(run, "stop")
    pause, stop = ControlReader(run).poll()
    ControlReader(run).acknowledge(pause)
    assert ControlReader(run).poll() == [stop]
    run.release()
    run.acquire()
    assert ControlReader(run).poll() == []


def test_a_malformed_line_is_skipped_with_a_warning_and_the_next_is_obeyed(run: RunDirectory) -> None:
    reader = ControlReader(run)
    lines = ["stop", '{"verb": "stop"}', '{"id": "x", "verb": "explode"}', '{"id": 5, "verb": "stop"}', "[]"]
    run.control.write_text("\n".join(lines) + "\n")
    identity = send_control(run, "save")
    assert [command.id for command in reader.poll()] == [identity]
    warnings = [event.fields["message"] for event in read_events(run).events if event.kind == "warning"]
    assert len(warnings) == 5
    assert all("control.jsonl" in message for message in warnings)
    assert reader.poll() == []
    assert len(read_events(run).events) == 5


def test_a_command_behind_a_torn_line_arrives(run: RunDirectory) -> None:
    reader = ControlReader(run)
    run.control.write_text('{"id": "torn", "ver')
    assert reader.poll() == []
    identity = send_control(run, "stop")
    assert [command.id for command in reader.poll()] == [identity]


@pytest.fixture
def living(run: RunDirectory) -> RunDirectory:
    """A run that this process trains."""
    write_status(run, Status(phase="training", step=3, total_steps=9))
    return run


def test_the_trainers_answer_is_given(living: RunDirectory) -> None:
    trainer = ControlReader(living)

    def trainer_answers(seconds: float) -> None:
        for command in trainer.poll():
            trainer.acknowledge(command, f"{command.verb}d after step 3")

    assert ask(living, "pause", sleep=trainer_answers) == (True, "paused after step 3")


def test_the_answer_of_another_command_is_not_taken_for_its_own(living: RunDirectory) -> None:
    trainer = ControlReader(living)
    answer = ask(living, "save", sleep=lambda _: None, answer_s=0.0)
    assert answer.done is False and "no answer to save yet" in answer.message
    [late] = trainer.poll()

    def ends(seconds: float) -> None:
        trainer.acknowledge(late, "saved late")
        write_status(living, Status(phase="stopped", message="by hand"))

    assert ask(living, "save", sleep=ends) == (
        False,
        "it ended before it could save: it was stopped (by hand)",
    )


def test_an_answer_given_just_before_the_end_is_not_missed(living: RunDirectory) -> None:
    trainer = ControlReader(living)

    def last_act(seconds: float) -> None:
        [command] = trainer.poll()
        trainer.acknowledge(command, "stopping")
        write_status(living, Status(phase="stopped"))

    assert ask(living, "stop", sleep=last_act) == (True, "stopping")


def test_whoever_gives_up_waits_no_longer_but_the_command_stands(living: RunDirectory) -> None:
    trainer = ControlReader(living)
    assert ask(living, "stop", given_up=lambda: True, sleep=lambda _: pytest.fail("it waited")).done is False
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
def test_a_run_without_a_trainer_is_not_asked(living: RunDirectory, status: Status, told: str) -> None:
    write_status(living, status)
    assert ask(living, "stop") == (False, told)
    assert not living.control.exists() and read_events(living).events == []


def test_a_folder_that_cannot_be_written_is_told(living: RunDirectory) -> None:
    living.control.mkdir()
    answer = ask(living, "stop")
    assert answer.done is False and "control.jsonl: cannot be written" in answer.message
