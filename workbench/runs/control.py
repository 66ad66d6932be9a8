"""`control.jsonl`: commands to a living trainer, and how it learns of them.

Anybody may append a line `{id, verb}`; the trainer answers each with one `control` event that carries the id.
A command that was sent while no trainer lived is void: it must not stop the run that somebody starts a day
later.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from workbench.runs.directory import RunDirectory
from workbench.runs.events import append_event, read_events
from workbench.runs.writing import append_line, read_lines

CONTROL_VERSION = 1
VERBS = ("stop", "save", "pause", "resume")


@dataclass(frozen=True)
class Command:
    id: str
    verb: str
    time: float | None
    """When it was sent, unix seconds; None where the sender did not say."""


def send_control(run: RunDirectory, verb: str) -> str:
    """Ask the run's trainer for one of VERBS; gives the id that the answering `control` event will carry."""
    if verb not in VERBS:
        raise ValueError(f"no such verb: {verb!r}; there are {', '.join(VERBS)}")
    identity = secrets.token_hex(6)
    line = {"version": CONTROL_VERSION, "time": time.time(), "id": identity, "verb": verb}
    append_line(run.control, line)
    return identity


class ControlReader:
    """The trainer's side: each command once, in order.

    Void are the commands that are in the file when the reader is made, unless they were sent after the run
    was acquired (`RunDirectory.acquire`) and have no answer yet.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._waiting: list[Command] = []
        answered = {event.fields.get("id") for event in read_events(run).events if event.kind == "control"}
        lines = read_lines(run.control)
        self._offset = lines.offset
        if run.acquired_at is not None:
            for _, line in lines.records:
                command = _command(line)
                if command and command.id not in answered and (command.time or 0.0) >= run.acquired_at:
                    self._waiting.append(command)

    def poll(self) -> list[Command]:
        """The commands since the last poll. A line that is none is skipped with a `warning` event."""
        lines = read_lines(self._run.control, self._offset)
        self._offset = lines.offset
        commands, self._waiting = self._waiting, []
        problems = list(lines.problems)
        for at, line in lines.records:
            command = _command(line)
            if command:
                commands.append(command)
            else:
                expected = f"an id and a verb, one of {', '.join(VERBS)}"
                problems.append(
                    f"{self._run.control}: the line at byte {at} was skipped: it needs {expected}"
                )
        for problem in problems:
            append_event(self._run, "warning", message=problem)
        return commands

    def acknowledge(self, command: Command, message: str = "") -> None:
        """Say that the command has been acted on, and in `message` how."""
        append_event(self._run, "control", id=command.id, verb=command.verb, message=message)


def _command(line: dict[str, object]) -> Command | None:
    identity, verb, when = line.get("id"), line.get("verb"), line.get("time")
    if not isinstance(identity, str) or not identity or verb not in VERBS:
        return None
    return Command(identity, str(verb), float(when) if isinstance(when, (int, float)) else None)
