"""`python -m benchmarks.plan_accuracy.probing case`: the machine's profile, measured in a process that then ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.engine.processes import serve_case


def probe(case: dict[str, Any]) -> dict[str, Any]:
    """The profile as TOML, with the disk under `case["disk"]` where that is named; in a few seconds."""
    from workbench.profiles.machine_profile import profile_text
    from workbench.profiles.probe import measure_machine
    from workbench.profiles.sampling import QUICK

    disk = Path(case["disk"]) if case["disk"] else None
    return {"profile": profile_text(measure_machine("cpu", disk, budget=QUICK))}


if __name__ == "__main__":
    sys.exit(serve_case(probe))
