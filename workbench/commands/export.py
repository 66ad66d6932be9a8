"""`workbench export RUN DIR`: a run's model as a folder that `from_pretrained` loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from workbench.errors import EXIT_DONE
from workbench.export.export import ExportOptions, parse_size, wanted_step
from workbench.export.export import export as export_model
from workbench.runs import RunDirectory, runs_root


def export(
    *,
    run: str,
    target: Path,
    runs: Path | None,
    step: int | None = None,
    best: bool = False,
    dtype: str | None = None,
    merge: bool = False,
    max_shard_size: str | None = None,
    check: bool = True,
    as_json: bool = False,
) -> int:
    """Export the run named `run` into the folder `target`, which is printed.

    Raises:
        ConfigurationError: the run, the checkpoint, the folder or an option is wrong.
        WorkbenchError: the model cannot be written, or its logits differ from the run's.
    """
    largest = None if max_shard_size is None else parse_size(max_shard_size)
    options = ExportOptions(dtype=dtype, merge=merge, largest_file_bytes=largest, check=check)
    directory = RunDirectory.find(runs_root(runs), run)
    step = wanted_step(directory, step, best=best, command="export")
    exported = export_model(directory, target, step=step, options=options, log=_report)
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
        _report(f"the model of step {exported.step:,}, {exported.bytes / 2**20:,.1f} MiB; {exported.checked}")
    return EXIT_DONE


def _report(message: str) -> None:
    print(f"workbench: {message}", file=sys.stderr, flush=True)
