"""What the checks look at, handed to them, so that a test can hand them something else."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from workbench.doctor.nvidia import NvidiaSample

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What became of one stage of the trial: its values, or why there are none. `reached`: it was begun."""

    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    reached: bool = True


REPEAT = "mend what the other lines say, leave room for another process, and repeat `workbench doctor`"
"""The remedy where a stage was not reached."""


class Trial(Protocol):
    """The helper process that tries torch (trial.py holds its stages)."""

    def outcome(self, stage: str) -> Outcome:
        """What became of `stage`; waits for the end of the process, within its limit of time."""
        ...


class Once(Generic[T]):
    """A function without arguments that is called at most once, by whichever thread asks first."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._values: list[T] = []

    def __call__(self) -> T:
        with self._lock:
            if not self._values:
                self._values.append(self._function())
            return self._values[0]


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs this. `prefix`: where its packages go; `base_prefix`: where it was installed."""

    version: tuple[int, int, int]
    implementation: str
    bits: int
    prefix: str
    base_prefix: str


@dataclass(frozen=True)
class Terminal:
    """The terminal this runs in. `size`: columns and lines; None where neither end of it is a terminal."""

    size: tuple[int, int] | None
    encoding: str


@dataclass(frozen=True)
class Surroundings:
    """`root`: where `proc`, `sys` and `dev` lie. `runs`, `cache`: folders that need not be there yet.

    `disk`: the folder meant for the disk tier; None where none was named.
    """

    environ: Mapping[str, str]
    python: Interpreter
    runs: Path
    cache: Path
    disk: Path | None
    terminal: Terminal
    trial: Trial
    nvidia: Callable[[], NvidiaSample]
    root: Path = Path("/")

    def read(self, name: str) -> str:
        """The text of a file below `root`; empty where it cannot be read."""
        try:
            return (self.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def this_interpreter() -> Interpreter:
    """The one that runs this."""
    major, minor, micro = sys.version_info[:3]
    bits = 64 if sys.maxsize > 2**32 else 32
    return Interpreter(
        (major, minor, micro), platform.python_implementation(), bits, sys.prefix, sys.base_prefix
    )
