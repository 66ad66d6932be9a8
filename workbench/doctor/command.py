"""`workbench doctor`: make every check and print a line for each; the exit code says the worst of them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from workbench.doctor.checks import CHECKS
from workbench.doctor.examination import examine
from workbench.doctor.findings import Finding, exit_code
from workbench.doctor.nvidia import NvidiaSample, sample
from workbench.doctor.surroundings import Once, Surroundings, this_interpreter
from workbench.doctor.table import as_json, lines
from workbench.doctor.terminal import this_terminal
from workbench.doctor.trial_process import LIMIT_S, TrialProcess
from workbench.runs import runs_root
from workbench.system.folders import cache_folder

PATIENCE_S = 2.0


def doctor(*, disk_path: Path | None = None, runs: Path | None = None, json: bool = False) -> int:
    """Look at this machine and print what is found to stdout, as a table or as JSON.

    `disk_path`: a folder to be tried as `offload.disk_path`. `runs`: as `--runs` of other verbs. Returns 0 where all is
    ok, `workbench.doctor.EXIT_WARNINGS` where the worst is a warning, 1 where something fails.
    """
    findings = look_around(disk_path, runs)
    if json:
        print(as_json(findings))
    else:
        print("\n".join(lines(findings, colour=_coloured())))
    return exit_code(findings)


def look_around(disk_path: Path | None, runs: Path | None) -> list[Finding]:
    """The findings of every check, made on this machine."""
    with TrialProcess() as trial, _patience():

        def ask_driver() -> NvidiaSample:
            # The trial would be counted among the processes that use the GPU: it waits for this.
            try:
                return sample()
            finally:
                trial.use_gpu()

        around = Surroundings(
            environ=dict(os.environ),
            python=this_interpreter(),
            runs=runs_root(runs),
            cache=cache_folder(),
            disk=None if disk_path is None else _expanded(disk_path),
            terminal=this_terminal(),
            trial=trial,
            nvidia=Once(ask_driver),
        )
        return examine(CHECKS, around)


def _expanded(path: Path) -> Path:
    """Without "~"; as it is where there is no such home, and then no such folder."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Say on a terminal what is waited for, once it takes long."""

    def tell() -> None:
        with contextlib.suppress(OSError, ValueError):
            print(
                f"trying torch in a process of its own; at most {LIMIT_S:.0f} s", file=sys.stderr, flush=True
            )

    timer = threading.Timer(PATIENCE_S, tell)
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _coloured() -> bool:
    environ = os.environ
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and not environ.get("NO_COLOR")
        and environ.get("TERM") != "dumb"
    )
