"""What was measured, as JSON: every loss, so that other questions can be asked of the same runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.state_formats.curves import Curve
from benchmarks.state_formats.falling import EVERY


def write_records(path: Path, curves: Sequence[Curve], means: Mapping[str, Sequence[float]]) -> None:
    """Write `runs` (losses by step, validation losses with their step) and `falling` (means every so many steps)."""
    records = {
        "unit": "nats a token",
        "runs": [asdict(curve) for curve in curves],
        "falling": {"every_steps": EVERY, "mean_exp_avg_sq": means},
    }
    path.write_text(json.dumps(records, indent=1) + "\n")
