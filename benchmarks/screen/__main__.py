"""`python -m benchmarks.screen`: the screen's first picture, its cost, opening a long run, and keys, in one table."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

import textual

from benchmarks.screen import live, startup

PARTS = ("startup", "cpu", "opening", "keys")


class Row(NamedTuple):
    what: str
    value: float
    unit: str
    goal: float | None = None
    """The value is to be at most this; None: it stands beside another."""

    @property
    def met(self) -> str:
        return "" if self.goal is None else "met" if self.value <= self.goal else "missed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or with --json its rows. Exit code 0 whatever the figures are: machines are not alike."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screen", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone; may be given again")
    parser.add_argument("--starts", type=int, default=9, help="starts of each application (9)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a live run (30)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the run that is opened (1000000)")
    parser.add_argument("--opens", type=int, default=5, help="how often it is opened (5)")
    parser.add_argument("--presses", type=int, default=40, help="keys on each screen (40)")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args(arguments)
    begun = load()
    rows: list[Row] = []
    for part in options.only or PARTS:
        rows += {"startup": _startup, "cpu": _cpu, "opening": _opening, "keys": _keys}[part](options)
    if options.json:
        print(json.dumps([{**row._asdict(), "met": row.met} for row in rows], indent=2))
        return 0
    words = sys.argv[1:] if arguments is None else arguments
    print(
        f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores; "
        f"Python {platform.python_version()}, textual {textual.__version__}; {datetime.date.today().isoformat()}; "
        f"load {begun} at the start, {load()} at the end\n"
        f"{shlex.join(['python', '-m', 'benchmarks.screen', *words])}\n"
    )
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}{'measured':>12}{'goal':>14}")
    for row in rows:
        goal = "" if row.goal is None else f"{_figure(row.goal, row.unit)} {row.met}"
        print(f"{row.what:{width}}{_figure(row.value, row.unit):>12}{goal:>18}".rstrip())
    return 0


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _startup(options: argparse.Namespace) -> list[Row]:
    found = startup.measure(options.starts, _tell)
    return [
        Row("first picture, empty Textual application", found.empty.wall_s, "s"),
        Row("first picture, the screen", found.screen.wall_s, "s"),
        Row("  times the empty one", found.ratio, "x", startup.GOAL),
        Row("  times the empty one, processor time", found.cpu_ratio, "x", startup.GOAL),
        Row("presets listed and planned", found.listed.wall_s, "s"),
    ]


def _cpu(options: argparse.Namespace) -> list[Row]:
    _tell(f"a live run for {options.seconds:.0f} s")
    share = live.cpu_share(options.seconds)
    return [Row("live run, 64 cores, 8 GPUs, 160x50: share of one core", share, "%", live.CPU_GOAL)]


def _opening(options: argparse.Namespace) -> list[Row]:
    _tell(f"a run of {options.steps:,} steps is written")
    found = live.opening(options.steps, options.opens)
    name = f"run of {options.steps:,} steps"
    return [
        Row(f"{name}, first picture", found.first.wall_s, "s", live.OPEN_GOAL_S),
        Row(f"{name}, its curves drawn", found.curves.wall_s, "s", live.OPEN_GOAL_S),
        Row("  processor time", found.curves.cpu_s, "s"),
        Row(f"{name}, every step of its loss", found.loss.wall_s, "s"),
        Row(f"{name}, every step of all curves", found.whole.wall_s, "s"),
        Row("  processor time", found.whole.cpu_s, "s"),
        Row("  most memory", found.peak_mib, "MiB"),
    ]


def _keys(options: argparse.Namespace) -> list[Row]:
    rows = []
    for where in live.SEQUENCES:
        _tell(f"keys: {where}")
        found = live.keys(where, options.presses)
        rows += [
            Row(f"key to picture, {where}, median of {found.presses}", found.median_s, "ms", live.KEY_GOAL_S),
            Row("  worst", found.worst_s, "ms", live.KEY_GOAL_S),
            Row("  processor time a key", found.cpu_s, "ms"),
        ]
    return rows


def _figure(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "MiB":
        return f"{value:.0f} MiB"
    return f"{1000 * value:.0f} ms" if unit == "ms" else f"{value:.2f} {unit}"


def _tell(said: str) -> None:
    print(said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
