"""Ask a run's trainer for something and wait for what it answers.

Invariant: every way it can go is an `Answer` with a sentence for the user; a trainer that ends meanwhile is no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from workbench.errors import WorkbenchError
from workbench.runs.control import send_control
from workbench.runs.directory import RunDirectory
from workbench.runs.events import read_events
from workbench.runs.status import liveness, read_status
from workbench.runs.summary import LIVING

ANSWER_S = 30.0
"""How long an answer is waited for; a step may take longer."""
_LOOK_EVERY_S = 0.1


class Answer(NamedTuple):
    done: bool
    """Whether the trainer has acted."""
    message: str
    """One sentence: what it did, or why there is no answer."""


def ask(
    run: RunDirectory,
    verb: str,
    *,
    answer_s: float = ANSWER_S,
    sleep: Callable[[float], None] = time.sleep,
    given_up: Callable[[], bool] = lambda: False,
) -> Answer:
    """Send `verb` (one of `control.VERBS`) to the trainer of `run` and wait `answer_s` seconds at most.

    `given_up` is asked about every 0.1 s; once it is true, nobody waits any more. The command stands nevertheless.
    """
    if (ended := _ended(run)) is not None:
        return Answer(False, f"cannot {verb}: {ended}")
    offset = read_events(run).offset
    try:
        identity = send_control(run, verb)
    except WorkbenchError as error:
        return Answer(False, str(error))
    deadline = time.monotonic() + answer_s
    while True:
        # The state is asked for before the events: an answer given just before the end is then not missed.
        ended = _ended(run)
        events, offset, _ = read_events(run, offset)
        for event in events:
            if event.kind == "control" and event.fields.get("id") == identity:
                return Answer(True, str(event.fields.get("message") or f"{verb} done"))
        if ended is not None:
            return Answer(False, f"it ended before it could {verb}: {ended}")
        if time.monotonic() >= deadline or given_up():
            return Answer(False, f"no answer to {verb} yet; the run will obey when its present step is done")
        sleep(_LOOK_EVERY_S)


def _ended(run: RunDirectory) -> str | None:
    """Why nobody is there to be asked; None where somebody may be."""
    status = read_status(run)
    state = liveness(status)
    if state in LIVING:
        return None
    told = f" ({status.message})" if status.message else ""
    how = {
        "finished": "it has finished",
        "stopped": "it was stopped",
        "failed": "it failed",
        "died": f"its process {status.pid} is gone",
    }.get(state)
    return f"{how}{told}" if how else status.problem or "it has not begun"
