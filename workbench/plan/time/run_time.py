"""From a step to the whole run: steps, evaluations and checkpoints, and what all that writes to a disk.

Invariant: seconds and bytes are of the configuration as it stands, from the first step to the last.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from workbench.config import RunConfig
from workbench.plan.saves import saves
from workbench.plan.time.step_time import StepTime

DAY_S = 86_400


@dataclass(frozen=True)
class RunTime:
    """Seconds from the first step to the last. `checkpoints_s`: None where the disk was not measured.

    `evaluations_s`: at most, for nobody knows here how many tokens are held out.

    `written_per_day_bytes`: to disks, by the disk tier and by checkpoints, while it trains.
    """

    steps_s: float
    evaluations_s: float
    checkpoints_s: float | None
    written_per_day_bytes: float

    @property
    def total_s(self) -> float:
        return self.steps_s + self.evaluations_s + (self.checkpoints_s or 0.0)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "total_s": self.total_s}


def run_time(
    config: RunConfig, time: StepTime, checkpoint_bytes: int, disk_bytes_per_s: float | None
) -> RunTime:
    """The run of `config`, whose steps take `time`; a checkpoint is `checkpoint_bytes` to a disk of that speed."""
    steps = config.train.steps
    steps_s = steps * time.step_s
    evaluations = 1 + (steps - 1) // config.evaluate.every if config.evaluate.every else 1
    length = config.data.sequence_length
    evaluated = length * max(1, config.evaluate.tokens // length)  # as `evaluation_batches` takes them
    evaluations_s = evaluations * time.forward_s * evaluated / time.tokens
    saved = saves(config)
    checkpoints_s = None if disk_bytes_per_s is None else saved * checkpoint_bytes / disk_bytes_per_s
    total_s = steps_s + evaluations_s + (checkpoints_s or 0.0)
    written = steps * time.written_bytes + saved * checkpoint_bytes
    return RunTime(steps_s, evaluations_s, checkpoints_s, written / total_s * DAY_S if total_s else 0.0)
