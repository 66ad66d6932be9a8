"""The files of a run that are replaced whole: `config.toml`, `plan.json`, `samples/` and `lanes.json`.

`lanes.json` holds the spans of the last step, lane by lane, as the lane timeline draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from workbench.runs.directory import RunDirectory
from workbench.runs.writing import read_json, write_json, write_whole

PLAN_VERSION = 1
LANES_VERSION = 1


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
    except (KeyError, TypeError, ValueError) as error:
        return Lanes(problem=f"{run.lanes} is damaged: {error}")
