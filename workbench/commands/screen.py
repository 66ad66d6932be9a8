"""`workbench` alone, `attach` and `top`: the screen, and what of it is printed without one."""

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
    """Whether a screen can be shown: input and output are a terminal that can move its cursor."""
    streams = (sys.stdin, sys.stdout)
    return all(s is not None and s.isatty() for s in streams) and os.environ.get("TERM") != "dumb"


def screen(*, root: Path | None = None, plain: bool = False) -> int:
    """The whole screen. `plain`: drawn with ASCII alone."""
    from workbench.tui.command import show

    return show(runs_root(root), plain=plain)


def attach(name: str | None, root: Path | None, *, read_only: bool, plain: bool) -> int:
    """One run on the screen: the one called `name`, else the latest.

    Raises ConfigurationError where there is no such run, or no terminal.
    """
    from workbench.runs import RunDirectory

    runs = runs_root(root)
    run = RunDirectory.find(runs, name)
    _need_terminal("attach", "`workbench runs` prints how runs stand")
    from workbench.tui.command import show

    return show(runs, run=run, read_only=read_only, plain=plain)


def top(root: Path | None, *, as_json: bool, plain: bool) -> int:
    """The monitor alone; with `as_json` one sample, printed: of the machine, the newest run's trainer, the runs' disk.

    Raises ConfigurationError where there is no terminal.
    """
    if as_json:
        from workbench.monitor.sampler import Sampler
        from workbench.runs.summary import newest_trainer

        runs = runs_root(root).absolute()
        sampler = Sampler()
        sampler.watch(pid=newest_trainer(runs), folders=(runs,))
        print(json.dumps(_finite(asdict(sampler.sample_once())), indent=2, allow_nan=False))
        return EXIT_DONE
    _need_terminal("top", "`workbench top --json` prints one sample")
    from workbench.tui.command import show

    return show(runs_root(root), part="top", plain=plain)


def _need_terminal(verb: str, instead: str) -> None:
    if not is_terminal():
        raise ConfigurationError(f"{verb}: this is no terminal; {instead}")


def _finite(value: Any) -> Any:
    """Without what JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
