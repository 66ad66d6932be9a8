"""`events.jsonl`: the rare things of a run, one JSON object a line, in the order in which they happened.

Every line has `version`, `time` (unix seconds) and `kind`; the rest depends on the kind:

- phase: `phase`, `step`
- evaluation: `step`, `loss` (nats a token), `perplexity`, `seconds`
- sample: `step`, `path` (relative to the run)
- checkpoint: `step`, `path` (relative to the run), `seconds`, `best` (its validation loss is the lowest so far)
- warning: `message`
- loss_scale: `step` (the first that has it), `scale`
- disk: `written_per_day` (bytes a day that the disk tier wrote at this session's rate)
- control: `id`, `verb`, `message`: the trainer has acted on this command
- resume: `from_step` (the first step that is done again), `record` (how many metric records were kept: those of earlier
  steps), `checkpoint`, and `changed` and `converted` where it goes on under other settings
- finished: `step`, `exit_code`, `message`

A reader ignores kinds and fields that it does not know.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from workbench.runs.directory import RunDirectory
from workbench.runs.writing import append_line, read_lines

EVENT_VERSION = 1
EVENT_KINDS = (
    "phase",
    "evaluation",
    "sample",
    "checkpoint",
    "warning",
    "loss_scale",
    "disk",
    "control",
    "resume",
    "finished",
)


@dataclass(frozen=True)
class Event:
    kind: str
    time: float
    """Unix seconds."""
    fields: dict[str, Any] = field(default_factory=dict)
    version: int = EVENT_VERSION


class Events(NamedTuple):
    events: list[Event]
    offset: int
    """The byte where the next reading starts."""
    problems: list[str]


def append_event(run: RunDirectory, kind: str, **fields: object) -> None:
    """Append one event. Raises WorkbenchError where it cannot be written, ValueError for an unknown kind."""
    if kind not in EVENT_KINDS:
        raise ValueError(f"no such kind of event: {kind!r}; there are {', '.join(EVENT_KINDS)}")
    append_line(run.events, {"version": EVENT_VERSION, "time": time.time(), "kind": kind, **fields})


def read_events(run: RunDirectory, offset: int = 0) -> Events:
    """Return the events from byte `offset` on, without a torn last line. Never raises; see `problems`."""
    lines = read_lines(run.events, offset)
    events = []
    problems = list(lines.problems)
    for at, record in lines.records:
        kind, when, version = record.pop("kind", None), record.pop("time", None), record.pop("version", 1)
        if not isinstance(kind, str) or not isinstance(when, (int, float)) or not isinstance(version, int):
            problems.append(f"{run.events}: the line at byte {at} is no event and was skipped")
            continue
        if version > EVENT_VERSION:
            problems.append(
                f"{run.events}: the line at byte {at} has version {version}; known is {EVENT_VERSION}"
            )
        events.append(Event(kind, float(when), record, version))
    return Events(events, lines.offset, problems)
