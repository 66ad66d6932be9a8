"""The commands that start, list and steer runs: `run`, `runs`, and `stop`, `save`, `pause`, `resume`.

Those that list and steer only read run directories and append commands to them; the trainer is another process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from workbench.commands import print_table, report
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError
from workbench.formatting import duration
from workbench.plan.outcome import compare
from workbench.runs import (
    Event,
    Liveness,
    RunDirectory,
    Status,
    liveness,
    read_events,
    read_plan,
    read_status,
    runs_root,
    send_control,
)
from workbench.runs.checkpoints import read_best
from workbench.runs.directory import why_empty

_ANSWER_S = 30.0
"""How long a command waits for the trainer's answer; a step may take longer."""
_LOOK_EVERY_S = 0.1
_STARTABLE = ("stopped", "failed", "died", "unknown")
"""A run whose status cannot be read may have a checkpoint; whether it has a trainer, its lock knows."""

_STATUS = (
    *("phase", "step", "total_steps", "loss", "validation_loss", "tokens_per_s", "elapsed_s", "eta_s"),
    *("exit_code", "message", "problem"),
)
"""The fields of `Status` that JSON has of a run."""


def run(
    *,
    preset: str | None,
    overrides: Sequence[str],
    resume: str | None,
    detach: bool,
    runs: Path | None,
    run_directory: Path | None,
) -> int:
    """Train and return the exit code; see `workbench.training.command.run`.

    Raises:
        ConfigurationError: neither a preset nor a run to resume is named.
    """
    if preset is None and resume not in (None, "auto") and not Path(resume).is_dir():
        # In `run --resume PRESET`, argparse takes the preset for the value of --resume.
        from workbench.presets import find_preset

        try:
            find_preset(resume)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"--resume {resume}: there is no such run folder, nor a preset\n{error}"
            ) from None
        preset, resume = resume, "auto"
    if preset is None and resume in (None, "auto") and run_directory is None:
        raise ConfigurationError(
            "run: no preset is named; name one (`workbench presets` lists them), or --resume a run's folder"
        )
    from workbench.training.command import run as train

    return train(
        preset=preset,
        overrides=overrides,
        resume=resume if resume in (None, "auto") else Path(resume),
        detach=detach,
        runs=runs,
        run_directory=run_directory,
    )


def runs(*, runs: Path | None, as_json: bool, plan: bool = False) -> int:
    """Print every run below `runs`, the newest last, as a table or as JSON; with `plan`, plan beside outcome."""
    folder = runs_root(runs)
    if plan:
        return _plans(folder, as_json)
    rows = []
    for run in RunDirectory.list(folder):
        status = read_status(run)
        rows.append((run, status, liveness(status)))
    if as_json:
        print(json.dumps([_as_json(*row) for row in rows], indent=2))
    elif not rows:
        print(f"There are no runs in {folder.absolute()}: {why_empty(folder)}", file=sys.stderr)
    else:
        header = ("RUN", "STATE", "STEP", "LOSS", "TOKENS/S", "DURATION")
        print_table([header, *(_as_row(*row) for row in rows)], left=2)
    return EXIT_DONE


def _plans(folder: Path, as_json: bool) -> int:
    """Print every run's planned and measured figures."""
    found = [(run, compare(read_plan(run)[0])) for run in RunDirectory.list(folder)]
    if as_json:
        plans = [
            {"name": run.name, "figures": [{**asdict(row), "error": row.error} for row in rows]}
            for run, rows in found
        ]
        print(json.dumps(plans, indent=2))
        return EXIT_DONE
    if not found:
        print(f"There are no runs in {folder.absolute()}: {why_empty(folder)}", file=sys.stderr)
    for run, rows in found:
        print(run.name)
        if not rows:
            print("  nothing was measured: the run has not ended, or ended before it trained")
        for row in rows:
            print(f"  {row.text()}")
    return EXIT_DONE


def steer(
    *,
    verb: str,
    run: str | None,
    runs: Path | None,
    overrides: Sequence[str] = (),
    answer_s: float = _ANSWER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Send `verb` to the trainer of a run and wait, `answer_s` seconds at most, for its answer.

    `resume` starts a run anew from its last checkpoint where no trainer lives, with `overrides` ("table.key=value")
    on top of its configuration; a finished one too, where there are any. Raises ConfigurationError
    where no run has this name.
    """
    directory = RunDirectory.find(runs_root(runs), run)
    state = liveness(read_status(directory))
    if state not in ("running", "paused", "stale"):
        if verb == "resume" and (state in _STARTABLE or (overrides and state == "finished")):
            from workbench.training.command import run as train

            return train(
                preset=None, overrides=list(overrides), resume=str(directory.path), detach=True, runs=None
            )
        more = ""
        if verb == "resume" and state == "finished":
            more = f"; `workbench resume {directory.name} --set train.steps=N` goes on to a later one"
        return _refuse(f"run {directory.name}: cannot {verb}: {_why(state, read_status(directory))}{more}")
    if overrides:
        return _refuse(
            f"run {directory.name} is {state}: --set is for a run that starts again; stop it first "
            f"(workbench stop {directory.name})"
        )
    offset = read_events(directory).offset
    identity = send_control(directory, verb)
    deadline = time.monotonic() + answer_s
    while True:
        # The state is asked for before the events: an answer given just before the end is then not missed.
        state = liveness(read_status(directory))
        events, offset, _ = read_events(directory, offset)
        answer = _answer(events, identity)
        if answer is not None:
            print(f"run {directory.name}: {answer.fields.get('message') or f'{verb} done'}")
            return EXIT_DONE
        if state not in ("running", "paused", "stale"):
            reason = _why(state, read_status(directory))
            return _refuse(f"run {directory.name}: it ended before it could {verb}: {reason}")
        if time.monotonic() >= deadline:
            return _refuse(
                f"run {directory.name}: no answer to {verb} within {answer_s:.0f} s; "
                "the run will obey when its present step is done"
            )
        sleep(_LOOK_EVERY_S)


def _answer(events: list[Event], identity: str) -> Event | None:
    matching = (event for event in events if event.kind == "control" and event.fields.get("id") == identity)
    return next(matching, None)


def _refuse(message: str) -> int:
    report(message)
    return EXIT_ERROR


def _why(state: Liveness, status: Status) -> str:
    message = f" ({status.message.splitlines()[0]})" if status.message else ""
    where = f"at step {status.step} of {status.total_steps}"
    if state == "finished":
        return f"it finished {where}{message}"
    if state == "stopped":
        return f"it was stopped {where}{message}; `workbench resume` goes on from its last checkpoint"
    if state == "failed":
        return f"it failed {where}{message}"
    if state == "died":
        return (
            f"its process {status.pid} is gone since step {status.step} of {status.total_steps}; "
            "`workbench resume` goes on from its last checkpoint"
        )
    return status.problem or "it has not begun"


def _as_row(run: RunDirectory, status: Status, state: Liveness) -> tuple[str, ...]:
    known = state != "unknown"
    return (
        run.name,
        state,
        f"{status.step}/{status.total_steps}" if known else "-",
        "-" if status.loss is None else f"{status.loss:.4f}",
        "-" if status.tokens_per_s is None else f"{status.tokens_per_s:,.0f}",
        duration(status.elapsed_s) if known else "-",
    )


def _as_json(run: RunDirectory, status: Status, state: Liveness) -> dict[str, object]:
    best = read_best(run.checkpoints)
    return {
        "name": run.name,
        "path": str(run.path),
        "state": state,
        **{key: getattr(status, key) for key in _STATUS},
        "best_step": None if best is None else best.step,
        "best_validation_loss": None if best is None else best.validation_loss,
    }
