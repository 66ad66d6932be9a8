"""`workbench export RUN DIR`: a run's model as a folder that `from_pretrained` loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.export.export import ExportOptions, wanted_step
from workbench.export.export import export as export_model
from workbench.runs import RunDirectory, runs_root


def export(
    name: str,
    target: Path,
    root: Path | None,
    *,
    step: int | None,
    best: bool,
    options: ExportOptions,
    as_json: bool,
) -> int:
    """Export the run called `name` into `target`, which is printed. Raises what `workbench.export` raises."""
    run = RunDirectory.find(runs_root(root), name)
    step = wanted_step(run, step, best=best, command="export")
    exported = export_model(run, target, step=step, options=options, log=_tell)
    if as_json:
        print(
            json.dumps(
                {
                    "path": str(exported.path),
                    "step": exported.step,
                    "bytes": exported.bytes,
                    "checked": exported.checked,
                }
            )
        )
    else:
        print(exported.path)
        _tell(f"the model of step {exported.step:,}, {exported.bytes / 2**20:,.1f} MiB; {exported.checked}")
    return EXIT_DONE


def _tell(message: str) -> None:
    print(f"workbench: {message}", file=sys.stderr, flush=True)
