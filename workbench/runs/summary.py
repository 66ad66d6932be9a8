"""One row of a run for lists: what it is, how far it got, and what is wrong with its folder.

Invariant: every folder in the runs' folder has a row, whatever is in it, and nothing here raises. A file that has not
changed since the last look is not read again.
"""

from __future__ import annotations

import functools
import math
import os
import re
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from workbench.runs.directory import RunDirectory
from workbench.runs.metrics import _PREFIX as METRICS_PREFIX
from workbench.runs.metrics import read_header
from workbench.runs.status import Status, liveness, read_status

State = Literal["running", "paused", "finished", "stopped", "failed", "died", "stale", "unknown", "foreign"]
"""What `liveness` tells, or "foreign": the folder is no run."""
LIVING: tuple[State, ...] = ("running", "paused", "stale")
"""The states of a run that has, or may have, a trainer."""
RESUMABLE: tuple[State, ...] = ("stopped", "failed", "died", "unknown")
"""The states from which a run can go on; whether an unknown one has a trainer, its lock knows."""

_NAME = re.compile(r"(\d{8}-\d{6})-(.+)-[0-9a-f]{6}")
_HEADER_BYTES = 1 << 13


@dataclass(frozen=True)
class RunSummary:
    """What a list says of a run. None means that it is not known."""

    run: RunDirectory
    state: State
    preset: str
    """The preset that the run is called after; empty where its name does not tell."""
    started: float | None
    """When the run was begun, unix seconds, by its name."""
    phase: str = "unknown"
    progress: str = ""
    """How far the present phase is, in words."""
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
    """What the run says of itself."""
    problem: str = ""
    """What is wrong with its folder; empty where nothing is."""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def living(self) -> bool:
        """Whether it has, or may have, a trainer."""
        return self.state in LIVING


class _Look(NamedTuple):
    """What was read of one folder, and of which state of its files."""

    paths: tuple[str, str]
    """Status and metrics: joining paths would take most of a look."""
    files: tuple[object, ...]
    status: Status | None
    """None: the folder is no run."""
    tokens: int | None
    metrics_problem: str
    torn: bool
    """The metrics end in the middle of a record: a living trainer may be about to finish it."""
    summary: RunSummary


class RunSummaries:
    """The rows of one runs' folder, kept between two looks."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._looks: dict[str, _Look] = {}
        self.read_folders = 0
        """How many folders' files have been read so far, all looks together."""

    def read(self, now: float | None = None) -> tuple[RunSummary, ...]:
        """Every folder in the root, the newest run first, what is no run last; none where the root is missing.

        Hidden folders and links are left out. `now`: unix seconds, for telling what has fallen silent.
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
        looks = {name: self._look(name, moment) for name in names}
        # A run that was deleted while it was looked at is not there, and no folder of something else.
        looks = {
            name: look
            for name, look in looks.items()
            if look.summary.state != "foreign" or look.summary.run.path.is_dir()
        }
        self._looks = looks
        rows = [look.summary for look in looks.values()]
        rows.sort(key=lambda row: (row.state != "foreign", row.started or 0.0, row.name), reverse=True)
        return tuple(rows)

    def _look(self, name: str, now: float) -> _Look:
        before = self._looks.get(name)
        run = before.summary.run if before else RunDirectory(self.root / name)
        paths = before.paths if before else (str(run.status), str(run.metrics))
        files = _state_of_files(run, paths)
        if before and before.files == files:
            if before.status is None or before.summary.state not in LIVING:  # a process does not come back
                return before
            state = liveness(before.status, now)
            if state == before.summary.state:
                return before
            return before._replace(summary=_row(before.summary, before, state))
        self.read_folders += 1
        preset, started = _parts(name)
        if not any(files):
            nothing = "the folder is no run: it has no status, no events and no configuration"
            row = RunSummary(run, "foreign", preset, started, problem=nothing)
            return _Look(paths, files, None, None, "", False, row)
        status = read_status(run)
        tokens, problem, torn = _end_of_metrics(run.metrics)
        look = _Look(paths, files, status, tokens, problem, torn, RunSummary(run, "unknown", preset, started))
        return look._replace(summary=_row(look.summary, look, liveness(status, now)))


def list_summaries(root: Path) -> tuple[RunSummary, ...]:
    """One look at every folder in `root`, the newest run first."""
    return RunSummaries(root).read()


def summarize(run: RunDirectory, now: float | None = None) -> RunSummary:
    """The row of one run. Never raises."""
    summaries = RunSummaries(run.path.parent)
    row = summaries._look(run.path.name, time.time() if now is None else now).summary
    return replace(row, run=run)


def _row(row: RunSummary, look: _Look, state: State) -> RunSummary:
    """`row` with what was read."""
    status = look.status or Status()
    problems = [status.problem, look.metrics_problem]
    if look.torn and state not in LIVING:
        problems.append("metrics.bin ends in the middle of a record")
    return replace(
        row,
        state=state,
        phase=status.phase,
        progress=status.progress,
        step=status.step,
        total_steps=status.total_steps,
        loss=status.loss,
        validation_loss=status.validation_loss,
        duration_s=status.elapsed_s,
        eta_s=status.eta_s,
        tokens=look.tokens,
        tokens_per_s=status.tokens_per_s,
        exit_code=status.exit_code,
        message=status.message,
        problem="; ".join(problem.replace(f"{row.run.path}{os.sep}", "") for problem in problems if problem),
    )


def _parts(name: str) -> tuple[str, float | None]:
    """Preset and beginning that a run's name tells."""
    match = _NAME.fullmatch(name)
    if match is None:
        return "", None
    try:
        return match[2], time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S"))
    except (ValueError, OverflowError):
        return "", None


def _state_of_files(run: RunDirectory, paths: tuple[str, str]) -> tuple[object, ...]:
    """What changes whenever a file changes that a row is made of; nothing but None where the folder is no run."""
    status, metrics = _stamp(paths[0]), _stamp(paths[1])
    if status is not None:
        return status, metrics
    marked = _stamp(str(run.events)) is not None or _stamp(str(run.config)) is not None
    return (None, metrics, True) if marked else (None, None)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        there = os.stat(path)  # noqa: PTH116 - some thousand times a look
    except (OSError, ValueError):
        return None
    return there.st_mtime_ns, there.st_size, there.st_ino


def _end_of_metrics(path: Path) -> tuple[int | None, str, bool]:
    """Tokens by the last whole record, what is wrong with the file, and whether its last record is torn."""
    try:
        with path.open("rb", buffering=0) as file:
            start, width, index, problem = _tokens_column(file.read(_HEADER_BYTES))
            if not width:
                return None, problem, False
            records, rest = divmod(os.fstat(file.fileno()).st_size - start, width)
            if records <= 0 or index is None:
                return None, "", bool(rest)
            data = os.pread(file.fileno(), 8, start + (records - 1) * width + 8 * index)
    except FileNotFoundError:
        return None, "", False  # a run that has not taken a step
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror or error}", False
    value = struct.unpack("<d", data)[0] if len(data) == 8 else math.nan
    return (int(value) if math.isfinite(value) else None), "", bool(rest)


def _tokens_column(data: bytes) -> tuple[int, int, int | None, str]:
    """`_tokens_column_of` the header at the beginning of `data`."""
    length = METRICS_PREFIX.unpack_from(data)[2] if len(data) >= METRICS_PREFIX.size else 0
    return _tokens_column_of(data[: METRICS_PREFIX.size + length])


@functools.lru_cache(maxsize=16)
def _tokens_column_of(header: bytes) -> tuple[int, int, int | None, str]:
    """Where records start, bytes a record (0: unreadable), the tokens' column, and what is wrong.

    Runs of one version have one header: it is understood once.
    """
    columns, start, problem = read_header(header, Path("metrics.bin"))
    index = next((i for i, column in enumerate(columns) if column.name == "tokens_total"), None)
    return start, 0 if problem else 8 * len(columns), index, problem
