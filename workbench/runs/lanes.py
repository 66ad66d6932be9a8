"""`lanes.json`: the spans of the last step, lane by lane, as the lane timeline draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from workbench.runs.directory import RunDirectory
from workbench.runs.writing import read_json, write_json

LANES_VERSION = 1


class LaneSpan(NamedTuple):
    """One piece of work. A tuple, as a step may have thousands, which are read and written as often as it ends."""

    lane: str
    """compute, download, update, upload, read or write."""
    name: str
    """What is done: the task's kind, "forward" or "update"."""
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
    """The last step's spans. Never raises; see `problem`."""
    values, problem = read_json(run.lanes)
    if problem:
        return Lanes(problem=problem)
    if values.get("version") != LANES_VERSION:
        return Lanes(
            problem=f"{run.lanes} has version {values.get('version')}; this Workbench reads {LANES_VERSION}"
        )
    try:
        names = [str(name) for name in values["fields"]]
        return Lanes(int(values["step"]), tuple(_spans(names, values["spans"])))
    except (KeyError, TypeError, ValueError) as error:
        return Lanes(problem=f"{run.lanes} is damaged: {error}")


def _spans(names: Sequence[str], rows: Sequence[Any]) -> Iterable[LaneSpan]:
    in_order = itemgetter(*(names.index(field) for field in LaneSpan._fields))
    for row in rows:
        if len(row) != len(names):
            raise ValueError(f"a span has {len(row)} values for {len(names)} fields")
        lane, name, unit, chunk, start, end = in_order(row)
        if not isinstance(unit, int) or not isinstance(chunk, int):
            raise ValueError("a span's unit and chunk must be whole numbers")
        if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
            raise ValueError("a span's start and end must be numbers")
        yield LaneSpan(str(lane), str(name), unit, chunk, float(start), float(end))
