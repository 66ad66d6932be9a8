"""`workbench doctor`: run every check at once, each in a thread and within a time limit, and print a line for each.

Invariant: every check gives at least one line. One that raises or hangs becomes a warning.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workbench.doctor import EXIT_WARNINGS, host_checks, torch_checks
from workbench.doctor.findings import Context, Finding, Interpreter, Status, one_line, warning
from workbench.doctor.folders import check_cache, check_disk, check_runs
from workbench.doctor.nvidia import NvidiaSample, check_driver, sample
from workbench.doctor.trial import LIMIT_S, TrialProcess
from workbench.errors import EXIT_DONE, EXIT_ERROR
from workbench.runs import runs_root
from workbench.system.folders import cache_folder

CHECK_LIMIT_S = 20.0
SILENT_S = 2.0
"""After so long a terminal is told what the checks wait for."""
COLOURS: dict[Status, str] = {"ok": "32", "warning": "33", "failure": "31"}
"""Green, yellow and red of ECMA-48's select graphic rendition."""


@dataclass(frozen=True)
class Check:
    """A row of the registry. `name`: the first column of its lines, unless a finding has its own."""

    name: str
    look: Callable[[Context], Iterable[Finding]]
    limit_s: float = CHECK_LIMIT_S


_AFTER_TRIAL_S = LIMIT_S + 10.0
CHECKS = (
    Check("python", host_checks.check_python),
    Check("packages", host_checks.check_packages),
    Check("torch", torch_checks.check_torch, _AFTER_TRIAL_S),
    Check("driver", check_driver),
    Check("cuda", torch_checks.check_cuda, _AFTER_TRIAL_S),
    Check("pinned memory", torch_checks.check_pinned_memory, _AFTER_TRIAL_S),
    Check("extension", torch_checks.check_extension, _AFTER_TRIAL_S),
    Check("threads", host_checks.check_threads, _AFTER_TRIAL_S),
    Check("memory", host_checks.check_memory),
    Check("limits", host_checks.check_limits),
    Check("runs", check_runs),
    Check("disk tier", check_disk),
    Check("cache", check_cache),
    Check("profile", host_checks.check_profile),
    Check("terminal", host_checks.check_terminal),
)


def doctor(*, disk_path: Path | None = None, runs: Path | None = None, as_json: bool = False) -> int:
    """Check this machine and print the findings to stdout, as a table or as JSON.

    `disk_path`: a folder to try as `offload.disk_path`. `runs`: as `--runs` of other commands. Returns 0 where all is
    ok, EXIT_WARNINGS where the worst is a warning, 1 where a check fails.
    """
    findings = check_machine(disk_path, runs)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(findings, colour=_coloured())))
    return exit_code(findings)


def check_machine(disk_path: Path | None, runs: Path | None) -> list[Finding]:
    """Run every check on this machine."""
    with TrialProcess() as trial, _waiting_message():

        @functools.cache
        def ask_driver() -> NvidiaSample:
            # The trial would be counted among the processes that use the GPU: it waits for this.
            try:
                return sample()
            finally:
                trial.use_gpu()

        asking = threading.Lock()

        def nvidia() -> NvidiaSample:
            with asking:
                return ask_driver()

        context = Context(
            environ=dict(os.environ),
            python=Interpreter(),
            runs=runs_root(runs),
            cache=cache_folder(),
            disk=None if disk_path is None else _expanded(disk_path),
            terminal=host_checks.this_terminal(),
            trial=trial.outcome,
            nvidia=nvidia,
        )
        return run_checks(CHECKS, context)


def _expanded(path: Path) -> Path:
    """Return `path` without "~"; unchanged where there is no such home, and so no such folder."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def run_checks(checks: Sequence[Check], context: Context) -> list[Finding]:
    """Run all `checks` at the same time; return their lines in the order of the checks."""
    results: list[list[Finding] | BaseException | None] = [None] * len(checks)

    def run(index: int) -> None:
        try:
            results[index] = list(checks[index].look(context))
        except BaseException as error:
            results[index] = error

    started = time.monotonic()
    threads: list[threading.Thread | None] = []
    for index, check in enumerate(checks):
        # Daemon threads: one that hangs does not keep the process alive.
        thread = threading.Thread(target=run, args=(index,), name=f"doctor-{check.name}", daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # no room for a thread: the line of the limits reports it
            run(index)
            threads.append(None)
    found: list[Finding] = []
    for index, check in enumerate(checks):
        running = threads[index]
        if running is not None:
            running.join(max(0.0, started + check.limit_s - time.monotonic()))
        result = results[index]
        found += result if isinstance(result, list) else [_failed_check(check, result)]
    return found


def _failed_check(check: Check, error: BaseException | None) -> Finding:
    if isinstance(error, ModuleNotFoundError):
        return warning(
            check.name,
            one_line(f"the check needs a package that is missing: {error}"),
            "install what the packages' line names: `python -m pip install NAME`",
        )
    if error is None:
        finding = f"no answer within {check.limit_s:.0f} s"
    else:
        finding = one_line(f"the check failed: {type(error).__name__}: {error}")
    return warning(
        check.name, finding, "repair what the lines above and below say, and repeat `workbench doctor`"
    )


def exit_code(findings: Sequence[Finding]) -> int:
    """Return EXIT_ERROR for a failure, else EXIT_WARNINGS for a warning, else EXIT_DONE."""
    statuses = {finding.status for finding in findings}
    if "failure" in statuses:
        return EXIT_ERROR
    return EXIT_WARNINGS if "warning" in statuses else EXIT_DONE


def lines(findings: Sequence[Finding], *, colour: bool) -> Iterator[str]:
    """Yield a line for each finding, its remedy on an indented line below, and a count of each status."""
    status_width = max(map(len, COLOURS))
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        status = f"{finding.status:<{status_width}}"
        if colour:
            status = f"\x1b[{COLOURS[finding.status]}m{status}\x1b[0m"
        yield f"{status}  {finding.check:<{width}}  {finding.finding}"
        if finding.remedy:
            yield f"{'':<{status_width + width + 4}}-> {finding.remedy}"
    counted = Counter(finding.status for finding in findings)
    yield ""
    yield ", ".join(f"{counted[s]} {s}{'s' * (s != 'ok' and counted[s] != 1)}" for s in COLOURS)


@contextlib.contextmanager
def _waiting_message() -> Iterator[None]:
    """Say on a terminal what the checks wait for, once it takes long."""

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            print(f"trying torch in a helper process; at most {LIMIT_S:.0f} s", file=sys.stderr, flush=True)

    timer = threading.Timer(SILENT_S, write)
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _coloured() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout is not None and sys.stdout.isatty() and not plain
