"""The part of the screen that comes back the next time: theme, part, hidden panels.

Invariant: a file that is missing, damaged or of another version costs nothing but the memory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from workbench.system.folders import read_cached, write_cached

FILE_NAME = "screen.json"


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
        values = json.loads(read_cached(FILE_NAME) or "{}")
        hidden = values.get("hidden_panels", [])
        state = UiState(values.get("theme", ""), values.get("mode", ""), tuple(hidden))
    except (ValueError, TypeError, AttributeError):
        return UiState()
    texts = (state.theme, state.mode, *state.hidden_panels)
    return state if isinstance(hidden, list) and all(isinstance(text, str) for text in texts) else UiState()


def write_ui_state(state: UiState) -> None:
    """Write the file, whole or not at all."""
    write_cached(FILE_NAME, json.dumps(asdict(state)))
