"""Looks at one run as it grows: each finds only what has changed since the one before. No widgets.

Invariant: nothing here raises for what is in the folder; what is half-written, damaged or of a newer version comes as
far as it can be read, with a sentence about the rest.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import ConfigurationError
from workbench.formatting import known, share
from workbench.monitor.recording import read_system
from workbench.plan.outcome import Compared, compare
from workbench.runs import (
    ACTIVE,
    Event,
    Lanes,
    Liveness,
    Metrics,
    MetricsReader,
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
from workbench.system.folders import expanded
from workbench.system.foreign import parse_toml
from workbench.tui.panels.host_optimizer import OptimizerLoad
from workbench.tui.run.charts import RunCurves

Table = Mapping[str, Any]

TRAFFIC_BYTES = {"exact": 26, "half": 18, "compact": 14}
"""Memory traffic of an update, bytes a parameter, of bf16 working weights: all of the state and the gradient are read,
all of the state is written, the working weights with it (they are the master's upper half)."""
_TRAFFIC_OF_WHOLE_MASTERS = 28
"""The same of fp32 working weights (4 + 4 + 4 + 4 read, 4 + 4 + 4 written), and of fp16 ones, whose fp32 master is
kept beside them (4 + 4 + 4 + 2 read, 4 + 4 + 4 + 2 written)."""
_MOMENTS_ROW = "exp_avg and exp_avg_sq"
_MOMENTS_OF_EXACT = 8
LAST_LINES = 12
_PIECE = 16_384
"""Records of a long run that are read together."""
_MANY_SPANS, _SPANS_EVERY = 400, 4
"""So many spans and more are read every so many looks: thousands take milliseconds to read, to sort and to draw."""
_MOST_PROBLEMS = 20
_RECENT = 240
"""Steps whose updates are drawn."""


def update_gb_per_s(lanes: Lanes, plan: Table, config: Table) -> float | None:
    """Return parameters x bytes a parameter / seconds / 10^9; None where the optimizer did not run on the host.

    The parameters are those whose state is not on the device, of several ranks the first one's part, the seconds those
    in which an update ran. Small parameters that stay `exact` in the other state formats are counted like all the rest;
    what an update ahead of the norm records, and what undoing it moves, is not counted.
    """
    parameters, seconds = _parameters_on_host(plan, config), _update_seconds(lanes)
    return parameters * traffic_bytes(plan, config) / seconds / 1e9 if parameters and seconds else None


def traffic_bytes(plan: Table, config: Table) -> int:
    """Return the bytes a parameter that an update moves between memory and processor."""
    state_format = _table(config, "offload").get("state_format", "exact")
    precision = _table(config, "train").get("precision", "auto")
    if precision == "auto":
        parameters = _table(plan, "memory").get("parameters")
        weights = max((_row(tier, "weights") for tier in _tiers(plan)), default=0.0)
        precision = "fp32" if isinstance(parameters, int) and weights > 3 * parameters else "bf16"
    if precision in ("fp32", "fp16") and state_format == "exact":
        return _TRAFFIC_OF_WHOLE_MASTERS
    return TRAFFIC_BYTES.get(state_format, TRAFFIC_BYTES["exact"])


def memory_limit_gb_per_s(config: Table) -> float | None:
    """Return what this machine's memory was measured to carry, 10^9 bytes a second; None where it never was.

    A copy reads and writes, so that its traffic is twice its bytes. Asks which machine this is, which may take long.
    """
    from workbench.profiles.this_machine import cached_profile

    try:
        profile = cached_profile(_table(config, "train").get("device", "auto"))
    except Exception:
        # A driver that answers with nonsense, a device that is not there: then the limit is not known.
        return None
    return None if profile is None else 2 * max(profile.host.copy_bytes_per_s) / 1e9


def disk_folder(config: Table) -> Path | None:
    """Return the folder of the disk tier; None where the run has none, or one that cannot be."""
    offload = _table(config, "offload")
    path = offload.get("disk_path")
    if (
        not isinstance(path, str)
        or not path
        or not {"disk", "auto"} & {*map(offload.get, ("weights", "state"))}
    ):
        return None
    try:
        return expanded(path, "offload.disk_path")
    except ConfigurationError:
        return None


def _parameters_on_host(plan: Table, config: Table) -> float | None:
    """Return how many parameters' state the first rank has on its host or disk; None where it has none there."""
    parameters = _table(plan, "memory").get("parameters")
    placement = _table(plan, "placement") or _table(config, "offload")
    if not isinstance(parameters, (int, float)) or placement.get("state") not in ("host", "disk"):
        return None
    fraction = placement.get("device_fraction", 0.0)
    found = parameters * (1 - fraction) if isinstance(fraction, (int, float)) else float(parameters)
    if _table(config, "offload").get("state_format", "exact") == "exact":
        # Under an adapter most parameters are not trained: only the moments tell how many are.
        moments = sum(_row(tier, _MOMENTS_ROW) for tier in _tiers(plan) if tier.get("tier") != "device")
        found = min(found, moments / _MOMENTS_OF_EXACT) if moments else found
    ranks = plan.get("ranks", 1)
    return found / ranks if isinstance(ranks, int) and ranks > 1 else found


def _update_seconds(lanes: Lanes) -> float:
    """Return the seconds of the last step in which an update ran, ahead of the norm or after, overlapping ones counted
    once."""
    seconds = reached = 0.0
    for start, end in sorted(
        (span.start_s, span.end_s)
        for span in lanes.spans
        if span.name in ("update", "speculate") and span.lane == "update"
    ):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds


def _table(values: Table, name: str) -> Table:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _tiers(plan: Table) -> list[Table]:
    tiers = _table(plan, "memory").get("tiers")
    return [tier for tier in tiers if isinstance(tier, Mapping)] if isinstance(tiers, list) else []


def _has_device(plan: Table) -> bool:
    """Tell whether the model computes in memory of its own, not in the host's."""
    return any(tier.get("tier") == "device" for tier in _tiers(plan))


def _row(tier: Table, name: str) -> float:
    size = _table(tier, "needs").get(name)
    return float(size) if isinstance(size, (int, float)) else 0.0


@dataclass(frozen=True)
class RunLook:
    """The findings of one look. None: as in the look before."""

    status: Status
    state: Liveness
    preset: str = ""
    """The preset that the run is called after; empty where its name does not tell."""
    rows: Metrics | None = None
    """New records."""
    curves: RunCurves | None = None
    """The curves of all records, where they were read for the first time, or anew after a resumption."""
    events: tuple[Event, ...] = ()
    """New ones."""
    lanes: Lanes | None = None
    lanes_of: int = 0
    """The rank that `lanes` is of."""
    ranks: int = 1
    """Those that have a folder."""
    optimizer: OptimizerLoad | None = None
    """The host optimizer's load in the newest steps of this session."""
    disk_path: Path | None = None
    """The folder of the disk tier; here None means that there is none."""
    compared: tuple[Compared, ...] | None = None
    """Planned and measured figures."""
    samples: tuple[Path, ...] | None = None
    """The files of generated texts, by their steps."""
    ended: ExitReason | None = None
    """The run's end, once it has ended."""
    recorded: Metrics | None = None
    """The record of the machine, once the run has ended."""
    problems: tuple[str, ...] = ()
    """The problem of the folder now."""
    more: bool = False
    """There is more to be read at once."""

    @property
    def active(self) -> bool:
        """It has, or may have, a trainer."""
        return self.state in ACTIVE

    @property
    def here(self) -> bool:
        """Its trainer is, or was, a process of this machine."""
        return self.status.host in ("", socket.gethostname())


class RunReader:
    """Looks at one run, for one thread at a time. The first look leaves the metrics out: it is there at once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.looks = 0
        self._metrics = MetricsReader(run)
        self._metrics_problem = ""
        self._offset = 0
        self._event_problems: list[str] = []
        self._stamps: dict[Path, object] = {}
        self._plan: Mapping[str, Any] = {}
        self._config: Mapping[str, Any] = {}
        self._plan_problem = self._config_problem = self._folder_problem = ""
        self._lanes = Lanes()
        self._limit: float | None = None
        self._recent: list[tuple[float, ...]] = []
        self._was_active: bool | None = None
        self._preset = ""
        self._rank = 0

    def show_rank(self, rank: int) -> RunDirectory:
        """Read the lanes of this rank from now on; return its folder."""
        directory = rank_directory(self.run, rank)
        self._rank = rank
        self._stamps.pop(directory.lanes, None)
        return directory

    @property
    def records(self) -> int:
        """The number of records that were read."""
        return self._metrics.records

    def downsampled(self) -> RunCurves | None:
        """Return what the curves of a long run look like before it is read; None where reading takes no time."""
        sample = None if self.records else read_downsampled(self.run.metrics)
        return None if sample is None else RunCurves.downsampled(sample)

    def look(self, now: float | None = None) -> RunLook:
        """Return what has changed. `now`: unix seconds, to tell whether the trainer has fallen silent. Never raises."""
        moment = time.time() if now is None else now
        self.looks += 1
        first = self.looks == 1
        status = read_status(self.run)
        state = liveness(status, moment)
        active = state in ACTIVE
        # Events before metrics: a resumption that comes in between is obeyed by the next look.
        found = read_events(self.run, self._offset)
        self._offset = found.offset
        self._event_problems = [*self._event_problems, *found.problems][:_MOST_PROBLEMS]
        was_cut = self._metrics.rewind(found.events)
        rows, curves = (None, None) if first else self._read_metrics(was_cut)
        plan_changed = self._read_plan_and_config()
        rank = self._rank
        lanes = self._read_lanes(active)
        if rank:
            lanes = self._read_lanes_of(rank_directory(self.run, rank))
        optimizer = None if first else self._optimizer_load(status, active=active)
        ended = recorded = None
        if active:
            self._folder_problem = ""
        elif self._was_active is not False or self._changed(self.run.status):
            summary = summarize(self.run, moment)
            self._folder_problem, self._preset = summary.problem, summary.preset
            ended, recorded = exit_reason(self.run, LAST_LINES), read_system(self.run)
        if first and active:
            self._preset = summarize(self.run, moment).preset
        self._was_active = active
        return RunLook(
            status,
            state,
            self._preset,
            rows,
            curves,
            tuple(found.events),
            lanes,
            rank,
            ranks_of(self.run),
            optimizer,
            disk_folder(self._config),
            tuple(compare(self._plan)) if plan_changed else None,
            self._samples(),
            ended,
            recorded,
            self._problems(status, active=active),
            more=first,
        )

    def _read_metrics(self, was_cut: bool) -> tuple[Metrics | None, RunCurves | None]:
        if was_cut:
            self._metrics = MetricsReader(self.run)
            self._recent.clear()
        anew = not self.records
        found = self._metrics.read(_PIECE)
        self._metrics_problem = found.problem
        self._remember(found)
        if not anew:
            return (found if len(found) else None), None
        if not len(found) and not was_cut:
            return None, None
        curves = RunCurves()
        while len(found):
            curves.add(found)
            found = self._metrics.read(_PIECE)
            self._remember(found)
        return None, curves

    def _read_plan_and_config(self) -> bool:
        """Tell whether one of them has changed."""
        plan, config = self._changed(self.run.plan), self._changed(self.run.config)
        if plan:
            self._plan, self._plan_problem = read_plan(self.run)
        if config:
            self._config, self._config_problem = read_config(self.run)
        return plan or config

    def _read_lanes(self, active: bool) -> Lanes | None:
        many = len(self._lanes.spans) >= _MANY_SPANS
        if active and many and self.looks % _SPANS_EVERY:
            return None
        if not self._changed(self.run.lanes):
            return None
        self._lanes = read_lanes(self.run)
        # Before the first step there is no such file, and nothing is wrong with that.
        return self._lanes if self._is_there(self.run.lanes) else None

    def _read_lanes_of(self, directory: RunDirectory) -> Lanes | None:
        """Return the lanes of another rank than the first; None where they are as before, or not there."""
        changed = self._changed(directory.lanes)
        return read_lanes(directory) if changed and self._is_there(directory.lanes) else None

    def _optimizer_load(self, status: Status, *, active: bool) -> OptimizerLoad:
        if self.looks == 2 and status.host in ("", socket.gethostname()):
            self._limit = memory_limit_gb_per_s(self._config)
        began = status.pid_started if active else 0.0
        recent = [record for record in self._recent if record[0] >= began]
        is_present = bool(recent) and self._lanes.step >= recent[0][5]
        format_ = _table(self._config, "offload").get("state_format", "exact")
        step_s, update_s, exposed_s, threads = ([record[n] for record in recent] for n in (1, 2, 3, 4))
        ahead, undone = recent[-1][6:] if recent else (0.0, 0.0)
        own = _parameters_on_host(self._plan, self._config)
        return OptimizerLoad(
            tuple(step_s),
            tuple(update_s),
            tuple(exposed_s),
            int(threads[-1]) if threads and math.isfinite(threads[-1]) else None,
            format_ if isinstance(format_, str) else "",
            update_gb_per_s(self._lanes, self._plan, self._config) if is_present else None,
            self._limit,
            ahead=share(known(ahead), own),
            undone=share(known(undone), own),
            ended=not active,
            on_device=_table(self._plan, "placement").get("state") == "device" and _has_device(self._plan),
        )

    def _remember(self, found: Metrics) -> None:
        """Keep the newest records of what the host optimizer's load is made of, those without it left out."""
        seconds = ("step_s", "update_s", "update_exposed_s")
        names = ("time", *seconds, "update_threads", "step", "speculated", "undone")
        columns = [found.column(name)[-_RECENT:].tolist() for name in names]
        self._recent += [row for row in zip(*columns, strict=True) if all(map(math.isfinite, row[:4]))]
        del self._recent[:-_RECENT]

    def _samples(self) -> tuple[Path, ...] | None:
        if not self._changed(self.run.samples):
            return None
        try:
            return tuple(sorted(self.run.samples.glob("[!.]*.txt")))
        except OSError:
            return ()

    def _problems(self, status: Status, *, active: bool) -> tuple[str, ...]:
        problems = [self._folder_problem or status.problem]
        if self._metrics_problem and self.run.metrics.exists():
            problems.append(self._metrics_problem)
        # A run that is being set up has no plan yet.
        if self.records or not active:
            problems.append(self._plan_problem)
        problems.append(self._config_problem)
        if self._is_there(self.run.lanes):
            problems.append(self._lanes.problem)
        problems += self._event_problems
        short = (problem.replace(f"{self.run.path}{os.sep}", "") for problem in problems if problem)
        return tuple(dict.fromkeys(short))

    def _is_there(self, path: Path) -> bool:
        """Tell whether the file was there when it was last looked at."""
        return self._stamps.get(path) is not None

    def _changed(self, path: Path) -> bool:
        """Tell whether the file is another one than when this was last asked; true the first time."""
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


def rank_directory(run: RunDirectory, rank: int) -> RunDirectory:
    """Return the folder of a rank: the run's own for the first."""
    return RunDirectory(run.path / "ranks" / str(rank)) if rank else run


def ranks_of(run: RunDirectory) -> int:
    """Return how many ranks have a folder."""
    try:
        return 1 + sum(1 for _ in (run.path / "ranks").iterdir())
    except OSError:
        return 1


def read_config(run: RunDirectory) -> tuple[Mapping[str, Any], str]:
    """Return the configuration as plain TOML, whatever version wrote it, and what is wrong with it. Never raises."""
    name = run.config.name
    try:
        return parse_toml(run.config.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return {}, f"{name} is missing"
    except OSError as error:
        return {}, f"{name} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return {}, f"{name} is damaged: {error}"
