"""The commands that start, list, steer and remove runs: `run`, `runs`, `log`, `rm`, `stop`, `save`, `pause`, `resume`.

Those that list and steer only read run directories and append commands to them; the trainer is another process.
"""

from __future__ import annotations

import codecs
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from workbench.commands import print_table, report
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError
from workbench.formatting import decimal_bytes, duration
from workbench.plan.outcome import compare
from workbench.runs import (
    ACTIVE,
    Liveness,
    RunDirectory,
    Status,
    find_run,
    liveness,
    read_plan,
    read_status,
    runs_root,
)
from workbench.runs.checkpoints import BestStep, read_best
from workbench.runs.control import ANSWER_S, ask
from workbench.runs.deleting import delete_run, plan_deletion
from workbench.runs.directory import why_empty
from workbench.runs.ending import death
from workbench.runs.metrics import read_run_metrics

_LOOK_EVERY_S = 0.1
_PIECE_BYTES = 1 << 20
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
    name: str | None = None,
    tags: Sequence[str] = (),
    gpus: str | None = None,
    max_restarts: int = 0,
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
            preset, resume = resume, "auto"
        except ConfigurationError as error:
            try:
                resume = str(find_run(runs_root(runs), resume).path)
            except ConfigurationError as no_run:
                raise ConfigurationError(
                    f"--resume {resume}: there is no such run, nor a preset\n{no_run}\n{error}"
                ) from None
    if preset is None and resume in (None, "auto") and run_directory is None:
        raise ConfigurationError(
            "run: no preset is named; name one (`workbench presets` lists them), or --resume a run's folder"
        )
    from workbench.training.command import run as train

    return train(
        preset=preset,
        overrides=[*overrides, *([] if gpus is None else [f"parallel.gpus={gpus}"])],
        resume=resume if resume in (None, "auto") else Path(resume),
        detach=detach,
        runs=runs,
        run_directory=run_directory,
        labels=([] if name is None else [name]) + list(tags),
        max_restarts=max_restarts,
    )


def runs(*, runs: Path | None, as_json: bool, plan: bool = False, name: str | None = None) -> int:
    """Print the runs below `runs`, the newest first, as a table or as JSON; with `plan`, plan beside outcome.

    `name`: only those that have this in their name.
    """
    folder = runs_root(runs)
    found = [run for run in reversed(RunDirectory.list(folder)) if not name or name in run.name]
    if not found and not as_json:
        there = RunDirectory.list(folder)
        why = f"There are no runs in {folder.absolute()}: {why_empty(folder)}"
        if there:
            why = f"None of the {len(there)} runs in {folder.absolute()} has {name!r} in its name"
        print(why, file=sys.stderr)
        return EXIT_DONE
    if plan:
        return _plans(found, as_json)
    rows = []
    for run in found:
        status = read_status(run)
        rows.append((run, status, liveness(status)))
    if as_json:
        print(json.dumps([_as_json(*row) for row in rows], indent=2))
    else:
        header = ("RUN", "STATE", "STEP", "LOSS", "VALIDATION", "TOKENS/S", "DURATION")
        print_table([header, *(_as_row(*row) for row in rows)], left=2)
    return EXIT_DONE


def _plans(runs: Sequence[RunDirectory], as_json: bool) -> int:
    """Print planned and measured figures of each of `runs`."""
    found = [(run, compare(read_plan(run)[0])) for run in runs]
    if as_json:
        plans = [
            {"name": run.name, "figures": [{**asdict(row), "factor": row.factor} for row in rows]}
            for run, rows in found
        ]
        print(json.dumps(plans, indent=2))
        return EXIT_DONE
    for run, rows in found:
        print(run.name)
        if not rows:
            print("  nothing was measured: the run has not ended, or ended before it trained")
        for row in rows:
            print(f"  {row.text()}")
    return EXIT_DONE


def log(
    *, run: str | None, runs: Path | None, follow: bool, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Print all that a run has printed; with `follow` also what it prints from now on, until it ends.

    Raises ConfigurationError where no run has this name.
    """
    directory = find_run(runs_root(runs), run)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset = 0
    while True:
        # The state is read before the log: what was printed just before the end is then not missed.
        ended = liveness(read_status(directory)) not in ACTIVE
        if directory.log.exists():
            with directory.log.open("rb") as file:
                file.seek(offset)
                while piece := file.read(_PIECE_BYTES):
                    sys.stdout.write(decoder.decode(piece))
                offset = file.tell()
            sys.stdout.flush()
        if ended or not follow:
            if not offset:
                report(f"run {directory.name} has printed nothing yet")
            return EXIT_DONE
        sleep(_LOOK_EVERY_S)


def remove(*, run: Sequence[str], runs: Path | None, yes: bool) -> int:
    """Delete the folders of the runs named in `run`; each is asked about first, unless `yes`.

    Raises:
        ConfigurationError: no run has such a name, or there is nobody to ask; nothing is deleted then.
        WorkbenchError: a run has a trainer, or cannot be deleted.
    """
    found = dict.fromkeys(find_run(runs_root(runs), name) for name in run)
    deletions = [plan_deletion(directory) for directory in found]
    if not yes and not (sys.stdin is not None and sys.stdin.isatty()):
        raise ConfigurationError("rm: there is no terminal to confirm on; --yes deletes without asking")
    for deletion in deletions:
        saved = f"{deletion.checkpoints} checkpoints" if deletion.checkpoints != 1 else "1 checkpoint"
        size = f"{decimal_bytes(deletion.bytes)}, {saved}"
        if not yes and input(f"Delete {deletion.run.path} ({size})? [y/N] ").strip().lower() not in (
            "y",
            "yes",
        ):
            continue
        delete_run(deletion.run)
        print(f"deleted {deletion.run.path} ({size})")
    return EXIT_DONE


def steer(
    *,
    verb: str,
    run: str | None,
    runs: Path | None,
    overrides: Sequence[str] = (),
    wait: bool = False,
    answer_s: float = ANSWER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Send `verb` to the trainer of a run and wait, `answer_s` seconds at most, for its answer.

    `resume` starts a run again from its last checkpoint where no trainer lives, with `overrides` ("table.key=value")
    on top of its configuration; a finished one too, where there are any. `wait` goes on until the run has ended.
    Raises ConfigurationError where no run has this name.
    """
    directory = find_run(runs_root(runs), run)
    state = liveness(read_status(directory))
    if state not in ("running", "paused", "stale"):
        if verb == "resume" and (state in _STARTABLE or (overrides and state == "finished")):
            from workbench.training.command import run as train

            return train(
                preset=None, overrides=list(overrides), resume=str(directory.path), detach=True, runs=None
            )
        more = ""
        if verb == "resume" and state == "finished":
            more = f"; `workbench resume {directory.name} --set train.steps=N` adds steps"
        return _refuse(
            f"run {directory.name}: cannot {verb}: {_why(directory, state, read_status(directory))}{more}"
        )
    if overrides:
        return _refuse(
            f"run {directory.name} is {state}: --set is for a run that starts again; stop it first "
            f"(workbench stop {directory.name})"
        )
    answer = ask(directory, verb, answer_s=answer_s, sleep=sleep)
    if not answer.done:
        return _refuse(f"run {directory.name}: {answer.message}")
    print(f"run {directory.name}: {answer.message}", flush=True)
    while wait and (state := liveness(read_status(directory))) in ACTIVE:
        sleep(_LOOK_EVERY_S)
    if wait and state not in ("stopped", "finished"):
        return _refuse(f"run {directory.name}: {_why(directory, state, read_status(directory))}")
    return EXIT_DONE


def _refuse(message: str) -> int:
    report(message)
    return EXIT_ERROR


def _why(run: RunDirectory, state: Liveness, status: Status) -> str:
    message = f" ({status.message.splitlines()[0]})" if status.message else ""
    where = f"at step {status.step} of {status.total_steps}"
    if state == "finished":
        return f"it finished {where}{message}"
    if state == "stopped":
        return f"it was stopped {where}{message}; `workbench resume` continues from its last checkpoint"
    if state == "failed":
        return f"it failed {where}{message}"
    if state == "died":
        return f"it died {where}: {death(run, status)}"
    return status.problem or "it has not started"


def _as_row(run: RunDirectory, status: Status, state: Liveness) -> tuple[str, ...]:
    known = state != "unknown"
    return (
        run.name,
        state,
        f"{status.step}/{status.total_steps}" if known else "-",
        "-" if status.loss is None else f"{status.loss:.4f}",
        "-" if status.validation_loss is None else f"{status.validation_loss:.4f}",
        "-" if status.tokens_per_s is None else f"{status.tokens_per_s:,.0f}",
        duration(status.elapsed_s) if known else "-",
    )


def _lowest_validation(run: RunDirectory) -> BestStep | None:
    metrics = read_run_metrics(run)
    losses = zip(metrics.column("validation_loss"), metrics.column("step"), strict=True)
    best = min(((float(loss), int(step)) for loss, step in losses if math.isfinite(loss)), default=None)
    return None if best is None else BestStep(best[1], best[0])


def _as_json(run: RunDirectory, status: Status, state: Liveness) -> dict[str, object]:
    best = read_best(run.checkpoints) or _lowest_validation(run)
    return {
        "name": run.name,
        "labels": list(run.labels),
        "path": str(run.path),
        "state": state,
        **{key: getattr(status, key) for key in _STATUS},
        "best_step": None if best is None else best.step,
        "best_validation_loss": None if best is None else best.validation_loss,
    }
