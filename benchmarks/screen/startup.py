"""From starting a process to its first whole picture: an empty Textual application, and the screen.

Both are started in turn, again and again, in terminals of the same size, so that what else the machine does falls on
both alike. The screen begins with the presets, a fresh cache and the presets that come with it. As in whatever is
installed, Python's compiled files are there: both get a folder for them that is filled by a start that is not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.screen.terminal import InTerminal, Reached, environment

EMPTY = "from textual.app import App; App().run()"
GOAL = 1.5
"""Times as long as the empty application."""


class Startup(NamedTuple):
    """Medians. `listed`: when the presets, each with its plan, are on the screen too."""

    empty: Reached
    screen: Reached
    listed: Reached

    @property
    def ratio(self) -> float:
        return self.screen.wall_s / self.empty.wall_s

    @property
    def cpu_ratio(self) -> float:
        return self.screen.cpu_s / self.empty.cpu_s


def measure(repeats: int, tell: Callable[[str], None] = lambda said: None) -> Startup:
    """Start both `repeats` times after one time that is not counted."""
    empty, screen, listed = [], [], []
    with tempfile.TemporaryDirectory(prefix="workbench-benchmark-") as folder:
        for repeat in range(repeats + 1):
            with InTerminal((sys.executable, "-c", EMPTY), environment(folder)) as terminal:
                of_empty = terminal.first_frame()
            with InTerminal((sys.executable, "-m", "workbench"), environment(folder)) as terminal:
                of_screen = terminal.first_frame("Reading the presets")
                of_list = terminal.shows("quickstart", "gpt2-10b", "10.28G", "842.6k")
            if repeat:
                empty.append(of_empty)
                screen.append(of_screen)
                listed.append(of_list)
                tell(f"start {repeat} of {repeats}: {of_empty.wall_s:.2f} s, {of_screen.wall_s:.2f} s")
    return Startup(Reached.median(empty), Reached.median(screen), Reached.median(listed))
