"""`workbench export` and `workbench sample`: a run's model as a folder that `from_pretrained` loads, or as text."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path

from workbench.commands import report
from workbench.errors import EXIT_DONE
from workbench.export.export import ExportOptions, parse_size, wanted_step, with_whole_checkpoint
from workbench.export.export import export as export_model
from workbench.export.generate import SamplingParams, generate
from workbench.export.push import check_push
from workbench.export.push import push as push_model
from workbench.runs import find_run, runs_root
from workbench.runs.checkpoints import SavedStep


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
    push: str | None = None,
    as_json: bool = False,
) -> int:
    """Export the run named `run` into the folder `target`, which is printed. `push`: a hub repository to send it to.

    Raises:
        ConfigurationError: the run, the checkpoint, the folder or an option is wrong.
        WorkbenchError: the model cannot be written or sent, or its logits differ from the run's.
    """
    if push is not None:
        check_push(push)
    largest = None if max_shard_size is None else parse_size(max_shard_size)
    options = ExportOptions(dtype=dtype, merge=merge, largest_file_bytes=largest, check=check)
    directory = find_run(runs_root(runs), run)
    step = wanted_step(directory, step, best=best, command="export")
    exported = export_model(directory, target, step=step, options=options, log=report)
    sent = push and push_model(exported.path, push, f"Step {exported.step} of {directory.name}")
    if as_json:
        print(json.dumps({**asdict(exported), "path": str(exported.path), "pushed": sent}))
    else:
        print(exported.path)
        report(f"the model of step {exported.step:,}, {exported.bytes / 2**20:,.1f} MiB; {exported.checked}")
        if sent:
            report(f"sent to {sent}")
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
    as_json: bool = False,
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
    directory = find_run(runs_root(runs), run)
    step = wanted_step(directory, step, best=best, command="sample")
    text = sys.stdin.read() if prompt == "-" else prompt

    def write(saved: SavedStep) -> None:
        if not as_json:
            generate(directory, saved, text, params, chat=chat, device=device, log=report)
            return
        with contextlib.redirect_stdout(io.StringIO()) as written:
            generate(directory, saved, text, params, chat=chat, device=device, log=report)
        found = {"run": directory.name, "step": saved.step, "seed": seed, "text": written.getvalue()}
        print(json.dumps(found, ensure_ascii=False))

    try:
        with_whole_checkpoint(directory, step, "sample", write, report)
    except KeyboardInterrupt:
        print(flush=True)
        raise
    return EXIT_DONE
