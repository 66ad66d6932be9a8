"""Training runs in the three formats, made by `workbench run` itself and read from their run directories.

A run that is there already, finished and configured alike, is not made again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from workbench.config import load_config
from workbench.config.schema import RunConfig
from workbench.layout import StateFormat
from workbench.presets import find_preset
from workbench.runs import RunDirectory, read_events, read_run_metrics, read_status

MODELS: dict[str, tuple[str, ...]] = {
    "0.84 M": (),
    "10.8 M": (
        "model.config.n_layer=6",
        "model.config.n_embd=384",
        "model.config.n_head=6",
        "train.micro_batch_size=8",
        "optimizer.learning_rate=1e-3",
        "evaluate.every=50",
        "evaluate.tokens=8192",
    ),
}
"""By size: what differs from the preset `quickstart`."""

DECISIVE = ("model", "data", "train", "optimizer", "schedule", "offload")
"""The tables of a configuration that decide what is learned."""


@dataclass(frozen=True)
class Curve:
    """One finished run: the loss of each step and validation losses, in nats a token."""

    model: str
    state_format: StateFormat
    seed: int
    losses: tuple[float, ...]
    validation_loss: float
    """At the end."""
    validation: tuple[tuple[int, float], ...] = ()
    """On the way and at the end: step and loss."""


@dataclass(frozen=True)
class Wanted:
    """One run as it is asked for."""

    model: str
    state_format: StateFormat
    seed: int
    steps: int

    def overrides(self) -> tuple[str, ...]:
        """The `--set` values that make this run of the preset."""
        return (
            *MODELS[self.model],
            f"train.seed={self.seed}",
            f"train.steps={self.steps}",
            f"offload.state_format={self.state_format}",
            "offload.threads=1",
            "checkpoint.every=0",
            "sample.tokens=0",
        )

    def is_made_by(self, config: RunConfig) -> bool:
        """Whether a run with this configuration is the one wanted."""
        expected = load_config(find_preset("quickstart"), self.overrides())
        return all(getattr(config, table) == getattr(expected, table) for table in DECISIVE)


def train_all(wanted: Sequence[Wanted], root: Path, at_once: int) -> list[Curve]:
    """Make what is missing, so many at a time, each on one thread; the curves in the order of `wanted`.

    Raises:
        RuntimeError: a run failed; the message says where its log is.
    """
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda one: find(one, root) or _train(one, root), wanted))
    curves = [find(one, root) for one in wanted]
    missing = [one for one, curve in zip(wanted, curves, strict=True) if curve is None]
    if missing:
        raise RuntimeError(f"{missing[0]} is not among the finished runs of {root}; its log says why")
    return [curve for curve in curves if curve is not None]


def find(wanted: Wanted, root: Path) -> Curve | None:
    """The finished run that is wanted, if it is there."""
    for run in RunDirectory.list(root):
        if not run.config.exists() or read_status(run).phase != "finished":
            continue
        if wanted.is_made_by(load_config(run.config)):
            evaluations = [e.fields for e in read_events(run).events if e.kind == "evaluation"]
            validation = tuple((int(e["step"]), float(e["loss"])) for e in evaluations)
            return Curve(
                wanted.model,
                wanted.state_format,
                wanted.seed,
                losses=tuple(read_run_metrics(run).column("loss")),
                validation_loss=validation[-1][1],
                validation=validation,
            )
    return None


def _train(wanted: Wanted, root: Path) -> None:
    sets = [word for override in wanted.overrides() for word in ("--set", override)]
    print(
        f"training {wanted.model} in {wanted.state_format}, seed {wanted.seed}", file=sys.stderr, flush=True
    )
    subprocess.run(
        [sys.executable, "-m", "workbench", "run", "quickstart", "--runs", str(root), *sets],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=False,
    )
