"""The errors that end a run from below (memory, the disk tier, a lane, numbers that are not finite), for its user.

Each is one line that says what to change and what the run can go on from. Invariants: an error of another kind is a
defect and goes its way with its traceback. A checkpoint is called good only when every weight in it is finite; one
that is not is set aside, never removed, so that a resumed run does not begin from it.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from workbench.config import RunConfig
from workbench.engine import LaneError
from workbench.engine.disk_files import DiskError
from workbench.engine.ranks import RankFailedError
from workbench.errors import DivergedError, WorkbenchError
from workbench.runs.checkpoints import SavedStep, find_checkpoints, newest_checkpoint
from workbench.sizes import Breakdown, breakdown_text

ALLOCATORS = ("can't allocate memory", "out of memory", "cannot allocate memory")
"""The words of torch's CPU allocator, CUDA and the system for no memory, where they raise a plain RuntimeError."""

REMEMBERED_STEPS = 6


class EngineFailedError(WorkbenchError):
    """The engine could not go on; its own error is chained as the cause."""


def explain(
    error: BaseException, held: Breakdown | None, checkpoints: Path, lost_rank: str = ""
) -> EngineFailedError | None:
    """Return the error to end the run with, or None where `error` is of another kind.

    `held` is what the engine held when it happened, None where it was still being built. `checkpoints`: the run's.
    `lost_rank`: which rank is gone and why, where that is known.
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
            f"offload more: offload.weights and offload.state. {_newest_checkpoint(checkpoints)}"
        )
    disk = next((cause for cause in chain if isinstance(cause, DiskError)), None)
    if disk is not None:
        return EngineFailedError(
            f"the disk tier failed: {_first_line(disk)}. {_newest_checkpoint(checkpoints)}"
        )
    other = next((cause for cause in chain if isinstance(cause, RankFailedError)), None)
    if other is not None:
        return EngineFailedError(f"{lost_rank or _first_line(other)}. {_newest_checkpoint(checkpoints)}")
    lane = next((cause for cause in chain if isinstance(cause, LaneError)), None)
    if lane is not None:
        return EngineFailedError(f"{_first_line(lane)}. {_newest_checkpoint(checkpoints)}")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes, the outermost first."""
    cause: BaseException | None = error
    while cause is not None:
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


def _newest_checkpoint(checkpoints: Path) -> str:
    """Return, in a sentence, what a run that ends now can go on from."""
    newest = newest_checkpoint(checkpoints)
    if newest is None:
        return "No checkpoint was saved yet"
    return f"--resume continues from the checkpoint of step {newest.step}"


class RecentSteps:
    """Loss and gradient norm of the last steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=REMEMBERED_STEPS)

    def add(self, step: int, loss: float, grad_norm: float) -> None:
        self._steps.append((step, loss, grad_norm))

    def __str__(self) -> str:
        if not self._steps:
            return "no step was finished in this session"
        first, last = self._steps[0][0], self._steps[-1][0]
        losses = ", ".join(f"{loss:.4g}" for _, loss, _ in self._steps)
        norms = ", ".join(f"{norm:.3g}" for _, _, norm in self._steps)
        return f"steps {first} to {last} had losses {losses} and gradient norms {norms}"


def diverged(
    what: str, recent: RecentSteps, config: RunConfig, checkpoints: Path, precision: str
) -> DivergedError:
    """Return the error that ends a run, in one line. `precision`: the dtype of its weights, as torch calls it.

    Checkpoints whose weights are not finite are set aside.
    """
    return DivergedError(
        f"training diverged: {what}. Before it, {recent}. {_good_checkpoint(checkpoints)}. "
        f"What may help: {'; '.join(_remedies(config, precision))}"
    )


def _good_checkpoint(checkpoints: Path) -> str:
    aside, found = [], None
    for saved in find_checkpoints(checkpoints, lambda message: None):
        if _is_finite(saved):
            found = saved
            break
        target = saved.path.with_name(f"diverged-{saved.path.name}")
        try:
            saved.path.rename(target)
        except OSError:
            continue
        aside.append(target.name)
    sentence = "No good checkpoint was saved"
    if found is not None:
        sentence = f"--resume continues from the last good checkpoint, step {found.step}"
    if aside:
        sentence += f" ({' and '.join(aside)}: weights are not finite)"
    return sentence


def _is_finite(saved: SavedStep) -> bool:
    """Return True where every weight of a checkpoint is finite; what cannot be read is left to whoever resumes."""
    for path in sorted(saved.path.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    tensor = file.get_tensor(name)
                    # A sum of finite 16- or 32-bit numbers is finite in float64, and shows any that is not.
                    if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64)):
                        return False
        except (OSError, SafetensorError):
            continue
    return True


def _remedies(config: RunConfig, precision: str) -> list[str]:
    """Return what to change, the likeliest cause first."""
    optimizer, schedule, train = config.optimizer, config.schedule, config.train
    tried = [f"a lower optimizer.learning_rate (it is {optimizer.learning_rate:g})"]
    if not schedule.warmup_steps and not schedule.warmup_fraction:
        tried.append("a warm-up (schedule.warmup_steps is 0)")
    if not train.gradient_clipping:
        tried.append("train.gradient_clipping = 1.0 (it is off)")
    if precision == "float16":
        tried.append('train.precision = "bf16" or "fp32" (fp16 ends at 65,504)')
    if precision == "float16" and config.loss_scale.fixed:
        tried.append(f"loss_scale.fixed = 0, which searches a scale (it is {config.loss_scale.fixed:g})")
    if optimizer.weight_decay * optimizer.learning_rate > 0.5:
        tried.append(f"a lower optimizer.weight_decay (it is {optimizer.weight_decay:g})")
    if config.offload.overlap == "delayed":
        tried.append('offload.overlap = "exact", whose updates do not lag')
    return tried
