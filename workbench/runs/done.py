"""A run that was done, and stays so where an attempt to go on with it trains nothing.

Invariant: what an attempt leaves behind when it fails is a warning and the reason beside the outcome that stands.
"""

from __future__ import annotations

from dataclasses import replace

from workbench.runs.directory import RunDirectory
from workbench.runs.events import append_event, read_events
from workbench.runs.status import Status, read_status


def done_before(run: RunDirectory) -> Status | None:
    """The status of a run whose last training did all its steps; None where it was begun, went on or ended otherwise.

    Its events tell, for the status itself names whoever tries to go on.
    """
    last = next((e for e in reversed(read_events(run).events) if e.kind in ("finished", "resume")), None)
    if last is None or last.fields.get("phase") != "finished":
        return None
    step, message = last.fields.get("step"), last.fields.get("message")
    if not isinstance(step, int) or not isinstance(message, str):
        return None
    return replace(
        read_status(run),
        phase="finished",
        step=step,
        total_steps=step,
        exit_code=0,
        message=message,
        progress="",
        eta_s=None,
    )


def still_done(run: RunDirectory, done: Status, reason: str) -> Status:
    """The status after an attempt to go on that ended for `reason`, which an event keeps. Raises WorkbenchError."""
    append_event(run, "warning", message=f"the run could not go on, and stays as it was: {reason}")
    return replace(done, message=f"{done.message}; it could not go on: {reason}")
