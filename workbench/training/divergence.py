"""What a run says when its numbers stop being finite: the steps before it, what it can go on from, and what to try.

Invariant: a checkpoint is called good only when every weight in it is finite. One that is not is set aside, never
removed, so that a resumed run does not begin from it.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from workbench.config import RunConfig
from workbench.errors import DivergedError
from workbench.runs.checkpoints import SavedStep, find_checkpoints

REMEMBERED_STEPS = 6


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
    """The error that ends a run, in one line. `precision`: the dtype of its weights, as torch calls it.

    Checkpoints whose weights are not finite are set aside.
    """
    return DivergedError(
        f"training diverged: {what}. Before it, {recent}. {_what_is_good(checkpoints)}. "
        f"What may help: {'; '.join(_remedies(config, precision))}"
    )


def _what_is_good(checkpoints: Path) -> str:
    aside = []
    found = None
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
    said = "No good checkpoint was saved"
    if found is not None:
        said = f"The last good checkpoint is that of step {found.step}: --resume goes on from it"
    if aside:
        said += f" ({' and '.join(aside)}: weights are not finite in there)"
    return said


def _is_finite(saved: SavedStep) -> bool:
    """Whether every weight of a checkpoint is; what cannot be read is left to whoever resumes."""
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
    """What to change, the likeliest cause first."""
    optimizer, schedule, train = config.optimizer, config.schedule, config.train
    tried = [f"a lower optimizer.learning_rate (it is {optimizer.learning_rate:g})"]
    if not schedule.warmup_steps:
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
