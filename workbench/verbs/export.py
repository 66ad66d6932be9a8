"""`workbench export RUN DIR`: a run's model as a folder that `from_pretrained` loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.export import export as export_model
from workbench.runs import RunDirectory, runs_root


def export(name: str, target: Path, root: Path | None, *, step: int | None, as_json: bool) -> int:
    """Export the run called `name` into `target`, which is printed. Raises what `workbench.export` raises."""
    exported = export_model(RunDirectory.find(runs_root(root), name), target, step=step)
    if as_json:
        print(json.dumps({"path": str(exported.path), "step": exported.step, "bytes": exported.bytes}))
    else:
        print(exported.path)
        print(f"the model of step {exported.step:,}, {exported.bytes / 2**20:,.1f} MiB", file=sys.stderr)
    return EXIT_DONE
