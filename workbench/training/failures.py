"""What ended a run from below (memory, the disk tier, a lane), in one sentence that a user can act on.

Invariant: an error that is none of these is not touched; it is a defect, and goes its way with its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import torch

from workbench.engine import LaneError
from workbench.engine.disk_files import DiskError
from workbench.errors import WorkbenchError
from workbench.runs.checkpoints import find_checkpoints
from workbench.sizes import Breakdown, breakdown_text

ALLOCATORS = ("can't allocate memory", "out of memory", "cannot allocate memory")
"""How torch's CPU allocator, CUDA and the system say that there is no memory, where they raise a plain RuntimeError."""


class EngineFailedError(WorkbenchError):
    """The engine could not go on; what it was is chained as the cause."""


def explain(error: BaseException, held: Breakdown | None, checkpoints: Path) -> EngineFailedError | None:
    """The error to end the run with, or None where `error` is of another kind.

    `held` is what the engine held when it happened, None where it was still being built. `checkpoints`: the run's.
    """
    chain = list(_causes(error))
    # The innermost: the engine's own error holds the memory breakdown already.
    short = next((cause for cause in reversed(chain) if _is_out_of_memory(cause)), None)
    if short is not None:
        place = (
            "while the engine was being built" if held is None else f"the engine held {breakdown_text(held)}"
        )
        return EngineFailedError(
            f"out of memory: {_first_line(short)}; {place}. Lower train.micro_batch_size or data.sequence_length, or "
            f"keep less there: offload.weights and offload.state. {_what_stands(checkpoints)}"
        )
    disk = next((cause for cause in chain if isinstance(cause, DiskError)), None)
    if disk is not None:
        return EngineFailedError(f"the disk tier failed: {_first_line(disk)}. {_what_stands(checkpoints)}")
    lane = next((cause for cause in chain if isinstance(cause, LaneError)), None)
    if lane is not None:
        return EngineFailedError(f"{_first_line(lane)}. {_what_stands(checkpoints)}")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what caused it, the outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    plain = isinstance(error, RuntimeError) and not isinstance(error, (DiskError, LaneError))
    return plain and any(words in str(error).lower() for words in ALLOCATORS)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__


def _what_stands(checkpoints: Path) -> str:
    """What a run that ends now can go on from."""
    newest = next(find_checkpoints(checkpoints, lambda message: None), None)
    if newest is None:
        return "No checkpoint was saved yet"
    return f"The checkpoint of step {newest.step} stands: --resume goes on from it"
