"""`workbench doctor`: check everything that a run needs, and say how to repair what is wrong.

It measures no speeds (`workbench probe`) and plans no configuration (`workbench plan`). Here is what its checks yield
and what they are given. Invariant: the process that checks never imports torch, so that it can report a torch that is
missing or that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from workbench.doctor.gpu_checks import DriverReport

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One line. `check`: its first column. `remedy`: what to do; empty exactly where the status is ok."""

    check: str
    status: Status
    finding: str
    remedy: str = ""


def ok(check: str, finding: str) -> Finding:
    """Return a finding that needs no repair."""
    return Finding(check, "ok", finding)


def warning(check: str, finding: str, remedy: str) -> Finding:
    """Return a finding with which training works, but more slowly or differently than one would expect."""
    return Finding(check, "warning", finding, remedy)


def failure(check: str, finding: str, remedy: str) -> Finding:
    """Return a finding with which training does not work, or some of the hardware cannot be used."""
    return Finding(check, "failure", finding, remedy)


def one_line(text: str, longest: int = 300) -> str:
    """Return `text` on one line, cut after `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."


@dataclass(frozen=True)
class Outcome:
    """The result of one stage of the trial: its values, or the problem."""

    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Context:
    """The inputs of the checks.

    `runs`: the folder of the runs, which need not exist. `disk`: the folder meant for the disk tier, None where none
    was named. `trial`: the outcome of a stage of the helper process, by the stage's name. `driver`: the report of the
    NVIDIA driver, asked once.
    """

    runs: Path
    disk: Path | None
    trial: Callable[[str], Outcome]
    driver: Callable[[], DriverReport]
