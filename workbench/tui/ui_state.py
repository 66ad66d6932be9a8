"""What the screen remembers from one time to the next: the theme, and the panels that were hidden.

Invariant: a file that is missing, damaged or from another version costs nothing but the memory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from workbench.system.folders import read_cached, write_cached

FILE_NAME = "screen.json"


@dataclass(frozen=True)
class UiState:
    theme: str = ""
    """A theme's name; empty: the default."""
    mode: str = ""
    """The part of the screen that was seen last: "presets", "runs" or "top"."""
    hidden_panels: tuple[str, ...] = ()
    """Of the monitor, by their ids."""


def read_ui_state() -> UiState:
    """What was written last; the defaults where that cannot be read."""
    try:
        values = json.loads(read_cached(FILE_NAME) or "{}")
    except ValueError:
        return UiState()
    if not isinstance(values, dict):
        return UiState()
    theme, mode, hidden = values.get("theme"), values.get("mode"), values.get("hidden_panels")
    return UiState(
        theme if isinstance(theme, str) else "",
        mode if isinstance(mode, str) else "",
        tuple(name for name in hidden if isinstance(name, str)) if isinstance(hidden, list) else (),
    )


def write_ui_state(remembered: UiState) -> None:
    """Keep it, whole or not at all."""
    write_cached(FILE_NAME, json.dumps(asdict(remembered)))
