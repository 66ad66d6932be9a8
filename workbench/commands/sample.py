"""`workbench sample RUN`: how the model of a run's checkpoint continues a text, or answers it.

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
    name: str | None,
    root: Path | None,
    *,
    prompt: str | None,
    params: SamplingParams,
    step: int | None = None,
    best: bool = False,
    chat: bool = False,
    device: str = "auto",
) -> int:
    """Print what the model of the run called `name` makes of `prompt`; the exit code.

    `prompt`: None takes the run's own, "-" reads stdin. `step`: the checkpoint of this step; `best`: that with the
    lowest validation loss; else the newest that is whole. `chat`: the prompt is what a user says, and only the answer
    is printed.

    Raises:
        ConfigurationError: the run, the checkpoint or an option is wrong.
        WorkbenchError: the model does not fit in memory.
    """
    params.check()
    run = RunDirectory.find(runs_root(root), name)
    step = wanted_step(run, step, best=best, command="sample")
    text = sys.stdin.read() if prompt == "-" else prompt
    damaged: list[str] = []

    def passed_over(message: str) -> None:
        damaged.append(message)
        _tell(f"warning: {message}")

    for saved in checkpoints(run, step, "sample", damaged, passed_over):
        try:
            check_model_files(saved)
            generate(run, saved, text, params, chat=chat, device=device, log=_tell)
        except DamagedFileError as error:
            passed_over(f"checkpoint {saved.path.name} is passed over: {error}")
            continue
        except KeyboardInterrupt:
            print(flush=True)
            raise
        return EXIT_DONE
    raise WorkbenchError("; ".join([f"sample: {run.name} has no checkpoint that can be loaded", *damaged]))


def _tell(message: str) -> None:
    print(f"workbench: {message}", file=sys.stderr, flush=True)
