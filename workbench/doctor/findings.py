"""What a check says: one line with a status, and what to do unless it is ok."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.doctor import EXIT_WARNINGS
from workbench.errors import EXIT_DONE, EXIT_ERROR

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One line. `check`: what was looked at. `remedy`: what to do; empty exactly where the status is ok."""

    check: str
    status: Status
    finding: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert (self.status == "ok") == (not self.remedy), f"{self.check}: {self.status} with {self.remedy!r}"


def ok(check: str, finding: str) -> Finding:
    """Nothing to do; `finding` may hold a remark."""
    return Finding(check, "ok", finding)


def warning(check: str, finding: str, remedy: str) -> Finding:
    """Training works, but slower or not as one would expect."""
    return Finding(check, "warning", finding, remedy)


def failure(check: str, finding: str, remedy: str) -> Finding:
    """Training does not work, or something that is there cannot be used."""
    return Finding(check, "failure", finding, remedy)


def exit_code(findings: Sequence[Finding]) -> int:
    """That of the worst: EXIT_ERROR for a failure, EXIT_WARNINGS for a warning, else EXIT_DONE."""
    found = {finding.status for finding in findings}
    if "failure" in found:
        return EXIT_ERROR
    return EXIT_WARNINGS if "warning" in found else EXIT_DONE


def gib(nbytes: int) -> str:
    """`nbytes` in GiB, or in MiB below one."""
    return f"{nbytes / 2**30:,.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.0f} MiB"


def one_line(text: str, longest: int = 300) -> str:
    """`text` on one line, cut where it is longer than `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
