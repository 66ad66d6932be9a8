"""The offload engine: trains any `torch.nn.Module` with its weights, its optimizer state and the optimizer's step where
there is room for them: on the device, on the host, on disk.

    engine = OffloadEngine(model, optimizer=AdamW(lr=3e-4), state="host", gradient_clipping=1.0)
    for batch in batches:
        engine.backward(model(**batch).loss)
        report = engine.step()

It needs no configuration file, screen or run directory. The model is called as always; hooks on it wait, block by
block, for the weights that the step before is still updating.

Invariant: at most one step has host work under way. It is settled before the next step's first backward begins (a
delayed step's own update, which runs beside it, before the step ends), so every gradient buffer has one owner, and
state is read by nobody else while it is written.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic.precision import Compute, Precision, working_precision
from workbench.engine.arrangement import arrange
from workbench.engine.blocks.discovery import FoundUnit
from workbench.engine.devices.device import Device, open_device
from workbench.engine.lanes.watchdog import Watchdog
from workbench.engine.machinery import set_up
from workbench.engine.memory_breakdown import MemoryBreakdown, memory_breakdown_text
from workbench.engine.setup import check_arguments
from workbench.engine.step_cycle import StepCycle
from workbench.engine.steps.loss_scale import LossScaling
from workbench.engine.steps.micro_batches import MicroBatches
from workbench.engine.steps.non_finite import NonFiniteSteps
from workbench.engine.steps.report import StepReport
from workbench.engine.storage.stored_tensor import StoredTensor
from workbench.layout import Layout
from workbench.optimizer.settings import AdamW
from workbench.placement import Tier
from workbench.state_formats import StateFormat
from workbench.timeline import Overlap

DEFAULT_CHUNK_BYTES = 16 << 20
DEFAULT_DELAY_WARMUP = 40
DEFAULT_WATCHDOG_S = 600.0


class OffloadEngine:
    """Trains `model` in place.

    Args:
        model: its floating-point parameters are recast to the working precision (fp32 ones beside 16-bit ones stay
            fp32) and moved to `device`, and stay bound to the engine's memory until `close`. Parameters on the
            meta device are given values by `materialize`.
        optimizer: AdamW's numbers. Weight decay applies to parameters of two or more dimensions.
        weights: the tier of the blocks' working weights, "device", "host" or "disk". Off the device they come block by
            block through a ring of slots. Parameters outside the blocks stay on the device.
        state: the tier of the optimizer state, "device", "host" or "disk"; never above that of the weights.
        device_fraction: share of the trainable elements, in whole units in forward order, that stay on the device with
            their state.
        state_format: how the state is kept off the device: "exact", or "half" or "compact" for matrices; embeddings and
            parameters with fewer than two dimensions stay exact. On a device of its own it is exact.
        gradient_accumulation: micro-batches a step.
        gradient_clipping: the largest norm of a step's mean gradient; 0 leaves it as it is.
        overlap: "exact" hides the update behind backward and the next forward, "serial" does everything in order;
            both give the same bits. "delayed" applies a step's gradients during the next one, from step
            `delay_warmup` + 1 on (Ren et al., ZeRO-Offload, 2021, §5.2).
        precision: of the working weights; "auto" is bf16 on a device that has it, else fp32. "fp16" scales the loss, by
            `loss_scale`; None searches the scale from 2^16 on.
        compute: "auto" computes 16-bit weights in fp32 where the CPU has no such arithmetic, "same" in their own
            precision, "fp32" always in fp32 (on the CPU).
        activation_checkpointing: recompute each block's forward during backward. Weights that come through slots
        need it. activations: "host" keeps what backward needs of each block's input on the host.
        disk_path: a folder for the files of the disk tier.
        chunk_bytes: bytes of working weights that move and update together.
        threads: of the host optimizer; "auto" takes what this process may use.
        device: "cuda", "cuda:1", "cpu", "auto", or a `Device`.
        materialize: called with each unit that has parameters on the meta device, before it is laid into memory;
            has to replace them by real ones (see `FoundUnit.owners`).
        watchdog_s: a lane that works on one task for longer than this ends the step with an error that names it; 0
            never does.

    Where the native extension is missing, a `MissingExtensionWarning` says so and torch's fused AdamW does its work.

    Raises:
        TypeError: `optimizer` is a torch optimizer: the engine needs the numbers of one.
        ValueError: an argument is out of range, arguments contradict each other, the model cannot be trained, or the
            extension that `half` and `compact` need is missing.
        DiskError: the disk has no room, or refuses.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: AdamW | None = None,
        weights: Tier = "device",
        state: Tier = "host",
        device_fraction: float = 0.0,
        state_format: StateFormat = "exact",
        gradient_accumulation: int = 1,
        gradient_clipping: float = 0.0,
        overlap: Overlap = "exact",
        delay_warmup: int = DEFAULT_DELAY_WARMUP,
        precision: Precision = "auto",
        loss_scale: LossScaling | None = None,
        compute: Compute = "auto",
        activation_checkpointing: bool = True,
        activations: Literal["device", "host"] = "device",
        disk_path: str | Path | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int | Literal["auto"] = "auto",
        device: str | torch.device | Device = "auto",
        materialize: Callable[[FoundUnit], None] | None = None,
        watchdog_s: float = DEFAULT_WATCHDOG_S,
    ) -> None:
        check_arguments(
            optimizer=optimizer,
            weights=weights,
            state=state,
            state_format=state_format,
            gradient_accumulation=gradient_accumulation,
            gradient_clipping=gradient_clipping,
            overlap=overlap,
            delay_warmup=delay_warmup,
            activation_checkpointing=activation_checkpointing,
            activations=activations,
            disk_path=disk_path,
        )
        self.model = model
        self.device = open_device(device)
        self.dtype = working_precision(precision, self.device)
        scaling = (loss_scale or LossScaling()) if self.dtype == torch.float16 else None
        self._non_finite = NonFiniteSteps(scaling)
        arrangement = arrange(
            model,
            self.device,
            storage=self.dtype,
            compute=compute,
            weights=weights,
            state=state,
            device_fraction=device_fraction,
            state_format=state_format,
            gradient_accumulation=gradient_accumulation,
            global_quantity=gradient_clipping > 0 or self._non_finite.scales_loss,
            overlap=overlap,
            activation_checkpointing=activation_checkpointing,
            chunk_bytes=chunk_bytes,
        )
        self.layout: Layout = arrangement.layout
        self._machinery = set_up(
            model,
            arrangement,
            self.device,
            storage=self.dtype,
            threads=threads,
            state_format=state_format,
            gradient_clipping=gradient_clipping,
            activation_checkpointing=activation_checkpointing,
            activations=activations,
            disk_path=disk_path,
            chunk_bytes=chunk_bytes,
            materialize=materialize,
        )
        # An engine that is dropped instead of closed leaves no thread behind.
        weakref.finalize(self, self._machinery.lanes.end).atexit = False
        self._delays = overlap == "delayed"
        self._micro_batches = MicroBatches(gradient_accumulation)
        self._cycle = StepCycle(
            self._machinery, arrangement, optimizer or AdamW(), self._non_finite, delay_warmup
        )
        self._watchdog = Watchdog(self._machinery.lanes, watchdog_s, self._cycle.fail_stuck)

    # What the training loop calls

    @property
    def steps(self) -> int:
        """Steps begun, skipped ones included."""
        return self._cycle.steps

    @property
    def learning_rate(self) -> float:
        """Of the step whose first backward comes next."""
        return self._cycle.settings.lr

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._cycle.settings = replace(self._cycle.settings, lr=value)

    def backward(self, loss: Tensor, *, tokens: int | None = None) -> None:
        """Backpropagate one micro-batch's mean loss (a scalar).

        `tokens` is what the mean was taken over: the step's loss is then the mean over all its tokens. Without it,
        micro-batches weigh the same. Returns when backward has ended; host work may go on.

        Raises:
            RuntimeError: more micro-batches than `gradient_accumulation`, or `tokens` given for some of them only.
            ValueError: `tokens` is not positive.
            LaneError: a lane's task failed.
            torch.OutOfMemoryError: with what the engine holds.
        """
        machinery, cycle = self._machinery, self._cycle
        cycle.raise_failure()
        self._micro_batches.check(tokens)
        machinery.gate.end_forward()
        number = len(self._micro_batches)
        if number == 0:
            cycle.begin()
        weight = self._micro_batches.add(tokens) * self._non_finite.loss_scale
        last = self._micro_batches.complete
        if last:
            self._set_unscale()
        cycle.begin_micro_batch(number, last=last)
        began = time.perf_counter()
        try:
            if machinery.activations is not None:
                machinery.activations.begin_backward()
            (loss if weight == 1.0 else loss * weight).backward()
            if machinery.window is not None:
                machinery.window.end_backward(last=last)
            machinery.intake.end_micro_batch()
            if machinery.activations is not None:
                machinery.activations.end_micro_batch()
        except torch.OutOfMemoryError as error:
            held = memory_breakdown_text(self.memory())
            cycle.fail_backward(error)
            raise torch.OutOfMemoryError(f"{error}; the engine holds {held}") from error
        except BaseException as error:
            cycle.fail_backward(error)
            raise
        machinery.clock.end_backward(began)
        if last:
            cycle.hold_forwards()

    def step(self) -> StepReport:
        """End the step: its update runs on, or has run, and the next forward waits for it block by block.

        A step may have fewer micro-batches than `gradient_accumulation` (the end of the data); its mean is over those
        it has. Returns at once; the report waits. A delayed step has waited for its own gradients, not for their
        update.

        Raises:
            RuntimeError: there was no backward().
            LaneError: a lane's task failed.
        """
        self._cycle.raise_failure()
        had, most = len(self._micro_batches), self._micro_batches.most
        if not had:
            raise RuntimeError("step() without a backward() before it")
        if had < most:
            self._set_unscale()
            if self._machinery.window is not None:
                self._machinery.window.end_backward(last=True)
            for number in range(had, most):
                self._cycle.begin_micro_batch(number, last=number == most - 1)
                self._machinery.intake.end_micro_batch()
            self._cycle.hold_forwards()
        self._micro_batches.clear()
        return self._cycle.end(self.wait)

    def wait(self) -> None:
        """Return when no host work is left: weights and state are those after the last step.

        In a delayed engine the state has then seen the last step's gradients, and the weights that the next forward
        reads have not; `weights` gives those that have.

        Raises:
            NonFiniteGradientsError: gradients were not finite three steps in a row, or units had been updated already.
            LaneError: a lane's task failed.
        """
        self._cycle.wait()

    def close(self) -> None:
        """Finish the last step, end the lanes and take every hook off the model, which keeps its weights.

        What came through slots, or was computed in another dtype, is bound to its weights on the host; where those are
        on disk it is lost with the disk's files: read `weights` before. A step that was begun and not ended by `step`
        is dropped. Idempotent.

        Raises:
            NonFiniteGradientsError, LaneError: the last step could not be finished; the engine is closed all the same.
        """
        if self._cycle.closed:
            return
        try:
            if not self._cycle.failed:
                self.wait()
                self._machinery.leave(push=self._delays)
        finally:
            self._tear_down()

    def __enter__(self) -> OffloadEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._cycle.closed:
            # What was raised matters, not what the step that it cut off would have come to.
            self._tear_down()

    # State and weights, for checkpoints

    def state(self) -> Iterator[tuple[str, Tensor | StoredTensor]]:
        """Every tensor of the optimizer state by name (`0003-h.2/exp_avg`), in place, after `wait`.

        Writing into them and calling `restore` resumes a step later. Names, dtypes and lengths do not depend on tiers.
        """
        self.wait()
        yield from self._machinery.assembly.state()

    def weights(self) -> Iterator[dict[str, Tensor]]:
        """The newest weights, a dictionary a unit: each parameter once, by its first name, in the storage dtype.

        On the host; tensors of units that live there are views, to be read before the next step. At most one unit
        that is on disk, or on a device, is held in memory at a time.
        """
        self.wait()
        return self._machinery.assembly.weights()

    def counters(self) -> dict[str, Any]:
        """What the state needs beside its tensors: steps done, in all and by parameter, and the loss scale."""
        self.wait()
        return {
            "steps": self.steps,
            **self._non_finite.as_dict(),
            "parameter_steps": self._machinery.assembly.parameter_steps(),
        }

    def restore(self, counters: dict[str, Any]) -> None:
        """Take up `counters` after the tensors of `state` were written into; refreshes the working weights.

        Raises:
            ValueError: the counters are of another model.
        """
        self.wait()
        known, given = self._machinery.assembly.parameter_steps(), counters["parameter_steps"]
        if known.keys() != given.keys():
            odd = sorted(known.keys() ^ given.keys())
            raise ValueError(f"the counters are of another model: {odd[0]} is in only one of the two")
        self._cycle.drop_begun()
        self._cycle.steps = int(counters["steps"])
        self._non_finite.load(counters)
        self._machinery.refresh(given)

    def memory(self) -> MemoryBreakdown:
        """What holds memory now, in bytes, by tier ("device", "host", "disk") and by name."""
        return self._machinery.memory_breakdown()

    def disk_written_per_day(self) -> float | None:
        """Bytes a day that this engine writes to its disk at the rate so far; None without a disk tier."""
        disk = self._machinery.disk
        return None if disk is None else disk.written_per_day()

    # What it does at several places

    def _set_unscale(self) -> None:
        """All micro-batches of the step are known."""
        self._machinery.work.set_unscale(self._micro_batches.mean_factor / self._non_finite.loss_scale)

    def _tear_down(self) -> None:
        self._cycle.close()
        self._watchdog.close()
        self._machinery.close()
