"""A check's result, and what the checks look at: handed to them, so that a test can hand them something else."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from workbench.doctor.nvidia import NvidiaSample

Status = Literal["ok", "warning", "failure"]

REPEAT = "repair what the other lines say, leave room for another process, and repeat `workbench doctor`"
"""The remedy where a stage of the trial was not reached."""


@dataclass(frozen=True)
class Finding:
    """One line. `check`: its first column. `remedy`: what to do; empty exactly where the status is ok."""

    check: str
    status: Status
    finding: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert (self.status == "ok") == (not self.remedy), f"{self.check}: {self.status} with {self.remedy!r}"


def ok(check: str, finding: str) -> Finding:
    """Nothing to do; `finding` may hold a hint."""
    return Finding(check, "ok", finding)


def warning(check: str, finding: str, remedy: str) -> Finding:
    """Training works, but more slowly or differently than one would expect."""
    return Finding(check, "warning", finding, remedy)


def failure(check: str, finding: str, remedy: str) -> Finding:
    """Training does not work, or some of the hardware cannot be used."""
    return Finding(check, "failure", finding, remedy)


def one_line(text: str, longest: int = 300) -> str:
    """Return `text` on one line, cut after `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."


@dataclass(frozen=True)
class Outcome:
    """The result of one stage of the trial: its values, or the problem. `reached`: the stage was begun."""

    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    reached: bool = True


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs this. `prefix`: where its packages go; `base_prefix`: where it was installed."""

    version: tuple[int, int, int] = sys.version_info[:3]
    implementation: str = platform.python_implementation()
    bits: int = 64 if sys.maxsize > 2**32 else 32
    prefix: str = sys.prefix
    base_prefix: str = sys.base_prefix


@dataclass(frozen=True)
class Terminal:
    """The terminal. `size`: columns and lines; None where no standard stream is a terminal."""

    size: tuple[int, int] | None
    encoding: str


@dataclass(frozen=True)
class Context:
    """All that the checks look at.

    `runs`, `cache`: folders that need not exist. `disk`: the folder meant for the disk tier, None where none was
    named. `trial`: the outcome of a stage of the helper process, by the stage's name; it waits for the process.
    `nvidia`: what the driver reports, asked once. `root`: where `proc` and `sys` are.
    """

    environ: Mapping[str, str]
    python: Interpreter
    runs: Path
    cache: Path
    disk: Path | None
    terminal: Terminal
    trial: Callable[[str], Outcome]
    nvidia: Callable[[], NvidiaSample]
    root: Path = Path("/")

    def read(self, name: str) -> str:
        """Return the text of a file below `root`; empty where it cannot be read."""
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
