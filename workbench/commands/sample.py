"""`workbench sample RUN`: continue a text, or answer it, with the model of a run's checkpoint.

The text is data and goes to stdout as it comes; everything else goes to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workbench.errors import EXIT_DONE, WorkbenchError
from workbench.export.export import checkpoints, wanted_step
from workbench.export.generate import SamplingParams, generate
from workbench.runs import RunDirectory, runs_root
from workbench.runs.checkpoints import DamagedFileError, check_model_files


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
        _report(f"warning: {message}")

    for saved in checkpoints(directory, step, "sample", damaged, skipped):
        try:
            check_model_files(saved)
            generate(directory, saved, text, params, chat=chat, device=device, log=_report)
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


def _report(message: str) -> None:
    print(f"workbench: {message}", file=sys.stderr, flush=True)
