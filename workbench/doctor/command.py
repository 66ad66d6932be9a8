"""`workbench doctor`: run the checks one after the other, each within a time limit, and print a line for each finding.

Invariant: a check that raises or hangs becomes a warning, and the others go on.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workbench.doctor import Context, Finding, Status, gpu_checks, host_checks, one_line, warning
from workbench.doctor.trial import LIMIT_S, Trial
from workbench.errors import EXIT_DONE, EXIT_ERROR, EXIT_WARNINGS
from workbench.runs import runs_root
from workbench.system.folders import expanded

COLOURS: dict[Status, str] = {"ok": "32", "warning": "33", "failure": "31"}
"""Green, yellow and red of ECMA-48's select graphic rendition."""


@dataclass(frozen=True)
class Check:
    """`name`: the first column of its lines, unless a finding has its own."""

    name: str
    look: Callable[[Context], Iterable[Finding]]
    limit_s: float = 20.0


_AFTER_TRIAL_S = LIMIT_S + 10.0
CHECKS = (
    Check("python", host_checks.check_python),
    Check("packages", host_checks.check_packages),
    Check(
        "driver", gpu_checks.check_driver
    ),  # before the trial, which would be counted among the GPU's processes
    Check("torch", gpu_checks.check_torch, _AFTER_TRIAL_S),
    Check("cuda", gpu_checks.check_cuda, _AFTER_TRIAL_S),
    Check("pinned memory", gpu_checks.check_pinned_memory, _AFTER_TRIAL_S),
    Check("extension", gpu_checks.check_extension, _AFTER_TRIAL_S),
    Check("threads", host_checks.check_threads, _AFTER_TRIAL_S),
    Check("memory", host_checks.check_memory),
    Check("limits", host_checks.check_limits),
    Check("runs", host_checks.check_runs),
    Check("disk tier", host_checks.check_disk),
    Check("cache", host_checks.check_cache),
    Check("profile", host_checks.check_profile),
    Check("terminal", host_checks.check_terminal),
)
_NAME_WIDTH = max(len(check.name) for check in CHECKS)
_STATUS_WIDTH = max(map(len, COLOURS))


def doctor(*, disk_path: Path | None = None, runs: Path | None = None, as_json: bool = False) -> int:
    """Check this machine and print each finding to stdout as it is found, or all of them as JSON.

    `disk_path`: a folder to try as `offload.disk_path`. `runs`: as `--runs` of other commands. Returns EXIT_DONE where
    all is ok, EXIT_WARNINGS where the worst is a warning, EXIT_ERROR where a check fails.
    """
    findings = []
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    colour = sys.stdout is not None and sys.stdout.isatty() and not is_plain
    for finding in check_machine(disk_path, runs):
        findings.append(finding)
        if not as_json:
            print(as_text(finding, colour=colour), flush=True)
    counted = Counter(finding.status for finding in findings)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        print("\n" + ", ".join(f"{counted[s]} {s}{'s' * (s != 'ok' and counted[s] != 1)}" for s in COLOURS))
    if counted["failure"]:
        return EXIT_ERROR
    return EXIT_WARNINGS if counted["warning"] else EXIT_DONE


def check_machine(disk_path: Path | None, runs: Path | None) -> Iterator[Finding]:
    """Run every check on this machine; yield each finding as it is found."""
    disk = None if disk_path is None else expanded(disk_path, "--disk")
    with Trial() as trial:
        driver = functools.cache(gpu_checks.ask_driver)
        yield from run_checks(CHECKS, Context(runs_root(runs), disk, trial.outcome, driver))


def run_checks(checks: Sequence[Check], context: Context) -> Iterator[Finding]:
    """Run `checks`, each in a thread that is left behind where it hangs."""
    for check in checks:
        result: list[list[Finding] | Exception] = []

        def look(check: Check = check, result: list[list[Finding] | Exception] = result) -> None:
            try:
                result.append(list(check.look(context)))
            except Exception as error:
                result.append(error)

        thread = threading.Thread(target=look, name=f"doctor-{check.name}", daemon=True)
        thread.start()
        thread.join(check.limit_s)
        found = result[0] if result else TimeoutError(f"no answer within {check.limit_s:g} s")
        yield from found if isinstance(found, list) else [_failed_check(check.name, found)]


def _failed_check(name: str, error: Exception) -> Finding:
    if isinstance(error, ModuleNotFoundError):
        remedy = "install what the packages' line names: `python -m pip install NAME`"
        return warning(name, one_line(f"the check needs a package that is missing: {error}"), remedy)
    remedy = "fix the other findings, and run `workbench doctor` again"
    return warning(name, one_line(f"the check failed: {type(error).__name__}: {error}"), remedy)


def as_text(finding: Finding, *, colour: bool) -> str:
    """Return the finding's line, with its remedy on an indented line below."""
    status = f"{finding.status:<{_STATUS_WIDTH}}"
    if colour:
        status = f"\x1b[{COLOURS[finding.status]}m{status}\x1b[0m"
    text = f"{status}  {finding.check:<{_NAME_WIDTH}}  {finding.finding}"
    if finding.remedy:
        text += f"\n{'':<{_STATUS_WIDTH + _NAME_WIDTH + 4}}-> {finding.remedy}"
    return text
