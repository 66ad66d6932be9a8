"""The check of several ranks: processes on the CPU that share the state, beside one with all their micro-batches.

Each process makes the trial anew from its configuration; rank 0 compares, and sends the rows back. Invariant: no
process outlives the check.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch.distributed as dist
from transformers.utils import logging

from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.verify.checks import Row, difference, measured, stated
from workbench.verify.trial import Trial, open_trial

LIMIT_S = 600.0


def check_ranks(trial: Trial) -> Iterator[Row]:
    """Compare the run's own recipe on ranks with plain torch; and where each has one micro-batch, with one rank's bits.

    Raises:
        WorkbenchError: a process ended without an answer, or none came in time.
    """
    size = trial.config.parallel.gpus
    assert isinstance(size, int)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="workbench-verify-") as folder:
        arguments = (size, folder, trial.config, len(trial.recipe.steps), not trial.subject.shrunken, theirs)
        processes = [
            context.Process(target=_train, args=(rank, *arguments), daemon=True) for rank in range(size)
        ]
        try:
            for process in processes:
                process.start()
            theirs.close()
            if not ours.poll(LIMIT_S):
                raise WorkbenchError(f"{size} processes gave no answer in {LIMIT_S:g} s")
            try:
                answer = ours.recv()
            except EOFError:
                raise WorkbenchError("a process ended without an answer") from None
            if isinstance(answer, str):
                raise WorkbenchError(answer)
            yield from answer
        finally:
            for process in processes:
                process.kill()
                process.join()
            ours.close()


def _train(
    rank: int, size: int, folder: str, config: RunConfig, steps: int, full: bool, answers: Connection
) -> None:
    """Train as one of the ranks; the first sends rows, and any of them the words of its error."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with open_trial(config, steps, full=full) as alone:
            # Before there are ranks: then an engine has its state to itself.
            one = alone.ours if not rank else None
            dist.init_process_group(
                "gloo", init_method=f"file://{Path(folder) / 'rendezvous'}", rank=rank, world_size=size
            )
            together = replace(alone, rank=rank, ranks=size)
            outcome = together.train(together.recipe)
            if one is None:
                return
            rows = []
            for field, compared in (
                ("losses", "loss of each micro-batch"),
                ("norms", "norm of each gradient"),
                ("masters", "weights, relative to their change"),
                ("exp_avg", "exp_avg, relative to its size"),
                ("exp_avg_sq", "exp_avg_sq, relative to its size"),
            ):
                rows.append(measured(f"{size} ranks", compared, alone.comparison.verdicts(outcome, field)))
            if alone.recipe.accumulation == size:
                compared = f"same bits as one rank with {size} micro-batches"
                rows.append(stated(f"{size} ranks", compared, difference(outcome, one)))
            answers.send(rows)
    except Exception as error:
        answers.send(f"rank {rank}: {type(error).__name__}: {error}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
