"""`control.jsonl`: commands to a run's trainer; how they are sent, read and answered.

Anybody may append a line `{id, verb}`; the trainer answers each with one `control` event that carries the id.
Invariant: a command that was sent while no trainer ran is void: it must not stop the run that somebody starts a day
later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from workbench.errors import WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.runs.records import append_event, append_line, is_time, read_events, read_lines
from workbench.runs.status import ACTIVE, liveness, read_status

CONTROL_VERSION = 1
VERBS = ("stop", "save", "pause", "resume")
ANSWER_S = 30.0
"""Longest wait for an answer; a step may take longer."""
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Command:
    id: str
    verb: str
    time: float | None
    """When it was sent, unix seconds; None where the line has no time."""


def send_control(run: RunDirectory, verb: str) -> str:
    """Ask the run's trainer for one of VERBS; return the id that the answering `control` event will carry."""
    if verb not in VERBS:
        raise ValueError(f"no such verb: {verb!r}; there are {', '.join(VERBS)}")
    identity = secrets.token_hex(6)
    line = {"version": CONTROL_VERSION, "time": time.time(), "id": identity, "verb": verb}
    append_line(run.control, line)
    return identity


class ControlReader:
    """The trainer's side: each command once, in order.

    Commands that are in the file when the reader is made are void, unless they were sent after the run was acquired
    (`RunDirectory.acquire`) and have no answer yet.
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
        """Return the commands since the last poll. A line that is none is skipped with a `warning` event."""
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
        """Record that the command has been carried out, and in `message` how."""
        append_event(self._run, "control", id=command.id, verb=command.verb, message=message)


class Answer(NamedTuple):
    done: bool
    """True where the trainer has carried the command out."""
    message: str
    """One sentence: what it did, or why there is no answer."""


def ask(
    run: RunDirectory,
    verb: str,
    *,
    answer_s: float = ANSWER_S,
    sleep: Callable[[float], None] = time.sleep,
    given_up: Callable[[], bool] | None = None,
) -> Answer:
    """Send `verb` (one of VERBS) to the trainer of `run` and wait at most `answer_s` seconds. Never raises.

    `given_up` is called every 0.1 s; once it returns True, waiting ends. The command stands nevertheless.
    """
    if (ended := _why_ended(run)) is not None:
        return Answer(False, f"cannot {verb}: {ended}")
    offset = read_events(run).offset
    try:
        identity = send_control(run, verb)
    except WorkbenchError as error:
        return Answer(False, str(error))
    deadline = time.monotonic() + answer_s
    while True:
        # The state is read before the events: an answer given just before the end is then not missed.
        ended = _why_ended(run)
        events, offset, _ = read_events(run, offset)
        for event in events:
            if event.kind == "control" and event.fields.get("id") == identity:
                return Answer(True, str(event.fields.get("message") or f"{verb} done"))
        if ended is not None:
            return Answer(False, f"it ended before it could {verb}: {ended}")
        if time.monotonic() >= deadline or (given_up is not None and given_up()):
            return Answer(False, f"no answer to {verb} yet; the run answers after its current step")
        sleep(_LOOK_EVERY_S)


def _why_ended(run: RunDirectory) -> str | None:
    """Return why no trainer can answer; None where one may be there."""
    status = read_status(run)
    state = liveness(status)
    if state in ACTIVE:
        return None
    message = f" ({status.message})" if status.message else ""
    how = {
        "finished": "it has finished",
        "stopped": "it was stopped",
        "failed": "it failed",
        "died": f"its process {status.pid} is gone",
    }.get(state)
    return f"{how}{message}" if how else status.problem or "it has not started"


def _command(line: dict[str, object]) -> Command | None:
    identity, verb, when = line.get("id"), line.get("verb"), line.get("time")
    if not isinstance(identity, str) or not identity or verb not in VERBS:
        return None
    return Command(identity, str(verb), float(when) if is_time(when) else None)
