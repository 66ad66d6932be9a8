"""Where runs lie. On its own, so that the screen knows it without reading the schemas of a run's files."""

from __future__ import annotations

import os
from pathlib import Path


def runs_root(option: Path | None) -> Path:
    """The folder that runs lie in: `option` (--runs), else WORKBENCH_RUNS, else ./runs."""
    if option is not None:
        return option.expanduser()
    return Path(os.environ.get("WORKBENCH_RUNS") or "runs").expanduser()
