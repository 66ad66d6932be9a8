"""Makes the checks, all at the same time, each in a thread of its own and within a limit of time.

Invariant: whatever a check does, one line or more come out of it. One that raises or hangs becomes a warning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workbench.doctor.findings import Finding, one_line, warning
from workbench.doctor.surroundings import Surroundings

LIMIT_S = 20.0


@dataclass(frozen=True)
class Check:
    """A row of the registry. `name`: the first column of its lines, unless it says another."""

    name: str
    look: Callable[[Surroundings], Iterable[Finding]]
    limit_s: float = LIMIT_S


def examine(checks: Sequence[Check], around: Surroundings) -> list[Finding]:
    """The lines of all `checks`, in their order."""
    attempts = [_Attempt(check, around) for check in checks]
    return [finding for attempt in attempts for finding in attempt.findings()]


class _Attempt:
    """One check under way. A daemon thread: one that hangs does not keep the process."""

    def __init__(self, check: Check, around: Surroundings) -> None:
        self._check = check
        self._around = around
        self._found: list[Finding] | None = None
        self._raised: BaseException | None = None
        self._ends = time.monotonic() + check.limit_s
        self._thread = threading.Thread(target=self._look, name=f"doctor-{check.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no room for a thread: the limits' line will say so
            self._look()

    def findings(self) -> list[Finding]:
        if self._thread.ident is not None:
            self._thread.join(max(0.0, self._ends - time.monotonic()))
        name = self._check.name
        if isinstance(self._raised, ModuleNotFoundError):
            finding = one_line(f"the check needs a package that is missing: {self._raised}")
            return [
                warning(name, finding, "install what the packages' line names: `python -m pip install NAME`")
            ]
        if self._raised is not None:
            return [
                _unmade(name, one_line(f"the check failed: {type(self._raised).__name__}: {self._raised}"))
            ]
        if self._found is None:
            return [_unmade(name, f"no answer within {self._check.limit_s:.0f} s")]
        return self._found

    def _look(self) -> None:
        try:
            self._found = list(self._check.look(self._around))
        except BaseException as error:
            self._raised = error


def _unmade(name: str, finding: str) -> Finding:
    return warning(
        name,
        finding,
        f"look at it by hand, mend the lines above and below, and repeat `workbench doctor` ({name})",
    )
