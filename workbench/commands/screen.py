"""`workbench` alone, `attach` and `top`: the screen, and one printed sample of the monitor."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.errors import EXIT_DONE, ConfigurationError
from workbench.system.folders import runs_root


def is_terminal() -> bool:
    """Return True where a screen can be shown: input and output are a terminal that can move its cursor."""
    streams = (sys.stdin, sys.stdout)
    return all(s is not None and s.isatty() for s in streams) and os.environ.get("TERM") != "dumb"


def screen(*, root: Path | None = None, plain: bool = False) -> int:
    """Show the whole screen. `plain`: drawn with ASCII alone."""
    from workbench.tui.command import show

    return show(runs_root(root), plain=plain)


def attach(*, run: str | None, runs: Path | None, read_only: bool, plain: bool) -> int:
    """Show one run on the screen: the one named `run`, else the one that trains, else the newest.

    Raises ConfigurationError where there is no such run, or no terminal.
    """
    from workbench.runs import find_run

    root = runs_root(runs)
    directory = find_run(root, run)
    _need_terminal("attach", "`workbench runs` lists the runs and their states")
    from workbench.tui.command import show

    return show(root, run=directory, read_only=read_only, plain=plain)


def top(*, runs: Path | None, as_json: bool, plain: bool) -> int:
    """Show the monitor alone; with `as_json` print one sample: machine, newest run's trainer, disk of the runs.

    Raises ConfigurationError where there is no terminal.
    """
    if as_json:
        from workbench.monitor.sampler import Sampler
        from workbench.runs.finding import newest_trainer

        root = runs_root(runs).absolute()
        sampler = Sampler(interval_s=0.2)
        sampler.watch(pid=newest_trainer(root), folders=(root,))
        print(json.dumps(_finite(asdict(sampler.sample_once())), indent=2, allow_nan=False))
        return EXIT_DONE
    _need_terminal("top", "`workbench top --json` prints one sample")
    from workbench.tui.command import show

    return show(runs_root(runs), part="top", plain=plain)


def _need_terminal(command: str, instead: str) -> None:
    if not is_terminal():
        raise ConfigurationError(f"{command}: this is not a terminal; {instead}")


def _finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
