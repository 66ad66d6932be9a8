"""A run's metrics as TensorBoard events in its folder `tensorboard/`: every column of `metrics.bin`, and evaluations.

Invariant: it only repeats what the run directory holds. What cannot be written is warned of once and never ends a run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ConfigurationError
from workbench.runs.metrics import HOST_LANES, METRIC_COLUMNS

FOLDER = "tensorboard"
FLUSH_EVERY_S = 10


def check_tensorboard(config: RunConfig) -> None:
    """Raise ConfigurationError where TensorBoard is asked for and not installed."""
    if config.log.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            'log.tensorboard = true: tensorboard is not installed; pip install "workbench[tensorboard]", or set it to '
            "false"
        )


def tag(name: str, unit: str) -> str:
    """What a column is called there: its group, its name and its unit; a slash would begin a group."""
    lanes = (*(f"{lane}_" for lane in HOST_LANES), "compute_", "exposed_")
    group = "lanes" if name.startswith(lanes) else "training"
    shown = "" if unit == "1" else f" ({unit.replace('/', ' per ')})"
    return f"{group}/{name}{shown}"


_TAGS = {column.name: tag(column.name, column.unit) for column in METRIC_COLUMNS}


class TensorBoard:
    """Writes into `folder` once it was opened; `warn` is told when that fails."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._writer: Any = None
        self._open = False

    def open(self, step: int) -> None:
        """Begin, or go on after `step`: what was written of later steps is void."""

        def make() -> None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step + 1, flush_secs=FLUSH_EVERY_S)

        self._open = True
        self._try(make)

    def step(self, values: Mapping[str, float]) -> None:
        """Record a step by the names of the metrics' columns."""

        def add() -> None:
            step, when = int(values["step"]), values["time"]
            for name, value in values.items():
                if name not in ("step", "time", "validation_loss"):
                    self._writer.add_scalar(_TAGS[name], value, step, walltime=when)

        self._try(add)

    def evaluation(self, step: int, loss: float, perplexity: float) -> None:
        """Record an evaluation: nats a token, and the exponential of that."""

        def add() -> None:
            self._writer.add_scalar("evaluation/loss (nats per token)", loss, step)
            self._writer.add_scalar("evaluation/perplexity", perplexity, step)

        self._try(add)

    def flush(self) -> None:
        """See that a run which is killed now has lost nothing that a checkpoint counts on."""
        self._try(lambda: self._writer.flush())

    def close(self) -> None:
        self._try(lambda: self._writer.close())
        self._open = False

    def _try(self, action: Callable[[], None]) -> None:
        if not self._open:
            return
        try:
            action()
        except Exception as error:
            # Its writer hands on whatever went wrong in its thread; the metrics themselves are in metrics.bin.
            self._open = False
            reason = getattr(error, "strerror", None) or error
            self._warn(f"TensorBoard events are written no longer: {self._folder}: {reason}")
