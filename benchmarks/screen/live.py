"""What the screen costs while a run goes on, how soon a long run is open, and how soon a key is seen.

Each runs in a terminal of its own, as a user's does: a key is timed from its writing into the terminal to the last byte
of the picture that it changes. The sampling of the machine itself is not in it; what is drawn is forged.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.screen.forged import ForgedRun
from benchmarks.screen.terminal import InTerminal, Reached, environment
from workbench.runs.metrics import LONG

LARGE = (160, 50)
USUAL = (80, 24)
QUIET_S = 0.1
"""A picture is done when nothing more is written for so long."""
CPU_GOAL, OPEN_GOAL_S, KEY_GOAL_S = 0.05, 1.0, 0.05


class Keys(NamedTuple):
    """From a key to its picture, in s; `cpu_s` is the screen's own time for one key, pictures and plans among it."""

    where: str
    median_s: float
    worst_s: float
    cpu_s: float
    presses: int


class Opening(NamedTuple):
    """The first picture of a run, with its curves, with the loss of every step, and with every step of all curves."""

    first: Reached
    curves: Reached
    loss: Reached
    whole: Reached
    peak_mib: float
    """The most memory that the screen has held."""


LAST_CURVE, CURVES = "MFU 30", 5
"""What the title of the last of so many charts says of the forged run when it is drawn."""
OF_ALL_STEPS = rb"by step(?! \xc2\xb7)"
"""What stands beneath a chart that no longer shows some of the steps alone."""
SEQUENCES: dict[str, tuple[str, ...]] = {
    "presets": ("\x1b[B", "\x1b[A"),  # down and up the list
    "configure": ("1", "\x7f"),  # a digit more, and taken back
    "run": ("v", "2", "3", "4", "1"),  # the next chart; machine, lanes, log and charts
}
_READY = {"presets": ("10.28G", "842.6k"), "configure": ("micro_batch_size", "tokens/s"), "run": ("forged",)}


def cpu_share(seconds: float) -> float:
    """The share of one core that a live run takes: a record a second, looked at twice a second, on a large terminal."""
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as folder:
        run = ForgedRun(Path(folder) / "runs", 2000)
        with _terminal("run", run, folder, LARGE, sample_s=0.5) as terminal:
            terminal.shows("forged")
            _train(terminal, run, min(5.0, seconds))
            before = terminal.reached
            _train(terminal, run, seconds)
            after = terminal.reached
    return (after.cpu_s - before.cpu_s) / (after.wall_s - before.wall_s)


def _train(terminal: InTerminal, run: ForgedRun, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run.step_on()
        terminal.drain(min(1.0, until - time.monotonic()))


def opening(steps: int, repeats: int) -> Opening:
    """From Enter in the list of runs, each time in a screen that has not shown a run before. Medians."""
    found: list[tuple[Reached, ...]] = []
    peaks = []
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as folder:
        run = ForgedRun(Path(folder) / "runs", steps)
        run.end()
        for _ in range(repeats):
            with _terminal("presets", run, folder, LARGE) as terminal:
                terminal.shows(*_READY["presets"])
                terminal.send("H")
                terminal.shows("BEGUN", "forged")
                terminal.settle(QUIET_S)
                begun = terminal.send("\r")
                first, curves = terminal.shows("charts"), terminal.shows(LAST_CURVE)
                loss = whole = curves
                if steps >= LONG:
                    terminal.forget()
                    loss, whole = (terminal.matches(OF_ALL_STEPS, times) for times in (1, CURVES))
                found.append(tuple(each.since(begun) for each in (first, curves, loss, whole)))
                peaks.append(terminal.peak_mib)
    medians = [Reached.median(each) for each in zip(*found, strict=True)]
    return Opening(*medians, peak_mib=statistics.median(peaks))


def keys(where: str, presses: int) -> Keys:
    """Press `presses` keys on a screen, one after the other has been seen."""
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as folder:
        run = ForgedRun(Path(folder) / "runs", 2000)
        run.end()
        with _terminal(where, run, folder, USUAL) as terminal:
            terminal.shows(*_READY[where])
            terminal.settle(1.0)
            before = terminal.reached
            taken = []
            for number in range(presses):
                begun = terminal.send(SEQUENCES[where][number % len(SEQUENCES[where])])
                taken.append(terminal.settle(QUIET_S).since(begun).wall_s)
            cpu_s = terminal.reached.cpu_s - before.cpu_s
    return Keys(where, statistics.median(taken), max(taken), cpu_s / presses, presses)


def _terminal(
    what: str, run: ForgedRun, folder: str, size: tuple[int, int], sample_s: float = 1e9
) -> InTerminal:
    """`sample_s`: between two samples of the machine; usually none comes that would be drawn among the keys."""
    path = str(run.directory.path)
    command = (sys.executable, "-m", "benchmarks.screen.shown", what, path, str(sample_s))
    return InTerminal(command, environment(folder), size)
