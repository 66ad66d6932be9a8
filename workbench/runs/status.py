"""`status.json`: what a run is doing now, and whether the process that should be doing it still runs.

The trainer alone writes it. A reader always gets a `Status`; what could not be read says so in `problem`.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from workbench.runs.directory import RunDirectory
from workbench.runs.records import read_json, write_json
from workbench.system.oom_kills import oom_kills, own_cgroup

STATUS_VERSION = 1
STALE_AFTER_S = 120.0
"""A trainer whose process is there but whose heartbeat is older than this is called stale."""

PHASES = (
    "starting",
    "loading",
    "allocating",
    "training",
    "evaluating",
    "saving",
    "paused",
    "finished",
    "stopped",
    "failed",
    "diverged",
)
_ENDED: dict[str, Liveness] = {
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "diverged": "failed",
}
_SAME_PROCESS_S = 5.0
"""Readings of one process's start time differ by less: the clock that it is read against is adjusted."""

Liveness = Literal["running", "paused", "finished", "stopped", "failed", "died", "stale", "unknown"]
ACTIVE: tuple[str, ...] = ("running", "paused", "stale")
"""The states of a run that has, or may have, a trainer."""
RESUMABLE: tuple[str, ...] = ("stopped", "failed", "died", "unknown")
"""The states from which a run can go on; whether an unknown one has a trainer, its lock knows."""


@dataclass(frozen=True)
class Status:
    """One moment of a run. None means that the value is not known."""

    phase: str = "unknown"
    """One of PHASES; "unknown" where there is no readable status."""
    step: int = 0
    """Steps completed."""
    total_steps: int = 0
    pid: int = 0
    """The trainer's process; 0 where there is none."""
    pid_started: float = 0.0
    """When that process started, unix seconds, by psutil: pids are used again."""
    host: str = ""
    """The machine that the process runs on."""
    heartbeat: float = 0.0
    """When this was written, unix seconds."""
    loss: float | None = None
    """Training loss of the last step, nats a token."""
    validation_loss: float | None = None
    tokens_per_s: float | None = None
    elapsed_s: float = 0.0
    """Time spent on this run, all its resumptions together."""
    eta_s: float | None = None
    exit_code: int | None = None
    """Set once the trainer has ended."""
    message: str = ""
    """One sentence for the user: why it stopped, what it waits for."""
    progress: str = ""
    """The progress of the present phase, in words: "unit 12 of 50"."""
    cgroup: str = ""
    """The folder of the process's cgroup that counts processes killed for lack of memory; empty where none does."""
    oom_kills: int | None = None
    """Its count when this was written."""
    version: int = STATUS_VERSION
    problem: str = ""
    """A sentence on what is wrong with the file that this was read from; never written."""


def write_status(run: RunDirectory, status: Status, *, durable: bool = True) -> None:
    """Replace `status.json`. The heartbeat is set to now; pid, start and host, where not given, to one's own.

    `durable=False` leaves out the wait for the disk: right for heartbeats, not for a phase that must be
    remembered. Raises WorkbenchError where the file cannot be written.
    """
    values = asdict(status)
    del values["problem"]
    values["heartbeat"] = time.time()
    if not status.pid:
        values["pid"], values["host"] = os.getpid(), socket.gethostname()
        values["pid_started"] = _own_start(os.getpid())
        values["cgroup"] = own_cgroup()
        values["oom_kills"] = oom_kills(Path(values["cgroup"])) if values["cgroup"] else None
    write_json(run.status, values, durable=durable)


def read_status(run: RunDirectory) -> Status:
    """Return the run's status. Never raises: what is missing has its default, and `problem` says what is wrong."""
    values, problem = read_json(run.status)
    problems = [problem] if problem else []
    version = values.get("version", STATUS_VERSION)
    if not problem and version != STATUS_VERSION:
        problems.append(f"{run.status} has version {version}; this Workbench knows {STATUS_VERSION}")
    known: dict[str, Any] = {}
    for field in fields(Status):
        if field.name == "problem" or field.name not in values:
            continue
        value = values[field.name]
        if _fits(value, str(field.type)):
            known[field.name] = value
        else:
            problems.append(f"{run.status}: {field.name} = {value!r} is not a {field.type}")
    return Status(**known, problem="; ".join(problems))


def liveness(status: Status, now: float | None = None) -> Liveness:
    """Return what has become of the run: its phase, unless the process that should be in it is gone or silent.

    "died": the process is gone, or its pid belongs to another now. "stale": the process is there but its heartbeat is
    older than STALE_AFTER_S, or it runs on another machine and cannot be asked.
    """
    if status.phase in _ENDED:
        return _ENDED[status.phase]
    if status.phase not in PHASES:
        return "unknown"
    if status.host in ("", socket.gethostname()):
        started = process_started(status.pid)
        if started is None or abs(started - status.pid_started) > _SAME_PROCESS_S:
            return "died"
    if (time.time() if now is None else now) - status.heartbeat > STALE_AFTER_S:
        return "stale"
    return "paused" if status.phase == "paused" else "running"


def process_started(pid: int) -> float | None:
    """Return when this process started, unix seconds; None where it is gone, or ended and not yet collected."""
    import psutil

    if pid <= 0:
        return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


@functools.lru_cache(maxsize=1)
def _own_start(pid: int) -> float:
    return process_started(pid) or 0.0


def _fits(value: object, annotation: str) -> bool:
    if value is None:
        return "None" in annotation
    if isinstance(value, bool):
        return False
    if "float" in annotation:
        return isinstance(value, (int, float))
    if "int" in annotation:
        return isinstance(value, int)
    return isinstance(value, str)
