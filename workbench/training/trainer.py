"""The training loop: micro-batches, steps, and what happens between them.

Everything that reads weights or state (evaluation, samples, checkpoints, the end) first waits for the engine; nothing
else does. A step is recorded when the engine has settled it, which is during the next one.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from workbench.config import RunConfig
from workbench.data.prepare import TokenData
from workbench.data.sampling import WindowSampler
from workbench.engine import NonFiniteGradientsError, OffloadEngine, StepReport
from workbench.engine.chunked_loss import CHECK_TOKENS, ChunkedLoss
from workbench.errors import EXIT_DONE, EXIT_TERMINATED, DivergedError
from workbench.optimizer.schedules import LearningRateSchedule
from workbench.runs import Command, ControlReader, write_sample
from workbench.runs.checkpoints import checkpoint_name
from workbench.training.checkpoint import save_checkpoint
from workbench.training.evaluation import validation_loss
from workbench.training.journal import Journal, StepRecord
from workbench.training.random_state import capture_random_state, restore_random_state
from workbench.training.sampling import generate
from workbench.training.signals import Requests
from workbench.training.throughput import RemainingTime, flops_per_token, peak_flops

CONTROL_EVERY_S = 0.2
PROGRESS_EVERY_S = 1.0


@dataclass(frozen=True)
class _Pending:
    """A step whose update may still run."""

    report: StepReport
    step: int
    loss: Tensor
    tokens: int
    step_s: float


class Trainer:
    """Trains one run from its present state to its last step, or until it is asked to stop."""

    def __init__(
        self,
        config: RunConfig,
        model: Any,
        engine: OffloadEngine,
        data: TokenData,
        journal: Journal,
        requests: Requests,
    ) -> None:
        self.step = 0
        """Steps completed."""
        self.tokens_total = 0
        self._config = config
        self._model = model
        self._engine = engine
        self._loss = ChunkedLoss(model)
        self._data = data
        self._journal = journal
        self._requests = requests
        self._control = ControlReader(journal.run)
        self._sampler = WindowSampler(
            data.train, config.data.sequence_length, config.train.micro_batch_size, config.train.seed
        )
        kind = config.schedule.type
        assert kind != "wsd", "refused by the configuration"
        self._schedule = LearningRateSchedule(
            kind=kind,
            learning_rate=config.optimizer.learning_rate,
            warmup_steps=config.schedule.warmup_steps,
            total_steps=config.train.steps,
            min_ratio=config.schedule.min_ratio,
        )
        self._pending: _Pending | None = None
        self._saved_step: int | None = None
        self._evaluated_step: int | None = None
        self._remaining = RemainingTime()
        self._process = psutil.Process()
        self._paused = False
        self._control_read = 0.0
        device = engine.device.torch_device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self._peak = peak_flops(name)
        text = model.config.get_text_config()
        self._flops = flops_per_token(
            engine.layout.parameters,
            text.num_hidden_layers,
            text.hidden_size,
            config.data.sequence_length,
        )

    # Going on where a checkpoint was taken

    def progress(self) -> dict[str, Any]:
        """What a checkpoint holds of the loop."""
        return {
            "step": self.step,
            "tokens_total": self.tokens_total,
            "data": self._sampler.state(),
            "data_fingerprint": self._data.fingerprint,
            "random": capture_random_state(),
        }

    def restore(self, progress: dict[str, Any]) -> None:
        """Take up what `progress` gave."""
        if progress["data_fingerprint"] != self._data.fingerprint:
            self._journal.warn(
                "the training text has changed since the checkpoint: the run goes on with the new text"
            )
        self._sampler.load_state(progress["data"])
        restore_random_state(progress["random"])
        self.step = self._saved_step = int(progress["step"])
        self.tokens_total = int(progress["tokens_total"])

    # The loop

    def train(self) -> int:
        """Run to the last step, or to a requested stop; returns the exit code.

        Raises:
            DivergedError: gradients or the validation loss were not finite.
            WorkbenchError: the disk refused something that must be kept.
        """
        config, journal, requests = self._config, self._journal, self._requests
        # Before anybody can see that it trains: whoever sees that may count on a stop that saves.
        requests.training = True
        journal.begin_at(self.step)
        journal.phase("training")
        self._check_loss()
        while self.step < config.train.steps and not self._interrupted():
            try:
                self._train_step()
            except NonFiniteGradientsError as error:
                raise DivergedError(f"training diverged: {error}") from error
            self._between_steps()
        if not self._interrupted() and self._evaluated_step != self.step:
            self._evaluate()  # of a run that was stopped between its last step and this
        self._save()
        if not self._interrupted():
            self._sample()
        return EXIT_DONE if requests.stop_code is None else requests.stop_code

    def _check_loss(self) -> None:
        """See that the loss comes out in chunks as the model has it, on the same tokens whether resumed or not."""
        few = min(CHECK_TOKENS, self._config.data.sequence_length)
        ids = self._data.train[None, :few].long().to(self._engine.device.torch_device)
        self._loss.check(ids, use_cache=False)
        if self._loss.refusal is not None:
            self._journal.warn(
                f"{self._loss.refusal}; the model's own loss is used, with all logits in memory"
            )

    def _train_step(self) -> None:
        config, engine = self._config, self._engine
        began = time.perf_counter()
        engine.learning_rate = self._schedule.at(self.step)
        device = engine.device.torch_device
        losses: list[Tensor] = []
        tokens = 0
        told = began
        micro_batches = config.train.gradient_accumulation
        for micro_batch in range(micro_batches):
            if (now := time.perf_counter()) - told >= PROGRESS_EVERY_S:
                told = now
                self._journal.progress(f"micro-batch {micro_batch + 1} of {micro_batches}")
            ids = self._sampler.next().to(device)
            loss = self._loss(ids, ids, use_cache=False)
            # Every position but the first of a sequence is predicted.
            counted = ids.shape[0] * (ids.shape[1] - 1)
            engine.backward(loss, tokens=counted)
            losses.append(loss.detach() * counted)
            tokens += counted
        # The step before is settled now: the engine has waited for it before this one's backward.
        self._record(None)
        report = engine.step()
        self.step += 1
        self.tokens_total += tokens
        mean = torch.stack(losses).sum() / tokens
        step_s = time.perf_counter() - began
        self._pending = _Pending(report, self.step, mean, tokens, step_s)
        self._remaining.add(step_s)

    def _between_steps(self) -> None:
        config = self._config
        last = self.step == config.train.steps
        # Before anything that records the step: the validation loss belongs in its record.
        if last or _due(self.step, config.evaluate.every):
            self._evaluate()
        self._obey_control()
        if _due(self.step, config.sample.every) and not last:
            self._sample()
        if self._requests.save or (_due(self.step, config.checkpoint.every) and not last):
            self._requests.save = False
            self._save()
        while self._paused and not self._interrupted():
            self._settle()
            self._journal.phase("paused")
            time.sleep(CONTROL_EVERY_S)
            self._obey_control()
            if self._requests.save:
                self._requests.save = False
                self._save()
        self._journal.phase("training")

    def _interrupted(self) -> bool:
        return self._requests.stop

    def _wait(self) -> None:
        """Let the engine finish the last step."""
        try:
            self._engine.wait()
        except NonFiniteGradientsError as error:
            raise DivergedError(f"training diverged: {error}") from error

    def _settle(self, validation: float | None = None) -> None:
        """Let the engine finish the last step, and record it with what was measured after it."""
        self._wait()
        self._record(validation)

    def _record(self, validation: float | None) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        result = pending.report.result()
        steps = self._config.train.steps
        mfu = self._flops * pending.tokens / pending.step_s / self._peak if self._peak else None
        record = StepRecord(
            step=pending.step,
            total_steps=steps,
            loss=float(pending.loss),
            tokens=pending.tokens,
            tokens_total=self.tokens_total,
            step_s=pending.step_s,
            mfu=mfu,
            device_bytes=self._engine.device.memory_bytes(),
            host_bytes=self._process.memory_info().rss,
            eta_s=self._remaining.seconds(steps - pending.step),
        )
        self._journal.step(record, result, validation)
        every = self._config.log.every
        if pending.step % every == 0 or pending.step in (1, steps):
            print(record.line(result), flush=True)

    # Control

    def _obey_control(self) -> None:
        now = time.monotonic()
        if now - self._control_read < CONTROL_EVERY_S / 2:
            return
        self._control_read = now
        for command in self._control.poll():
            self._control.acknowledge(command, self._obey(command))

    def _obey(self, command: Command) -> str:
        if command.verb == "stop":
            self._requests.request_stop(EXIT_TERMINATED)
            return f"stopping after step {self.step}, then saving"
        if command.verb == "save":
            path = self._save()
            return f"saved {path}"
        self._paused = command.verb == "pause"
        return f"paused after step {self.step}" if self._paused else f"going on after step {self.step}"

    # Between steps

    def _evaluate(self) -> None:
        self._wait()
        self._journal.phase("evaluating")
        began = time.perf_counter()
        config = self._config
        loss = validation_loss(
            self._model,
            self._data.validation,
            sequence_length=config.data.sequence_length,
            batch_size=config.train.micro_batch_size,
            total_tokens=config.evaluate.tokens,
            device=self._engine.device.torch_device,
            interrupted=self._interrupted,
            loss=self._loss,
        )
        self._settle(loss)
        if loss is None:
            return
        self._evaluated_step = self.step
        took = time.perf_counter() - began
        perplexity = float(torch.tensor(loss, dtype=torch.float64).exp())
        self._journal.evaluation(self.step, loss, perplexity, took)
        print(
            f"evaluation at step {self.step} | validation loss {loss:.4f} | perplexity {perplexity:.2f} | {took:.1f}s",
            flush=True,
        )
        if not math.isfinite(loss):
            raise DivergedError(f"training diverged: the validation loss after step {self.step} is {loss}")

    def _sample(self) -> None:
        config = self._config
        if not config.sample.tokens:
            return
        self._settle()
        self._journal.phase("evaluating", "generating a sample")
        tokenizer = self._data.tokenizer
        prompt = tokenizer.encode(config.sample.prompt)
        ids = generate(
            self._model,
            prompt,
            tokens=config.sample.tokens,
            context=config.data.sequence_length,
            vocabulary_size=tokenizer.vocabulary_size,
            end_of_text=tokenizer.end_of_text,
            seed=config.train.seed + self.step,
            device=self._engine.device.torch_device,
            interrupted=self._interrupted,
        )
        text = config.sample.prompt + tokenizer.decode(ids)
        path = write_sample(self._journal.run, self.step, text)
        self._journal.event("sample", step=self.step, path=str(path.relative_to(self._journal.run.path)))
        print(f"sample at step {self.step}:\n{text}\n", flush=True)

    def _save(self) -> Path:
        self._settle()
        root = self._journal.run.checkpoints
        if self._saved_step == self.step:
            return root / checkpoint_name(self.step)
        self._journal.phase("saving")
        began = time.perf_counter()
        path = save_checkpoint(
            root,
            self.step,
            engine=self._engine,
            model=self._model,
            tokenizer=self._data.tokenizer,
            progress=self.progress(),
            keep=self._config.checkpoint.keep,
        )
        self._saved_step = self.step
        took = time.perf_counter() - began
        place = str(path.relative_to(self._journal.run.path))
        self._journal.event("checkpoint", step=self.step, path=place, seconds=took)
        print(f"checkpoint {path} | {took:.1f}s", flush=True)
        return path


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
