"""The training loop: micro-batches, steps, and what happens between them.

Everything that reads weights or state (evaluation, samples, checkpoints, the end) first waits for the engine; nothing
else does. A step is recorded when the engine has finished it, which is during the next one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import psutil
import torch
from torch import Tensor

from workbench import formatting
from workbench.config import RunConfig
from workbench.data.batches import Batch, Sampler
from workbench.data.prepare import TokenData
from workbench.engine import NonFiniteGradientsError, OffloadEngine, StepReport
from workbench.engine.devices.device import Device
from workbench.engine.loss.chunked_loss import CHECK_ROWS, CHECK_TOKENS, ChunkedLoss
from workbench.engine.precision import PRECISIONS, dtype_name
from workbench.errors import EXIT_DONE, EXIT_TERMINATED, DivergedError
from workbench.runs import Command, ControlReader, write_sample
from workbench.runs.checkpoints import BestStep, Progress, checkpoint_name
from workbench.training.batches import training_sampler, validation_batches
from workbench.training.checkpoints.save import Removal, best_before, name_best, remove_old, save_checkpoint
from workbench.training.evaluation import batch_loss, check_separation, continued, generate, validation_loss
from workbench.training.failures import RecentSteps, diverged
from workbench.training.journal import Journal, StepRecord
from workbench.training.measurements import RemainingTime, device_peak, model_flops_per_token
from workbench.training.prepare import learning_rate_schedule
from workbench.training.ranks import ONE_RANK, EveryNth, RunRanks, of_all
from workbench.training.resume_check import settings_of
from workbench.training.signals import Requests

CONTROL_EVERY_S = 0.2
PROGRESS_EVERY_S = 1.0


@dataclass(frozen=True)
class _Pending:
    """A step whose update may still run."""

    report: StepReport
    step: int
    loss: Callable[[], float]
    loss_tokens: int
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
        removal: Removal,
        sampler: Sampler | None = None,
        ranks: RunRanks = ONE_RANK,
    ) -> None:
        self.step = 0
        """Steps completed."""
        self.skipped = 0
        """Steps of these that were left out, because their gradients were not finite; the last one may be missing."""
        self.tokens_total = 0
        """Tokens that went through the model, padding left out."""
        self._config = config
        self._model = model
        self._engine = engine
        self._loss = ChunkedLoss(model, label_smoothing=config.train.label_smoothing)
        self._data = data
        self._journal = journal
        self._requests = requests
        self._removal = removal
        self._control = ControlReader(journal.run)
        self._ranks = ranks
        self._stops = self._saves = False
        """The decision that all ranks share."""
        self._sampler = EveryNth(sampler or training_sampler(config, data), ranks)
        self._schedule = learning_rate_schedule(config)
        self._pending: _Pending | None = None
        self._saved_step: int | None = None
        self._best: BestStep | None = None
        self._best_is_named = True
        self._evaluated_step: int | None = None
        self._lowest: float | None = None
        self._without_gain = 0
        self._remaining = RemainingTime()
        self._process = psutil.Process()
        self._paused = False
        self._control_read = 0.0
        self._peak = device_peak(engine)
        self._flops = model_flops_per_token(model, engine, config.data.sequence_length)
        self._recent = RecentSteps()

    # Going on where a checkpoint was taken

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide how the state lies and is updated."""
        precision = next(name for name, dtype in PRECISIONS.items() if dtype == self._engine.dtype)
        return settings_of(self._config, precision)

    def progress(self) -> Progress:
        """Return what a checkpoint holds of the loop."""
        return Progress(
            step=self.step,
            skipped=self.skipped,
            tokens_total=self.tokens_total,
            data=self._sampler.state(),
            data_fingerprint=self._data.fingerprint,
            random=self._random_state(),
            best=self._best,
            settings=self.settings(),
            lowest_validation_loss=self._lowest,
            evaluations_without_gain=self._without_gain,
        )

    def restore(self, progress: Progress) -> None:
        """Go on where `progress` was taken."""
        self._sampler.load_state(progress.data)
        if progress.data_fingerprint != self._data.fingerprint:
            self._journal.warn(
                "the training text has changed since the checkpoint: the run continues with the new text"
            )
        self._best = self._best_before(progress)
        self._restore_random_state(progress)
        self.step = self._saved_step = progress.step
        self.skipped = progress.skipped
        self.tokens_total = progress.tokens_total
        self._lowest = progress.lowest_validation_loss
        # A run that has ended early and is begun again is given its patience again.
        self._without_gain = progress.evaluations_without_gain % max(1, self._config.evaluate.patience)

    def _best_before(self, progress: Progress) -> BestStep | None:
        best = None
        if not self._ranks.rank:
            best = best_before(self._journal.run.checkpoints, progress.step, progress.best)
        told = self._ranks.tell(None if best is None else [best.step, best.validation_loss])[0]
        return None if told is None else BestStep(*told)

    def _random_state(self) -> dict[str, Any]:
        first, *others = self._ranks.tell(capture_random_state())
        return {**first, "ranks": others} if others else dict(first)

    def _restore_random_state(self, progress: Progress) -> None:
        """Set the generators to this rank's state; where there were fewer ranks, to one of its own."""
        others = [None, *progress.random.get("ranks", [])]
        rank = self._ranks.rank
        if not rank:
            restore_random_state(progress.random)
        elif rank < len(others):
            restore_random_state(others[rank])
        else:
            seed_everything(self._config.train.seed + rank + self._ranks.size * progress.step)

    @property
    def ended_early(self) -> bool:
        """True where the validation loss has not fallen for as many evaluations as `evaluate.patience` allows."""
        return 0 < self._config.evaluate.patience <= self._without_gain

    # The loop

    def train(self) -> int:
        """Run to the last step, or to a requested stop; returns the exit code. One that comes when all is done but the
        save does not make the run a stopped one.

        Raises:
            DivergedError: gradients or the validation loss were not finite.
            WorkbenchError: the disk refused something that must be kept.
        """
        config, journal, requests = self._config, self._journal, self._requests
        # Before anybody can see that it trains: whoever sees that may count on a stop that saves.
        requests.training = True
        journal.begin_at(self.step)
        journal.phase("training")
        if config.data.separate_documents:
            check_separation(self._model, self._engine.device.torch_device)
        self._check_loss()
        while self.step < config.train.steps and not self._interrupted() and not self.ended_early:
            try:
                self._train_step()
            except NonFiniteGradientsError as error:
                raise self._diverged(error) from error
            self._between_steps()
        if not self._interrupted() and self._evaluated_step != self.step:
            self._evaluate()  # of a run that was stopped between its last step and this
        self._save()
        if not self._interrupted():
            self._sample()
        is_done = self._evaluated_step == self.step and (self.step >= config.train.steps or self.ended_early)
        return EXIT_DONE if is_done or requests.stop_code is None else requests.stop_code

    def _check_loss(self) -> None:
        """Compare the loss in chunks with the model's own, on the same tokens whether resumed or not."""
        few = min(CHECK_TOKENS, self._config.data.sequence_length)
        device = self._engine.device.torch_device
        batch = next(validation_batches(self._config, self._data))
        arguments = {}
        if batch.position_ids is not None:
            arguments = {"position_ids": batch.position_ids[:CHECK_ROWS, :few].to(device)}
        self._loss.check(batch.input_ids[:CHECK_ROWS, :few].to(device), use_cache=False, **arguments)
        if self._loss.refusal is not None:
            self._journal.warn(
                f"{self._loss.refusal}; the model's own loss is used, with all logits in memory"
            )

    def _train_step(self) -> None:
        config, engine = self._config, self._engine
        began = time.perf_counter()
        losses: list[Tensor] = []
        loss_tokens = tokens = 0
        reported = began
        micro_batches = config.train.gradient_accumulation
        for micro_batch in range(micro_batches):
            if (now := time.perf_counter()) - reported >= PROGRESS_EVERY_S:
                reported = now
                self._journal.progress(f"micro-batch {micro_batch + 1} of {micro_batches}")
            batch = self._sampler.next()
            loss = self._batch_loss(batch, engine.device)
            if not micro_batch:
                # The forward waited for the update before: whether that was left out is known, and costs no time.
                engine.learning_rate = self._schedule.at(self._updates())
            engine.backward(loss, tokens=batch.loss_tokens)
            losses.append(loss.detach() * batch.loss_tokens)
            loss_tokens += batch.loss_tokens
            tokens += batch.tokens
        # The step before is finished now: the engine has waited for it before this one's backward.
        self._record(None)
        report = engine.step()
        self.step += 1
        loss_of_step = engine.device.fetch(torch.stack(losses).sum() / loss_tokens)
        step_s = time.perf_counter() - began
        self._pending = _Pending(report, self.step, loss_of_step, loss_tokens, tokens, step_s)
        self._remaining.add(step_s)

    def _batch_loss(self, batch: Batch, device: Device) -> Tensor:
        return batch_loss(self._loss, batch, device)

    def _updates(self) -> int:
        """Return the steps that were not left out: the schedule does not advance on an overflow.

        Waits until it is known whether the last step is left out, not for its update.
        """
        pending = self._pending
        return self.step - self.skipped - (pending is not None and pending.report.is_skipped())

    def _between_steps(self) -> None:
        config = self._config
        last = self.step == config.train.steps
        # Before anything that records the step: the validation loss belongs in its record.
        if last or _due(self.step, config.evaluate.every):
            self._evaluate()
        last = last or self.ended_early
        self._obey_control()
        if _due(self.step, config.sample.every) and not last:
            self._sample()
        if self._take_save_request() or (self._save_is_due() and not last):
            self._save()
        while self._paused and not self._interrupted():
            self._finish_step()
            self._journal.phase("paused")
            time.sleep(CONTROL_EVERY_S)
            self._obey_control()
            if self._take_save_request():
                self._save()
        self._journal.phase("training")

    def _take_save_request(self) -> bool:
        """Return whether a save was asked for, on whichever rank, and forget it."""
        if self._ranks.size > 1:
            asked, self._saves = self._saves, False
        else:
            asked, self._requests.save = self._requests.save, False
        return asked

    def _interrupted(self) -> bool:
        return self._requests.stop if self._ranks.size == 1 else self._stops

    def _wait(self) -> None:
        """Let the engine finish the last step."""
        try:
            self._engine.wait()
        except NonFiniteGradientsError as error:
            raise self._diverged(error) from error

    def _diverged(self, what: object) -> DivergedError:
        if self._pending is not None:
            # The step that went wrong is not recorded: the engine has no result of it.
            self._recent.add(self._pending.step, self._pending.loss(), math.nan)
        checkpoints, precision = self._journal.run.checkpoints, dtype_name(self._engine.dtype)
        return diverged(str(what), self._recent, self._config, checkpoints, precision)

    def _finish_step(self, validation: float | None = None) -> None:
        """Let the engine finish the last step, and record it with what was measured after it."""
        self._wait()
        self._record(validation)

    def _record(self, validation: float | None) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        result = pending.report.result()
        self.skipped += result.skipped
        loss, tokens = self._of_all_ranks(pending)
        self.tokens_total += tokens
        steps = self._config.train.steps
        mfu = self._flops * pending.tokens / pending.step_s / self._peak if self._peak else None
        record = StepRecord(
            step=pending.step,
            total_steps=steps,
            loss=loss,
            tokens=tokens,
            tokens_total=self.tokens_total,
            step_s=pending.step_s,
            mfu=mfu,
            device_bytes=self._engine.device.memory_bytes(),
            host_bytes=self._process.memory_info().rss,
            eta_s=self._remaining.seconds(steps - pending.step),
        )
        self._journal.step(record, result, validation)
        self._recent.add(pending.step, record.loss, result.grad_norm)
        every = self._config.log.every
        if pending.step % every == 0 or pending.step in (1, steps):
            print(record.line(result), flush=True)

    def _of_all_ranks(self, pending: _Pending) -> tuple[float, int]:
        """Return a step's loss and tokens."""
        loss = pending.loss()
        if self._ranks.size == 1:
            return loss, pending.tokens
        told = self._ranks.tell([loss * pending.loss_tokens, pending.loss_tokens, pending.tokens])
        nats, counted, tokens = of_all(told)
        return nats / counted, int(tokens)

    # Control

    def _obey_control(self) -> None:
        if self._ranks.size > 1:
            self._obey_together()
            return
        for command in self._commands():
            self._control.acknowledge(command, self._obey(command))

    def _commands(self) -> list[Command]:
        now = time.monotonic()
        if now - self._control_read < CONTROL_EVERY_S / 2:
            return []
        self._control_read = now
        return list(self._control.poll())

    def _obey_together(self) -> None:
        """Do what any rank was asked for on all of them: signals reach each, lines the first."""
        requests, commands = self._requests, self._commands()
        save, requests.save = requests.save, False
        told = self._ranks.tell([requests.stop_code, save, [command.verb for command in commands]])
        for stop_code, asked, verbs in told:
            if stop_code is not None:
                requests.request_stop(stop_code)
            self._saves |= asked or "save" in verbs
            for verb in verbs:
                if verb == "stop":
                    requests.request_stop(EXIT_TERMINATED)
                elif verb != "save":
                    self._paused = verb == "pause"
        self._stops = any(stop_code is not None or "stop" in verbs for stop_code, _, verbs in told)
        for command in commands:
            done = "saving" if command.verb == "save" else self._obey(command)
            self._control.acknowledge(command, done)

    def _obey(self, command: Command) -> str:
        if command.verb == "stop":
            self._requests.request_stop(EXIT_TERMINATED)
            return f"stopping after step {self.step}, then saving"
        if command.verb == "save":
            path = self._save()
            return f"saved {path}"
        self._paused = command.verb == "pause"
        return f"paused after step {self.step}" if self._paused else f"continuing after step {self.step}"

    # Between steps

    def _evaluate(self) -> None:
        self._wait()
        self._journal.phase("evaluating")
        began = time.perf_counter()
        loss = self._validation_loss(self._data)
        self._finish_step(loss)
        if loss is None:
            return
        for name, other in self._data.others.items():
            beside = self._validation_loss(other)
            if beside is None:
                return
            self._journal.event("evaluation_of", name=name, step=self.step, loss=beside)
            print(f"evaluation of {name} at step {self.step} | loss {beside:.4f}", flush=True)
        self._evaluated_step = self.step
        took = time.perf_counter() - began
        perplexity = float(torch.tensor(loss, dtype=torch.float64).exp())
        self._journal.evaluation(self.step, loss, perplexity, took)
        shown = f"validation loss {loss:.4f} | {formatting.perplexity(perplexity)} | {took:.1f}s"
        print(f"evaluation at step {self.step} | {shown}", flush=True)
        if not math.isfinite(loss):
            raise self._diverged(f"the validation loss after step {self.step} is {loss}")
        gained = self._lowest is None or loss < self._lowest
        self._lowest = loss if gained else self._lowest
        self._without_gain = 0 if gained else self._without_gain + 1
        if self._config.checkpoint.keep_best and (self._best is None or loss < self._best.validation_loss):
            self._best = BestStep(self.step, loss)
            self._best_is_named = False

    def _validation_loss(self, data: TokenData) -> float | None:
        """Return nats a token on the validation side of `data`; None when interrupted."""
        return validation_loss(
            self._model,
            validation_batches(self._config, data),
            device=self._engine.device,
            interrupted=self._interrupted,
            loss=self._loss,
            ranks=self._ranks,
        )

    def _sample(self) -> None:
        config = self._config
        if not config.sample.tokens:
            return
        self._finish_step()
        together = self._engine.run_together
        if self._ranks.rank and not together:
            return
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
            ranks=self._ranks if together else ONE_RANK,
        )
        if self._ranks.rank:
            return
        text = continued(tokenizer.decode, config.sample.prompt, prompt, ids)
        path = write_sample(self._journal.run, self.step, text)
        self._journal.event("sample", step=self.step, path=str(path.relative_to(self._journal.run.path)))
        print(f"sample at step {self.step}:\n{text}\n", flush=True)

    def _save_is_due(self) -> bool:
        checkpoint = self._config.checkpoint
        return (
            _due(self.step, checkpoint.every)
            or _due(self.step, checkpoint.keep_every)
            or not self._best_is_named
        )

    def _save(self) -> Path:
        self._finish_step()
        root, checkpoint = self._journal.run.checkpoints, self._config.checkpoint
        keeping: dict[str, Any] = {
            "keep": checkpoint.keep,
            "keep_every": checkpoint.keep_every,
            "best": self._best,
        }
        if self._saved_step == self.step:
            if self._best is not None and not self._best_is_named:
                if not self._ranks.rank:
                    name_best(root, self._best)
                    remove_old(root, self._removal, **keeping)
                self._best_is_named = True
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
            **keeping,
            removal=self._removal,
            ranks=self._ranks,
        )
        self._saved_step = self.step
        self._best_is_named = True
        took = time.perf_counter() - began
        place = f"{root.name}/{path.name}"
        best = self._best is not None and self._best.step == self.step
        self._journal.event("checkpoint", step=self.step, path=place, seconds=took, best=best)
        print(f"checkpoint {path} | {took:.1f}s{' | the best so far' if best else ''}", flush=True)
        return path


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


# The state of every random number generator, as JSON can hold it


def capture_random_state() -> dict[str, Any]:
    """Return the states of Python's, torch's, each CUDA device's and numpy's generators."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = numpy.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [name, keys.tolist(), *rest],  # type: ignore[union-attr]
    }
    if torch.cuda.is_available():
        state["cuda"] = [each.numpy().tobytes().hex() for each in torch.cuda.get_rng_state_all()]
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Set every generator that `state` speaks of."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    devices = state.get("cuda", [])
    if devices and torch.cuda.device_count() == len(devices):
        torch.cuda.set_rng_state_all([_tensor(text) for text in devices])
    numpy.random.set_state(tuple(state["numpy"]))


def seed_everything(seed: int) -> None:
    """Seed every generator of the process."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy.random.seed(seed % (1 << 32))


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
