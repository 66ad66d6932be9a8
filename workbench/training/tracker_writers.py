"""TensorBoard, wandb, trackio and mlflow: how each takes a run's steps, by its public functions alone.

All write on this machine and wait for no network unless the user's own environment says otherwise (WANDB_MODE,
TRACKIO_SPACE_ID, MLFLOW_TRACKING_URI).

Invariant: opened again for the same run, a writer goes on in the same one. It says which steps it has; the others
are written again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from workbench.runs import RunDirectory
from workbench.runs.metrics import HOST_LANES, METRIC_COLUMNS

PROJECT = "workbench"
"""The project or experiment of all runs, where the environment names none (WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME)."""
FLUSH_EVERY_S = 10
LONGEST_ID = 64
MOST_IN_A_BATCH = 1000
"""Metrics that an mlflow server takes at a time."""
UNITS = {column.name: column.unit for column in METRIC_COLUMNS}


class TrackerWriter(Protocol):
    """Writes steps to one tracker. Called by one thread; whatever it raises ends the tracking and not the run."""

    def open(self, run: RunDirectory, config: Mapping[str, Any]) -> int:
        """Begin or go on, and return the last step that is there already; the steps after it are written again."""
        ...

    def write(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Record a step by the names of the metrics' columns, and evaluations by "evaluation/name"."""
        ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def tag(name: str, unit: str = "1") -> str:
    """Return the name of a column in a tracker: its group, its name and its unit; a slash would begin a group."""
    if "/" in name:
        return name
    lanes = (*(f"{lane}_" for lane in HOST_LANES), "compute_", "exposed_")
    group = "lanes" if name.startswith(lanes) else "training"
    shown = "" if unit == "1" else f" ({unit.replace('/', ' per ')})"
    return f"{group}/{name}{shown}"


def _tagged(values: Mapping[str, float]) -> dict[str, float]:
    return {tag(name): value for name, value in values.items()}


class TensorBoard:
    """Event files in the run's folder `tensorboard/`, written anew by each session: all that is read there is there
    once."""

    def open(self, run: RunDirectory, config: Mapping[str, Any]) -> int:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.path / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer: Any = SummaryWriter(str(folder), flush_secs=FLUSH_EVERY_S)
        return 0

    def write(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(tag(name, UNITS.get(name, "1")), value, step, walltime=time_s)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of Weights & Biases, kept in the run's folder `wandb/` until `wandb sync` sends it.

    An offline run replaces the one of its id at the server: each session's has all steps from the first.
    """

    def open(self, run: RunDirectory, config: Mapping[str, Any]) -> int:
        import wandb  # type: ignore[import-not-found, unused-ignore]

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            shutil.rmtree(run.path / "wandb", ignore_errors=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=re.sub(r"[^A-Za-z0-9_-]", "-", run.name)[-LONGEST_ID:],
            name=run.name,
            dir=str(run.path),
            config=dict(config),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        return max(0, int(self._run.step) - 1)

    def write(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._run.log(_tagged(values), step=step)

    def flush(self) -> None:
        """wandb's own process writes as it goes."""

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run of trackio, in its own folder on this machine (TRACKIO_DIR); made anew by each session."""

    def open(self, run: RunDirectory, config: Mapping[str, Any]) -> int:
        import trackio  # type: ignore[import-not-found, unused-ignore]

        with contextlib.suppress(ValueError):  # there is no such project yet
            for old in list(trackio.Api().runs(PROJECT)):
                if old.name == run.name:
                    old.delete()
        with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):  # noqa: PTH123 - a device
            self._run = trackio.init(
                project=PROJECT, name=run.name, config=dict(config), resume="allow", embed=False
            )
        return 0

    def write(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._run.log(_tagged(values), step=step)

    def flush(self) -> None:
        """trackio's own thread writes as it goes."""

    def close(self) -> None:
        with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):  # noqa: PTH123 - a device
            self._run.finish()


class Mlflow:
    """A run of mlflow, in `mlflow.db` beside the runs; its own server where MLFLOW_TRACKING_URI names one.

    What it has cannot be taken back: steps that are done again stay as they were the first time.
    """

    def open(self, run: RunDirectory, config: Mapping[str, Any]) -> int:
        import mlflow  # type: ignore[import-not-found, unused-ignore]

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.path.parent / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._metric = mlflow.entities.Metric
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        kept = run.path / "mlflow.txt"
        if kept.exists():
            self._id = kept.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            history = self._client.get_metric_history(self._id, tag("loss"))
            return max((int(each.step) for each in history), default=0)
        self._id = self._client.create_run(number, run_name=run.name).info.run_id
        for table, entries in config.items():
            for key, value in entries.items() if isinstance(entries, Mapping) else ():
                self._client.log_param(self._id, f"{table}.{key}", str(value)[:500])
        kept.write_text(self._id + "\n", encoding="utf-8")
        return 0

    def write(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        metrics = [
            self._metric(name, value, int(1000 * time_s), step) for name, value in _tagged(values).items()
        ]
        for first in range(0, len(metrics), MOST_IN_A_BATCH):
            self._client.log_batch(self._id, metrics=metrics[first : first + MOST_IN_A_BATCH])

    def flush(self) -> None:
        """Each batch is in its database when it returns."""

    def close(self) -> None:
        self._client.set_terminated(self._id)


WRITERS: dict[str, Callable[[], TrackerWriter]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}
