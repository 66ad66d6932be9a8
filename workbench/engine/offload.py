"""The offload engine: trains any `torch.nn.Module` with its weights, its optimizer state and the optimizer's step where
there is room for them: on the device, on the host, on disk.

    engine = OffloadEngine(model, optimizer=AdamW(lr=3e-4), state="host", gradient_clipping=1.0)
    for batch in batches:
        engine.backward(model(**batch).loss)
        report = engine.step()

It needs no configuration file, screen or run directory. The model is called as always; hooks on it wait, block by
block, for the weights that the step before is still updating.

Invariant: at most one step has host work under way. It is finished before the next step's first backward begins (a
delayed step's own update, which runs beside it, before the step ends), so every gradient buffer has one owner, and
state is read by nobody else while it is written.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.blocks.model_guard import ModelGuard, check_is_free
from workbench.engine.build import EngineRuntime, build_runtime, plan_units
from workbench.engine.config import EngineConfig
from workbench.engine.devices.device import open_device
from workbench.engine.execution import Watchdog
from workbench.engine.non_finite import NonFiniteSteps
from workbench.engine.precision import working_precision
from workbench.engine.ranks import open_ranks
from workbench.engine.report import StepReport
from workbench.engine.step_scheduler import MicroBatches, StepScheduler
from workbench.engine.stored_tensor import StoredTensor
from workbench.layout import Layout
from workbench.sizes import Breakdown, breakdown_text
from workbench.timeline import Kind


class OffloadEngine:
    """Trains `model` in place.

    Args:
        model: its floating-point parameters are recast to the working precision (fp32 ones beside 16-bit ones stay
            fp32) and moved to `device`, and stay bound to the engine's memory until `close`. Parameters on the
            meta device are given values by `materialize`.
        options: the fields of `EngineConfig`, by name.

    Where the native extension is missing, a `MissingExtensionWarning` says so and torch's fused AdamW does its work.

    Raises:
        TypeError: `optimizer` is a torch optimizer: the engine needs the numbers of one.
        ValueError: an argument is out of range, arguments contradict each other, the model cannot be trained or another
            engine holds it, or the extension that `half` and `compact` need is missing.
        DiskError: the disk has no room, or refuses.
    """

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=nn.Module),
            *(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for parameter in inspect.signature(EngineConfig).parameters.values()
            ),
        ]
    )
    """`help` shows the fields of `EngineConfig` as the keyword arguments that they are."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        config = EngineConfig(**options)
        self.model = model
        self.device = open_device(config.device)
        self.device.set_host_threads(config.threads)
        self.dtype = working_precision(config.precision, self.device)
        check_is_free(model)
        self._ranks = ranks = open_ranks(config.process_group, config.watchdog_s)
        try:
            plan = plan_units(model, self.device, self.dtype, config, ranks)
            self._runtime = build_runtime(model, plan, self.device, config, ranks)
        except BaseException as error:
            if ranks is not None:
                ranks.leave(error)
            raise
        self.layout: Layout = plan.layout
        # An engine that is dropped instead of closed leaves no thread behind, and no forward that waits for one.
        weakref.finalize(self, _abandon, self._runtime).atexit = False
        this = weakref.ref(self)
        self._guard = ModelGuard(model, streamed=bool(plan.streamed), wait=lambda: _wait_for(this))
        self._delays = config.overlap == "delayed"
        self._micro_batches = MicroBatches(
            config.gradient_accumulation, config.micro_batch_tokens, 1 if ranks is None else ranks.size
        )
        self._non_finite = NonFiniteSteps(config.loss_scaling(self.dtype))
        self._scheduler = StepScheduler(self._runtime, plan, config, self._non_finite)
        self._watchdog = Watchdog(self._runtime.lanes, config.watchdog_s, self._scheduler.fail_stuck)

    # Calls of the training loop

    @property
    def steps(self) -> int:
        """Steps begun, skipped ones included."""
        return self._scheduler.steps

    @property
    def learning_rate(self) -> float:
        """The learning rate of the step whose first backward comes next."""
        return self._scheduler.settings.lr

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._scheduler.settings = replace(self._scheduler.settings, lr=value)

    def backward(self, loss: Tensor, *, tokens: int | None = None) -> None:
        """Backpropagate one micro-batch's mean loss (a scalar).

        `tokens` is what the mean was taken over: the step's loss is then the mean over all its tokens. Without it,
        micro-batches weigh the same. Returns when backward has ended; host work may go on.

        Raises:
            RuntimeError: more micro-batches than `gradient_accumulation`, or `tokens` given for some of them only.
            ValueError: `tokens` is not positive.
            LaneError: a lane's task failed.
            torch.OutOfMemoryError: with what the engine holds; there can be no further step. After one in a forward,
                which nothing has begun, there can.
        """
        runtime, scheduler = self._runtime, self._scheduler
        scheduler.raise_failure()
        self._micro_batches.check(tokens)
        runtime.barrier.end_forward()
        number = len(self._micro_batches)
        if number == 0:
            scheduler.begin()
        weight = self._micro_batches.add(tokens) * self._non_finite.loss_scale
        last = self._micro_batches.complete
        if last:
            self._set_unscale()
        scheduler.begin_micro_batch(number, last=last)
        runtime.clock.begin(Kind.BACKWARD)
        try:
            if runtime.activations is not None:
                runtime.activations.begin_backward()
            (loss if weight == 1.0 else loss * weight).backward()
            runtime.clock.end()
            if runtime.prefetcher is not None:
                runtime.prefetcher.end_backward(last=last)
            runtime.grad_hooks.end_micro_batch()
            if runtime.activations is not None:
                runtime.activations.end_micro_batch()
        except torch.OutOfMemoryError as error:
            held = breakdown_text(self.memory())
            scheduler.fail_backward(error)
            raise torch.OutOfMemoryError(
                f"{error}; the engine holds {held}; it has stopped, because half a backward cannot be undone: create "
                "it again with smaller micro-batches, or offload more"
            ) from error
        except BaseException as error:
            scheduler.fail_backward(error)
            raise
        if last:
            scheduler.hold_forwards()

    def step(self) -> StepReport:
        """End the step: its update runs on, or has run, and the next forward waits for it block by block.

        A step may have fewer micro-batches than `gradient_accumulation` (the end of the data), unless ranks
        `run_together`; its mean is over those it has. Returns at once; the report waits. A delayed step has waited for
        its own gradients, not for their update.

        Raises:
            RuntimeError: there was no backward(), or one too few.
            LaneError: a lane's task failed.
        """
        self._scheduler.raise_failure()
        had, most = len(self._micro_batches), self._micro_batches.most
        if not had:
            raise RuntimeError("step() without a backward() before it")
        if had < most and self.run_together:
            raise RuntimeError(
                f"step() after {had} of {most} micro-batches: where weights come from several ranks, each runs "
                "all of a step's"
            )
        if had < most:
            self._set_unscale()
            if self._runtime.prefetcher is not None:
                self._runtime.prefetcher.end_backward(last=True)
            for number in range(had, most):
                self._scheduler.begin_micro_batch(number, last=number == most - 1)
                self._runtime.grad_hooks.end_micro_batch()
            self._scheduler.hold_forwards()
        self._micro_batches.clear()
        self._guard.end_step()
        return self._scheduler.end(self.wait)

    def wait(self) -> None:
        """Return when no host work is left: weights and state are those after the last step.

        In a delayed engine the state has then seen the last step's gradients, and the weights that the next forward
        reads have not; `weights` gives those that have.

        Raises:
            NonFiniteGradientsError: gradients were not finite three steps in a row, or units had been updated already.
            LaneError: a lane's task failed.
        """
        self._scheduler.wait()

    def close(self) -> None:
        """Finish the last step, end the lanes and take every hook off the model, which keeps its weights.

        A parameter that came through slots, or was computed in another dtype, is bound to its weights on the host; if
        those are on disk, or on several ranks, it is NaN: read `weights` before. A step that was begun and not ended
        by `step` is dropped. Idempotent.

        Raises:
            NonFiniteGradientsError, LaneError: the last step could not be finished; the engine is closed all the same.
        """
        if self._scheduler.closed:
            return
        try:
            if not self._scheduler.failed:
                self.wait()
                self._runtime.hand_back(push=self._delays)
        finally:
            self._tear_down()

    def __enter__(self) -> OffloadEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._scheduler.closed:
            # The raised error matters, not the result of the step that it cut off.
            self._tear_down(error)

    # State and weights, for checkpoints

    def state(self) -> Iterator[tuple[str, Tensor | StoredTensor]]:
        """Return every tensor of the optimizer state by name (`0003-h.2/exp_avg`), in place, after `wait`.

        Writing into them and calling `restore` resumes a step later. Names, dtypes and lengths do not depend on tiers.
        """
        self.wait()
        yield from self._runtime.units.state()

    def weights(self) -> Iterator[dict[str, Tensor]]:
        """Return the newest weights, a dictionary a unit: each parameter once, by its first name, in the storage dtype.

        On the host; tensors of units that live there are views, to be read before the next step. At most one unit
        that is on disk, or on a device, is held in memory at a time. Where `weights_are_exchanged`, all ranks have
        to take all of them, in the same place.
        """
        self.wait()
        between = self._runtime.between_ranks if self.weights_are_exchanged else None
        return self._runtime.units.weights(between)

    @property
    def weights_are_exchanged(self) -> bool:
        """Several ranks tell each other their `weights`: no rank has all of those that come through slots, and those
        that a delayed engine's next forward reads are older."""
        return self.run_together or (self._delays and self._ranks is not None)

    @property
    def run_together(self) -> bool:
        """Blocks' weights come from several ranks: all of them have to call the model equally often, so that each runs
        the same blocks in the same order, without gradients too."""
        return self._ranks is not None and bool(self._runtime.units.streamed)

    def counters(self) -> dict[str, Any]:
        """Return what the state needs beside its tensors: steps done, in all and by parameter, and the loss scale."""
        self.wait()
        return {
            **self._scheduler.counters(),
            **self._non_finite.as_dict(),
            "parameter_steps": self._runtime.units.parameter_steps(),
        }

    def restore(self, counters: dict[str, Any]) -> None:
        """Take up `counters` after the tensors of `state` were written into; refreshes the working weights.

        Raises:
            ValueError: the counters are of another model.
        """
        self.wait()
        known, given = self._runtime.units.parameter_steps(), counters["parameter_steps"]
        if known.keys() != given.keys():
            odd = sorted(known.keys() ^ given.keys())
            raise ValueError(f"the counters are of another model: {odd[0]} is in only one of the two")
        self._scheduler.restore(counters)
        self._non_finite.load(counters)
        self._runtime.refresh(given)

    def memory(self) -> Breakdown:
        """Return what holds memory now, in bytes, by tier ("device", "host", "disk") and by name.

        Where the driver would not pin all host memory that is copied, "copied through small buffers" has how much.
        """
        return self._runtime.memory_breakdown()

    def disk_written_per_day(self) -> float | None:
        """Return the bytes a day that this engine writes to its disk at the rate so far; None without a disk tier."""
        disk = self._runtime.disk
        return None if disk is None else disk.written_per_day()

    # Shared steps

    def _set_unscale(self) -> None:
        """Tell the update the mean's factor: all micro-batches of the step are known."""
        self._runtime.tasks.set_mean(self._micro_batches.mean(self._non_finite.loss_scale))

    def _tear_down(self, error: BaseException | None = None) -> None:
        if self._ranks is not None:
            self._ranks.leave(error)
        self._scheduler.close()
        self._watchdog.close()
        self._guard.remove()
        self._runtime.close()


def _wait_for(engine: weakref.ref[OffloadEngine]) -> None:
    alive = engine()
    if alive is not None:
        alive.wait()


def _abandon(runtime: EngineRuntime) -> None:
    runtime.lanes.end()
    runtime.cancel(
        RuntimeError(
            "it was dropped without close(), and this model's weights with it; create the model again"
        )
    )
