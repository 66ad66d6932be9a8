"""control.jsonl: each command reaches the trainer it was meant for, once."""

from workbench.runs import ControlReader, RunDirectory, read_events, send_control


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
