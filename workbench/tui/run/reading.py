"""Reading one run as it grows: in a look, only what has changed since the look before. Knows no screen.

Invariant: nothing here raises for what is in the folder; what is half-written, damaged or of a newer version comes as
far as it can be read, with a sentence about the rest.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.monitor.recording import read_system
from workbench.plan.outcome import Compared, compare
from workbench.runs import (
    ACTIVE,
    Event,
    Lanes,
    Liveness,
    Metrics,
    RunDirectory,
    Status,
    liveness,
    read_events,
    read_lanes,
    read_plan,
    read_status,
)
from workbench.runs.launch import ExitReason, exit_reason
from workbench.runs.metrics import read_downsampled
from workbench.runs.summary import summarize
from workbench.tui.run.curves import RunCurves
from workbench.tui.run.optimizer_speed import disk_folder, memory_limit_gb_per_s, update_gb_per_s
from workbench.tui.run.standing import MetricRows, StandingRecords

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

LAST_LINES = 12
MANY = 2000
"""So many records at once are made into series here."""
_PIECE = 16_384
"""Records of a long run that are read together."""
_MANY_SPANS, _SPANS_EVERY = 400, 4
"""So many spans and more are read every so many looks: thousands take milliseconds to read, to sort and to draw."""
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class RunLook:
    """What one look found. None: as in the look before."""

    status: Status
    state: Liveness
    preset: str = ""
    """Which the run is called after; empty where its name does not tell."""
    rows: MetricRows | None = None
    """New ones, where there are few."""
    curves: RunCurves | None = None
    """All of the run, where it was read for the first time and is long."""
    events: tuple[Event, ...] = ()
    """New ones."""
    lanes: Lanes | None = None
    optimizer: tuple[float | None, float | None] | None = None
    """The host optimizer's memory traffic in the last step and the machine's limit, 10^9 bytes a second."""
    disk_path: Path | None = None
    """The folder of the disk tier; here None is: there is none."""
    compared: tuple[Compared, ...] | None = None
    """Planned and measured figures."""
    samples: tuple[Path, ...] | None = None
    """The files of generated texts, by their steps."""
    ended: ExitReason | None = None
    """How it ended, once it has."""
    recorded: Metrics | None = None
    """What was recorded of the machine, once the run has ended."""
    problems: tuple[str, ...] = ()
    """What is wrong with the folder now; here () is: nothing."""
    more: bool = False
    """Whether there is more to be read at once."""

    @property
    def living(self) -> bool:
        """Whether it has, or may have, a trainer."""
        return self.state in ACTIVE

    @property
    def here(self) -> bool:
        """Whether its trainer is, or was, a process of this machine."""
        return self.status.host in ("", socket.gethostname())


@dataclass
class _Kept:
    """What earlier looks have found."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    plan_problem: str = ""
    config_problem: str = ""
    lanes: Lanes = field(default_factory=Lanes)
    folder_problem: str = ""
    lines: list[str] = field(default_factory=list)
    """What is wrong with lines of events."""


class RunReader:
    """Looks at one run, for one thread at a time. The first look leaves the metrics out: it is there at once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.looks = 0
        self.records = StandingRecords(run)
        self._offset = 0
        self._stamps: dict[Path, object] = {}
        self._kept = _Kept()
        self._limit: float | None = None
        self._limit_known = False
        self._was_living: bool | None = None
        self._preset = ""

    def look(self, now: float | None = None) -> RunLook:
        """What has changed. `now`: unix seconds, for telling whether the trainer has fallen silent. Never raises."""
        moment = time.time() if now is None else now
        first, self.looks = self.looks == 0, self.looks + 1
        status = read_status(self.run)
        state = liveness(status, moment)
        living = state in ACTIVE
        # Events before metrics: a resumption that comes in between is obeyed by the next look.
        events = self._events()
        rows, curves = (None, None) if first else self._rows(living)
        plan_changed = self._read_plan_and_config()
        lanes = self._lanes(living)
        optimizer = None
        if lanes is not None or plan_changed:
            optimizer = self._optimizer(status, measured=not first)
        ended = recorded = None
        if living:
            self._kept.folder_problem = ""
        elif self._was_living is not False or self._changed(self.run.status):
            summary = summarize(self.run, moment)
            self._kept.folder_problem, self._preset = summary.problem, summary.preset
            ended, recorded = exit_reason(self.run, LAST_LINES), read_system(self.run)
        if first and living:
            self._preset = summarize(self.run, moment).preset
        self._was_living = living
        return RunLook(
            status,
            state,
            self._preset,
            rows,
            curves,
            events,
            lanes,
            optimizer,
            disk_folder(self._kept.config),
            tuple(compare(self._kept.plan)) if plan_changed else None,
            self._samples(),
            ended,
            recorded,
            self._problems(status, living=living),
            more=first,
        )

    def _events(self) -> tuple[Event, ...]:
        found = read_events(self.run, self._offset)
        self._offset = found.offset
        self._kept.lines += found.problems
        del self._kept.lines[_MOST_PROBLEMS:]
        self.records.take_events(found.events)
        return tuple(found.events)

    def glimpse(self) -> RunCurves | None:
        """What the curves of a long run look like, before all of it is read. None where that takes no time."""
        seen = None if self.records.records_read else read_downsampled(self.run.metrics)
        return None if seen is None else RunCurves.glimpsed(seen)

    def _rows(self, living: bool) -> tuple[MetricRows | None, RunCurves | None]:
        if not (self._changed(self.run.metrics) or self.records.has_resumes or living):
            return None, None
        if len(self.records):
            return self.records.read(), None
        rows = self.records.read(_PIECE)
        if not self.records.left and (rows is None or len(rows) < MANY):
            return rows, None
        curves = RunCurves()
        while rows is not None or self.records.left:
            if rows is not None:
                curves.add(rows)
            rows = self.records.read(_PIECE) if self.records.left else None
        return None, curves

    def _read_plan_and_config(self) -> bool:
        """Whether one of them has changed."""
        kept = self._kept
        plan, config = self._changed(self.run.plan), self._changed(self.run.config)
        if plan:
            kept.plan, kept.plan_problem = read_plan(self.run)
        if config:
            kept.config, kept.config_problem = read_config(self.run)
        return plan or config

    def _lanes(self, living: bool) -> Lanes | None:
        many = len(self._kept.lanes.spans) >= _MANY_SPANS and self.run.lanes in self._stamps
        if living and many and self.looks % _SPANS_EVERY:
            return None
        if not self._changed(self.run.lanes):
            return None
        self._kept.lanes = read_lanes(self.run)
        # Before the first step there is no such file, and nothing is wrong with that.
        return self._kept.lanes if self.run.lanes in self._there else None

    def _optimizer(self, status: Status, *, measured: bool) -> tuple[float | None, float | None] | None:
        """None where its figures are not asked for yet."""
        if not measured:
            self._stamps.pop(self.run.lanes, None)  # the next look takes the time for it
            return None
        if not self._limit_known:
            self._limit_known = True
            if status.host in ("", socket.gethostname()):
                self._limit = memory_limit_gb_per_s(self._kept.config)
        speed = update_gb_per_s(self._kept.lanes, self._kept.plan, self._kept.config)
        return speed, self._limit

    def _samples(self) -> tuple[Path, ...] | None:
        if not self._changed(self.run.samples):
            return None
        try:
            names = sorted(entry.name for entry in os.scandir(self.run.samples))
        except OSError:
            return ()
        return tuple(self.run.samples / name for name in names if name.endswith(".txt") and name[0] != ".")

    def _problems(self, status: Status, *, living: bool) -> tuple[str, ...]:
        kept = self._kept
        begun = len(self.records) > 0
        told = [kept.folder_problem or status.problem]
        if self.records.problem and self.run.metrics in self._there:
            told.append(self.records.problem)
        # A run that is being set up has no plan yet.
        if kept.plan_problem and (begun or not living):
            told.append(kept.plan_problem)
        told.append(kept.config_problem)
        if self.run.lanes in self._there:
            told.append(kept.lanes.problem)
        told += kept.lines
        short = (problem.replace(f"{self.run.path}{os.sep}", "") for problem in told if problem)
        return tuple(dict.fromkeys(short))

    @property
    def _there(self) -> set[Path]:
        """The files that were there when they were last looked at."""
        return {path for path, stamp in self._stamps.items() if stamp is not None}

    def _changed(self, path: Path) -> bool:
        """Whether the file is another one than when this was last asked; true the first time."""
        try:
            there = path.stat()
        except OSError:
            stamp: object = None
        else:
            stamp = there.st_mtime_ns, there.st_size, there.st_ino
        if path in self._stamps and self._stamps[path] == stamp:
            return False
        self._stamps[path] = stamp
        return True


def read_config(run: RunDirectory) -> tuple[Mapping[str, Any], str]:
    """The configuration as plain TOML, whatever version wrote it, and what is wrong with it. Never raises."""
    name = run.config.name
    try:
        return tomllib.loads(run.config.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return {}, f"{name} is missing"
    except OSError as error:
        return {}, f"{name} cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError) as error:
        return {}, f"{name} is damaged: {error}"
