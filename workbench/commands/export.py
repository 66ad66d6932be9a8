"""`workbench export` and `workbench sample`: a run's model as a folder that `from_pretrained` loads, or as text."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from workbench.commands import report
from workbench.errors import EXIT_DONE, WorkbenchError
from workbench.export.export import ExportOptions, checkpoints, parse_size, wanted_step
from workbench.export.export import export as export_model
from workbench.export.generate import SamplingParams, generate
from workbench.runs import RunDirectory, runs_root
from workbench.runs.checkpoints import DamagedFileError, check_model_files


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
    exported = export_model(directory, target, step=step, options=options, log=report)
    if as_json:
        print(json.dumps({**asdict(exported), "path": str(exported.path)}))
    else:
        print(exported.path)
        report(f"the model of step {exported.step:,}, {exported.bytes / 2**20:,.1f} MiB; {exported.checked}")
    return EXIT_DONE


def sample(
    *,
    run: str | None,
    runs: Path | None,
    prompt: str | None,
    tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    step: int | None = None,
    best: bool = False,
    chat: bool = False,
    device: str = "auto",
) -> int:
    """Continue `prompt` with the model of the run named `run`, print the text, and return the exit code.

    `prompt`: None takes the run's own, "-" reads stdin. `step`: the checkpoint of this step; `best`: that with the
    lowest validation loss; else the newest that is whole. `chat`: the prompt is what a user says, and only the answer
    is printed.

    Raises:
        ConfigurationError: the run, the checkpoint or an option is wrong.
        WorkbenchError: the model does not fit in memory.
    """
    params = SamplingParams(tokens, temperature, top_p, top_k, seed)
    params.check()
    directory = RunDirectory.find(runs_root(runs), run)
    step = wanted_step(directory, step, best=best, command="sample")
    text = sys.stdin.read() if prompt == "-" else prompt
    damaged: list[str] = []

    def skipped(message: str) -> None:
        damaged.append(message)
        report(f"warning: {message}")

    for saved in checkpoints(directory, step, "sample", damaged, skipped):
        try:
            check_model_files(saved)
            generate(directory, saved, text, params, chat=chat, device=device, log=report)
        except DamagedFileError as error:
            skipped(f"checkpoint {saved.path.name} is skipped: {error}")
            continue
        except KeyboardInterrupt:
            print(flush=True)
            raise
        return EXIT_DONE
    raise WorkbenchError(
        "; ".join([f"sample: {directory.name} has no checkpoint that can be loaded", *damaged])
    )
