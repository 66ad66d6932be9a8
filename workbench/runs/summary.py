"""One row of a run for lists: its state, how far it got, and what is wrong with its folder.

Invariant: every folder in the runs' folder has a row, whatever is in it, and nothing here raises. A file that has not
changed since the last reading is not read again.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from workbench.runs.directory import RunDirectory
from workbench.runs.metrics import read_last
from workbench.runs.status import ACTIVE, Status, liveness, read_status

State = Literal["running", "paused", "finished", "stopped", "failed", "died", "stale", "unknown", "foreign"]
"""A `Liveness`, or "foreign": the folder is not a run."""

_NAME = re.compile(r"(\d{8}-\d{6})-(.+)-[0-9a-f]{6}")


@dataclass(frozen=True)
class RunSummary:
    """A row of a list of runs. None means that the value is not known."""

    run: RunDirectory
    state: State
    preset: str
    """The preset that the run is called after; empty where its name has none."""
    started: float | None
    """When the run was begun, unix seconds, by its name."""
    phase: str = "unknown"
    progress: str = ""
    """The progress of the present phase, in words."""
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    """Nats a token, of the last step."""
    validation_loss: float | None = None
    duration_s: float = 0.0
    """All its resumptions together."""
    eta_s: float | None = None
    tokens: int | None = None
    """Tokens trained on, by the last record of its metrics."""
    tokens_per_s: float | None = None
    exit_code: int | None = None
    message: str = ""
    """The status's sentence for the user."""
    problem: str = ""
    """A sentence on what is wrong with its folder; empty where nothing is."""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def active(self) -> bool:
        """True where the run has, or may have, a trainer."""
        return self.state in ACTIVE


class _Reading(NamedTuple):
    """The values read from one folder, and the state of its files then."""

    stamps: tuple[object, ...]
    status: Status | None
    """None: the folder is not a run."""
    row: RunSummary


class RunSummaries:
    """The rows of one runs' folder, kept between two readings."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._readings: dict[str, _Reading] = {}
        self.read_folders = 0
        """Folders whose files have been read so far, all readings together."""

    def read(self, now: float | None = None) -> tuple[RunSummary, ...]:
        """Return a row for every folder in the root, the newest run first, what is no run last.

        Hidden folders and links are left out. `now`: unix seconds, for finding trainers that have fallen silent.
        """
        moment = time.time() if now is None else now
        try:
            with os.scandir(self.root) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                ]
        except OSError:
            names = []
        readings = {name: self.read_folder(name, moment) for name in names}
        # A run that was deleted during the reading is not there, and no folder of something else.
        self._readings = {
            name: reading
            for name, reading in readings.items()
            if reading.row.state != "foreign" or reading.row.run.path.is_dir()
        }
        rows = [reading.row for reading in self._readings.values()]
        rows.sort(key=lambda row: (row.state != "foreign", row.started or 0.0, row.name), reverse=True)
        return tuple(rows)

    def read_folder(self, name: str, now: float) -> _Reading:
        """Read one folder, or return what was read before where its files are as they were."""
        before = self._readings.get(name)
        run = before.row.run if before else RunDirectory(self.root / name)
        stamps = _stamps(f"{self.root}/{name}")
        if before and before.stamps == stamps:
            # A process that is gone does not come back.
            if before.status is None or before.row.state not in ACTIVE:
                return before
            state = liveness(before.status, now)
            if state == before.row.state:
                return before
        self.read_folders += not (before and before.stamps == stamps)
        preset, started = _parts(name)
        if not any(stamps):
            problem = "the folder is not a run: it has no status, no events and no configuration"
            return _Reading(stamps, None, RunSummary(run, "foreign", preset, started, problem=problem))
        status = read_status(run)
        state = liveness(status, now)
        tokens, metrics_problem, torn = read_last(run.metrics, "tokens_total")
        problems = [status.problem, metrics_problem]
        if torn and state not in ACTIVE:
            problems.append("metrics.bin ends in the middle of a record")
        row = RunSummary(
            run,
            state,
            preset,
            started,
            phase=status.phase,
            progress=status.progress,
            step=status.step,
            total_steps=status.total_steps,
            loss=status.loss,
            validation_loss=status.validation_loss,
            duration_s=status.elapsed_s,
            eta_s=status.eta_s,
            tokens=None if tokens is None else int(tokens),
            tokens_per_s=status.tokens_per_s,
            exit_code=status.exit_code,
            message=status.message,
            problem="; ".join(text.replace(f"{run.path}{os.sep}", "") for text in problems if text),
        )
        return _Reading(stamps, status, row)


def summarize(run: RunDirectory, now: float | None = None) -> RunSummary:
    """Return the row of one run."""
    moment = time.time() if now is None else now
    return replace(RunSummaries(run.path.parent).read_folder(run.path.name, moment).row, run=run)


def _parts(name: str) -> tuple[str, float | None]:
    """Return the preset and the beginning (unix seconds) in a run's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return "", None
    try:
        return match[2].partition("+")[0], time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return "", None


def _stamps(folder: str) -> tuple[object, ...]:
    """Return a value that changes with the files of a row; only None where the folder is not a run."""
    status, metrics = _stamp(f"{folder}/status.json"), _stamp(f"{folder}/metrics.bin")
    if status is not None:
        return status, metrics
    is_run = any(_stamp(f"{folder}/{name}") is not None for name in ("events.jsonl", "config.toml"))
    return (None, metrics, True) if is_run else (None, None)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - thousands of times a reading; joining paths would take most of it
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
