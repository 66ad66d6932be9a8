"""A run's metrics as TensorBoard events in its folder `tensorboard/`: every column of `metrics.bin`, and evaluations.

Invariant: it only repeats what the run directory holds. An event that cannot be written is warned of once and never
ends a run.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
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
    """Return the tag of a column: its group, its name and its unit; a slash would begin a group."""
    lanes = (*(f"{lane}_" for lane in HOST_LANES), "compute_", "exposed_")
    group = "lanes" if name.startswith(lanes) else "training"
    shown = "" if unit == "1" else f" ({unit.replace('/', ' per ')})"
    return f"{group}/{name}{shown}"


_TAGS = {column.name: tag(column.name, column.unit) for column in METRIC_COLUMNS}


class TensorBoard:
    """Writes into `folder` once it was opened; `warn` gets a message when that fails."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._writer: Any = None
        """None before `open`, and after something could not be written."""

    def open(self, step: int) -> None:
        """Begin, or go on after `step`: events of later steps are void."""
        from torch.utils.tensorboard import SummaryWriter

        with self._guarded():
            self._writer = SummaryWriter(str(self._folder), purge_step=step + 1, flush_secs=FLUSH_EVERY_S)

    def step(self, values: Mapping[str, float]) -> None:
        """Record a step by the names of the metrics' columns."""
        with self._guarded() as writer:
            for name, value in values.items():
                if writer and name not in ("step", "time", "validation_loss"):
                    writer.add_scalar(_TAGS[name], value, int(values["step"]), walltime=values["time"])

    def evaluation(self, step: int, loss: float, perplexity: float) -> None:
        """Record an evaluation: nats a token, and the exponential of that."""
        with self._guarded() as writer:
            if writer:
                writer.add_scalar("evaluation/loss (nats per token)", loss, step)
                writer.add_scalar("evaluation/perplexity", perplexity, step)

    def flush(self) -> None:
        """Write buffered events, so that a run which is killed now has lost nothing that a checkpoint counts on."""
        with self._guarded() as writer:
            if writer:
                writer.flush()

    def close(self) -> None:
        with self._guarded() as writer:
            if writer:
                writer.close()
        self._writer = None

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[Any]:
        try:
            yield self._writer
        except Exception as error:
            # Its writer hands on whatever went wrong in its thread; the metrics themselves are in metrics.bin.
            self._writer = None
            reason = getattr(error, "strerror", None) or error
            self._warn(f"TensorBoard events are no longer written: {self._folder}: {reason}")
