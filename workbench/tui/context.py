"""The context that every screen gets (the folder of runs, the monitor, the characters, the clock), and the state of the
screen that comes back the next time.

Tests give their own clock and monitor, so that a picture is the same every time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workbench.system.folders import read_cached, write_cached
from workbench.system.foreign import parse_json
from workbench.tui.glyphs import BLOCKS, Glyphs

if TYPE_CHECKING:  # it would hold up the first picture
    from workbench.monitor.samples import MonitorSample

UI_STATE_FILE = "screen.json"


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


@dataclass(frozen=True)
class UiState:
    theme: str = ""
    """The name of a theme; empty: the default."""
    mode: str = ""
    """The part of the screen that was seen last: "presets", "runs" or "top"."""
    hidden_panels: tuple[str, ...] = ()
    """The ids of the monitor's hidden panels."""


def read_ui_state() -> UiState:
    """Return what was written last, and the defaults where that cannot be read."""
    try:
        values = parse_json(read_cached(UI_STATE_FILE) or "{}")
        hidden = values.get("hidden_panels", [])
        state = UiState(values.get("theme", ""), values.get("mode", ""), tuple(hidden))
    except (ValueError, TypeError, AttributeError):
        return UiState()
    texts = (state.theme, state.mode, *state.hidden_panels)
    return state if isinstance(hidden, list) and all(isinstance(text, str) for text in texts) else UiState()


def write_ui_state(state: UiState) -> None:
    """Write the file, whole or not at all."""
    write_cached(UI_STATE_FILE, json.dumps(asdict(state)))
