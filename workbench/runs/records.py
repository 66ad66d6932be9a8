"""A run's small files (`events.jsonl`, `plan.json`, `lanes.json`, `config.toml`, `samples/`), and how they are written.

Nobody ever sees half of one. A whole file is replaced by a temporary one and a rename; a line is appended with a single
`write`. A process may die at any instruction and a disk may fill up: what is left is the old file, or the new one, or a
torn last line that the next append closes off. Nothing else in `workbench.runs` opens a file for writing, except the
metrics and the log.

`events.jsonl` has the rare things of a run, one JSON object a line, in the order in which they happened. Every line has
`version`, `time` (unix seconds) and `kind`; the rest depends on the kind:

- phase: `phase`, `step`
- evaluation: `step`, `loss` (nats a token), `perplexity`, `seconds`
- evaluation_of: `name` (in `evaluate.sources`), `step`, `loss`
- sample: `step`, `path` (relative to the run)
- checkpoint: `step`, `path` (relative to the run), `seconds`, `best` (its validation loss is the lowest so far)
- warning: `message`
- loss_scale: `step` (the first that has it), `scale`
- disk: `written_per_day` (bytes a day that the disk tier wrote at this session's rate)
- control: `id`, `verb`, `message`: the trainer has acted on this command
- resume: `from_step` (the first step that is done again), `record` (how many metric records were kept: those of earlier
  steps), `checkpoint`, and `changed` and `converted` where it goes on under other settings
- finished: `step`, `exit_code`, `message`

A reader ignores kinds and fields that it does not know. `lanes.json` holds the spans of the last step, lane by lane.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from workbench.errors import WorkbenchError
from workbench.runs.directory import RunDirectory
from workbench.system.files import write_atomically
from workbench.system.foreign import parse_json

PLAN_VERSION = 1
LANES_VERSION = 1
EVENT_VERSION = 1
EVENT_KINDS = (
    "phase",
    "evaluation",
    "evaluation_of",
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
        if not isinstance(kind, str) or not is_time(when) or not isinstance(version, int):
            problems.append(f"{run.events}: the line at byte {at} is not an event and was skipped")
            continue
        if version > EVENT_VERSION:
            problems.append(
                f"{run.events}: the line at byte {at} has version {version}; this Workbench reads {EVENT_VERSION}"
            )
        events.append(Event(kind, float(when), record, version))
    return Events(events, lines.offset, problems)


def is_time(value: object) -> TypeGuard[int | float]:
    """Return True for unix seconds."""
    return isinstance(value, (int, float)) and 0 <= value < 2**63


def write_config(run: RunDirectory, text: str) -> None:
    """Keep the resolved configuration, TOML. Raises WorkbenchError where it cannot be written."""
    write_whole(run.config, text)


def write_plan(run: RunDirectory, plan: Mapping[str, object]) -> None:
    """Keep the plan, and after the run the measured figures beside it. The keys are the planner's."""
    write_json(run.plan, {"version": PLAN_VERSION, **plan})


def read_plan(run: RunDirectory) -> tuple[dict[str, Any], str]:
    """Return the plan, and a sentence on what is wrong with it (empty: nothing). Never raises."""
    plan, problem = read_json(run.plan)
    version = plan.get("version")
    if not problem and version != PLAN_VERSION:
        problem = f"{run.plan} has version {version}; this Workbench reads {PLAN_VERSION}"
    return plan, problem


def write_sample(run: RunDirectory, step: int, text: str) -> Path:
    """Keep a generated text as `samples/step-00000200.txt`; return its path."""
    run.samples.mkdir(exist_ok=True)
    path = run.samples / f"step-{step:08d}.txt"
    write_whole(path, text)
    return path


class LaneSpan(NamedTuple):
    """One piece of work on a lane. A tuple, since a step may have thousands, read and written at every step."""

    lane: str
    """compute, download, update, upload, read or write."""
    name: str
    """The task's kind: "forward", "update"."""
    unit: int
    chunk: int
    """-1 where the work is on the whole unit."""
    start_s: float
    """Since the step began."""
    end_s: float


@dataclass(frozen=True)
class Lanes:
    step: int = 0
    spans: tuple[LaneSpan, ...] = ()
    problem: str = ""


def write_lanes(run: RunDirectory, step: int, spans: Sequence[LaneSpan]) -> None:
    """Replace `lanes.json`. Raises WorkbenchError where it cannot be written."""
    values = [list(span) for span in spans]
    fields = list(LaneSpan._fields)
    write_json(
        run.lanes, {"version": LANES_VERSION, "step": step, "fields": fields, "spans": values}, durable=False
    )


def read_lanes(run: RunDirectory) -> Lanes:
    """Return the last step's spans. Never raises; see `problem`."""
    values, problem = read_json(run.lanes)
    if problem:
        return Lanes(problem=problem)
    if values.get("version") != LANES_VERSION:
        return Lanes(
            problem=f"{run.lanes} has version {values.get('version')}; this Workbench reads {LANES_VERSION}"
        )
    try:
        spans = tuple(
            LaneSpan(str(lane), str(name), int(unit), int(chunk), float(start), float(end))
            for lane, name, unit, chunk, start, end in values["spans"]
        )
        return Lanes(int(values["step"]), spans)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return Lanes(problem=f"{run.lanes} is damaged: {error}")


# How files are written and read


class Lines(NamedTuple):
    """The content of a file of JSON lines from an offset on."""

    records: list[tuple[int, dict[str, Any]]]
    """(offset of the line, the object on it), for every line that holds one."""
    offset: int
    """The byte where the next reading starts: behind the last whole line."""
    problems: list[str]
    """One sentence for each line that could not be read."""


def cannot_write(path: Path, error: OSError) -> WorkbenchError:
    """Return the one error for a file of a run that could not be written."""
    return WorkbenchError(f"{path}: cannot be written: {error.strerror or error}")


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace `path` by `text` at one instant; with `durable` a power failure leaves the new file too.

    Raises WorkbenchError where the file cannot be written; the old one then stands.
    """
    try:
        write_atomically(path, text, durable=durable)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_json(path: Path, value: object, *, durable: bool = True) -> None:
    """Replace `path` by one JSON value, as `write_whole` does."""
    write_whole(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n", durable=durable)


def read_json(path: Path) -> tuple[dict[str, Any], str]:
    """Return the JSON object in `path` and an empty string, or an empty object and what is wrong."""
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}, f"{path} is missing"
    except OSError as error:
        return {}, f"{path} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return {}, f"{path} is damaged: {error}"
    if not isinstance(value, dict):
        return {}, f"{path} is damaged: expected a JSON object"
    return value, ""


def append_line(path: Path, value: Mapping[str, object]) -> None:
    """Append one JSON object as one line with one `write`, closing a torn last line first.

    Raises WorkbenchError where the line cannot be written whole.
    """
    line = json.dumps(plain(value), allow_nan=False).encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise WorkbenchError(f"{path}: a line was only written in part; the disk is full")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path, error) from error


def read_lines(path: Path, offset: int = 0) -> Lines:
    """Return the JSON objects on the whole lines of `path` from byte `offset` on. A missing file has no lines.

    A last line without its newline is left for the next reading; a line that is no JSON object is a problem.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return Lines([], offset, [])
    except OSError as error:
        return Lines([], offset, [f"{path} cannot be read: {error.strerror or error}"])
    records: list[tuple[int, dict[str, Any]]] = []
    problems = []
    at = offset
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            value = parse_json(line) if line.strip() else None
        except ValueError:
            value = ()
        if isinstance(value, dict):
            records.append((at, value))
        elif value is not None:
            problems.append(f"{path}: the line at byte {at} is not a JSON object and was skipped")
        at += len(line)
    return Lines(records, at, problems)


def plain(value: object) -> object:
    """Return `value` as JSON can hold it: a number that is not finite becomes null, a path its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
