"""Where runs lie. On its own, so that the screen knows it without reading the schemas of a run's files."""

from __future__ import annotations

import os
from pathlib import Path

from workbench.home_folders import expanded


def runs_root(option: Path | None) -> Path:
    """The folder that runs lie in: `option` (--runs), else WORKBENCH_RUNS, else ./runs.

    Raises ConfigurationError where it begins with a home that is not there.
    """
    if option is not None:
        return expanded(option, "--runs")
    return expanded(os.environ.get("WORKBENCH_RUNS") or "runs", "WORKBENCH_RUNS")
