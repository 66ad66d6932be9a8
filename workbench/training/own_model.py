"""Train any module on any batches as a whole run: with a run directory, the screen, checkpoints and resuming.

The loop, the records and the steering are the trainer's; only model, batches and losses are the caller's. Invariant:
the batches are read in their order, so that a run that goes on skips those that it has had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.config import RunConfig, to_toml
from workbench.config.checking import check_values
from workbench.engine import OffloadEngine
from workbench.engine.devices.device import Device
from workbench.errors import EXIT_DONE, EXIT_ERROR, ConfigurationError, DivergedError, WorkbenchError
from workbench.monitor.recording import SystemRecording
from workbench.runs import LogTee, RunDirectory, find_run, runs_root, write_config
from workbench.runs.ending import ending
from workbench.training.checkpoints.save import Removal, remove_leftovers
from workbench.training.journal import Journal
from workbench.training.prepare import engine_options
from workbench.training.ranks import check_one_rank
from workbench.training.resume_check import check_steps_left
from workbench.training.session import resume_from_checkpoint
from workbench.training.signals import Requests
from workbench.training.trainer import Trainer, seed_everything

Loss = Callable[[nn.Module, Any], Tensor]


def train(
    model: nn.Module,
    batches: Iterable[Any],
    config: Mapping[str, Mapping[str, Any]],
    *,
    loss: Loss | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    callbacks: Sequence[Callable[[int, float], None]] = (),
    name: str = "python",
    runs: Path | str | None = None,
    resume: str | None = None,
) -> RunDirectory:
    """Train `model` to `train.steps` and return its run; a stop saves and returns too.

    Args:
        batches: a micro-batch each; read again from the start when they end. A run that goes on skips what it has had,
            so that they have to come in the same order.
        config: tables of a configuration without [model] and [data], as `{"train": {"steps": 100}}`.
        loss: called with `model` and a batch, gives a scalar; None takes `model(**batch).loss`.
        evaluate: called with `model` every `evaluate.every` steps and at the end; gives the validation loss.
        callbacks: each is called with every finished step and its loss.
        name: of a new run, as a preset has one.
        runs: the folder of the runs; None takes WORKBENCH_RUNS, else ./runs.
        resume: the name of a run to go on with.

    Raises:
        ConfigurationError: the configuration is wrong, or there are no batches.
        WorkbenchError: the run could not go on.
    """
    check_one_rank("train a copy")
    checked = _checked(config)
    root = runs_root(None if runs is None else Path(runs))
    run = RunDirectory.create(root, name) if resume is None else find_run(root, resume)
    run.acquire()
    try:
        if resume is not None:
            check_steps_left(run, checked)
        write_config(run, to_toml(checked))
        with Requests() as requests, LogTee(run.log), Journal(run, checked.train.steps) as journal:
            print(f"run {run.path}", flush=True)
            with SystemRecording(run, gpu=None, folders=(run.path,), warn=journal.warn):
                _train(
                    model,
                    _Batches(batches),
                    checked,
                    (run, requests, journal),
                    _Own(loss or _own_loss, evaluate, tuple(callbacks)),
                    resuming=resume is not None,
                )
            print(*ending(run).lines()[:2], sep="\n", flush=True)
        return run
    finally:
        run.release()


@dataclass(frozen=True)
class _Own:
    """The functions of the caller."""

    loss: Loss
    evaluate: Callable[[nn.Module], float] | None
    callbacks: tuple[Callable[[int, float], None], ...]


def _train(
    model: nn.Module,
    batches: _Batches,
    config: RunConfig,
    session: tuple[RunDirectory, Requests, Journal],
    own: _Own,
    *,
    resuming: bool,
) -> None:
    """Train, and record how it ended."""
    run, requests, journal = session
    remove_leftovers(run.checkpoints)
    journal.phase("allocating")
    seed_everything(config.train.seed)
    try:
        with (
            OffloadEngine(model, **engine_options(config, device=config.train.device)) as engine,
            Removal() as removal,
        ):
            trainer = _OwnTrainer(config, model, engine, batches, journal, requests, removal, own)
            if resuming:
                resume_from_checkpoint(run, engine, trainer, journal)
            code = trainer.train()
            done = f"{trainer.step} of {config.train.steps} steps"
            journal.end("finished" if code == EXIT_DONE else "stopped", code, done)
    except BaseException as error:
        phase = "diverged" if isinstance(error, DivergedError) else "failed"
        code = error.exit_code if isinstance(error, WorkbenchError) else EXIT_ERROR
        journal.end(phase, code, f"{type(error).__name__}: {error}")
        raise


@dataclass(frozen=True)
class _Batch:
    value: Any
    tokens: int
    loss_tokens: int = 1
    """Micro-batches weigh the same: what a batch's loss is the mean of is its owner's affair."""


class _Batches:
    """Gives batch after batch, and knows how many it has given."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._given = 0
        self._left: Iterator[Any] = iter(batches)

    def next(self) -> _Batch:
        for _ in range(2):
            for batch in self._left:
                self._given += 1
                return _Batch(batch, _tokens_of(batch))
            self._left = iter(self._batches)
        raise ConfigurationError(
            f"batches: they ended after {self._given} and give none when they are read again; give a list, or fewer "
            "train.steps"
        )

    def state(self) -> dict[str, Any]:
        return {"batches": self._given}

    def load_state(self, state: dict[str, Any]) -> None:
        while self._given < state["batches"]:
            self.next()


@dataclass(frozen=True)
class _NoText:
    """Stands for the tokens of a run that has none."""

    tokenizer: None = None
    fingerprint: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)


class _OwnTrainer(Trainer):
    """The trainer with losses of the caller."""

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        engine: OffloadEngine,
        batches: _Batches,
        journal: Journal,
        requests: Requests,
        removal: Removal,
        own: _Own,
    ) -> None:
        text: Any = _NoText()
        sampler: Any = batches
        super().__init__(config, model, engine, text, journal, requests, removal, sampler)
        self._own = own

    def _check_loss(self) -> None:
        """There is nothing to compare it with."""

    def _batch_loss(self, batch: Any, device: Device) -> Tensor:
        value = batch.value
        if isinstance(value, Mapping):
            value = {k: device.send(v) if isinstance(v, Tensor) else v for k, v in value.items()}
        elif isinstance(value, Tensor):
            value = device.send(value)
        return self._own.loss(self._model, value)

    def _validation_loss(self, data: Any) -> float | None:
        assert self._own.evaluate is not None
        return float(self._own.evaluate(self._model))

    def _evaluate(self) -> None:
        if self._own.evaluate is not None:
            super()._evaluate()
        else:
            self._evaluated_step = self.step

    def _sample(self) -> None:
        """A module writes no text."""

    def _record(self, validation: float | None) -> None:
        pending = self._pending
        super()._record(validation)
        if pending is not None:
            for callback in self._own.callbacks:
                callback(pending.step, pending.loss())


def _own_loss(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def _tokens_of(batch: Any) -> int:
    """Return the elements of a batch's token ids, or of the batch; 1 where neither is a tensor."""
    found = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    return found.numel() if isinstance(found, Tensor) else 1


def _checked(config: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Return the configuration. Raises ConfigurationError with every mistake in it."""
    checked, problems = check_values({name: dict(table) for name, table in config.items()})
    wrong = [p for p in problems if p.path != ("model", "architecture")]
    if wrong:
        raise ConfigurationError(
            "\n".join(f"config: {'.'.join(map(str, p.path))}: {p.wrong}; {p.right}" for p in wrong)
        )
    if checked.parallel.gpus != 1:
        raise ConfigurationError("config: parallel.gpus: this process trains by itself; leave it out")
    return checked
