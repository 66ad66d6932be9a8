"""The context that every screen gets: the folder of runs, the monitor, the characters, the clock.

Tests give their own clock and monitor, so that a picture is the same every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workbench.tui.glyphs import BLOCKS, Glyphs

if TYPE_CHECKING:  # it would hold up the first picture
    from workbench.monitor.samples import MonitorSample


class Monitor(Protocol):
    """A sampler with threads of its own: `latest` never waits."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def watch(self, *, pid: int | None, folders: tuple[Path, ...]) -> None:
        """Sample this process and the disks under these folders from now on."""

    @property
    def latest(self) -> MonitorSample | None:
        """The newest sample; None before the first."""


@dataclass(frozen=True)
class AppContext:
    """Unchanged while the application runs."""

    runs_root: Path
    monitor: Monitor
    glyphs: Glyphs = BLOCKS
    clock: Callable[[], float] = time.time
    """Unix seconds."""
    interval_s: float = 0.5
    """Between two looks at runs and samples."""
    read_only: bool = False
    """Runs are only watched: nothing is started, steered or deleted."""
