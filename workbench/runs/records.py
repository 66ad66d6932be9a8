"""The files that are written once and read as they stand: `config.toml`, `plan.json` and `samples/`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.runs.directory import RunDirectory
from workbench.runs.writing import read_json, write_json, write_whole

PLAN_VERSION = 1


def write_config(run: RunDirectory, text: str) -> None:
    """Keep the resolved configuration, TOML. Raises WorkbenchError where it cannot be written."""
    write_whole(run.config, text)


def write_plan(run: RunDirectory, plan: Mapping[str, object]) -> None:
    """Keep what was planned, and after the run what came out beside it. The keys are the planner's."""
    write_json(run.plan, {"version": PLAN_VERSION, **plan})


def read_plan(run: RunDirectory) -> tuple[dict[str, Any], str]:
    """The plan, and what is wrong with it: empty when nothing is. Never raises."""
    plan, problem = read_json(run.plan)
    version = plan.get("version")
    if not problem and version != PLAN_VERSION:
        problem = f"{run.plan} has version {version}; this Workbench reads {PLAN_VERSION}"
    return plan, problem


def write_sample(run: RunDirectory, step: int, text: str) -> Path:
    """Keep a generated text as `samples/step-00000200.txt`; gives its path."""
    run.samples.mkdir(exist_ok=True)
    path = run.samples / f"step-{step:08d}.txt"
    write_whole(path, text)
    return path
