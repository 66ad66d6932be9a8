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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workbench.engine.activation_offload import ActivationOffload
from workbench.engine.arithmetic import Arithmetic, TorchArithmetic
from workbench.engine.assembly import assemble
from workbench.engine.checkpointing import BlockCheckpointing
from workbench.engine.compute_clock import ComputeClock, exposed_seconds, lane_seconds
from workbench.engine.device import Device, open_device
from workbench.engine.discovery import FoundShard, dtype_name, find_shards, lay_out
from workbench.engine.disk import DiskTier
from workbench.engine.execution import LaneError, StepExecution
from workbench.engine.forward_gate import ForwardGate
from workbench.engine.gradient_set import GradientSet
from workbench.engine.gradients import GradientIntake
from workbench.engine.heap import give_large_blocks_back
from workbench.engine.lanes import LaneThreads
from workbench.engine.ledger import Ledger, ledger_text, memory_ledger
from workbench.engine.non_finite import NonFiniteSteps
from workbench.engine.precision import Compute, Precision, compute_dtypes, working_precision
from workbench.engine.report import StepReport, StepResult
from workbench.engine.setup import check_arguments, host_arithmetic
from workbench.engine.step_work import StepWork
from workbench.engine.stored import StoredTensor
from workbench.engine.watchdog import Watchdog
from workbench.engine.weight_window import WeightWindow
from workbench.layout import Layout
from workbench.optimizer.cpu_count import usable_cpus
from workbench.optimizer.settings import AdamW
from workbench.placement import Tier, place
from workbench.routing import Conditions, lanes_pay, route_shard
from workbench.state_formats import StateFormat
from workbench.timeline import Kind, Lane, Overlap, StepShape, Timeline, build_timeline

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
        device_fraction: share of the trainable elements, in whole shards in forward order, that stay on the device with
            their state.
        state_format: how the state is kept off the device: "exact", or "half" or "compact" for matrices; embeddings and
            parameters with fewer than two dimensions stay exact. On a device of its own it is exact.
        gradient_accumulation: micro-batches a step.
        gradient_clipping: the largest norm of a step's mean gradient; 0 leaves it as it is.
        overlap: "exact" hides the update behind backward and the next forward, "serial" does everything in order;
            both give the same bits. "delayed" applies a step's gradients during the next one, from step
            `delay_warmup` + 1 on (Ren et al., ZeRO-Offload, 2021, §5.2).
        precision: of the working weights; "auto" is bf16 on a device that has it, else fp32. "fp16" scales the loss.
        compute: "auto" computes 16-bit weights in fp32 where the CPU has no such arithmetic, "same" in their own
            precision, "fp32" always in fp32 (on the CPU).
        activation_checkpointing: recompute each block's forward during backward. Weights that come through slots
        need it. activations: "host" keeps what backward needs of each block's input on the host.
        disk_path: a folder for the files of the disk tier.
        chunk_bytes: bytes of working weights that move and update together.
        threads: of the host optimizer; "auto" takes what this process may use.
        device: "cuda", "cuda:1", "cpu", "auto", or a `Device`.
        materialize: called with each shard that has parameters on the meta device, before it is laid into memory;
            has to replace them by real ones (see `FoundShard.owners`).
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
        compute: Compute = "auto",
        activation_checkpointing: bool = True,
        activations: Literal["device", "host"] = "device",
        disk_path: str | Path | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int | Literal["auto"] = "auto",
        device: str | torch.device | Device = "auto",
        materialize: Callable[[FoundShard], None] | None = None,
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
        self._settings = optimizer or AdamW()
        self._accumulation = gradient_accumulation
        self._overlap: Overlap = overlap
        self._delay_warmup = delay_warmup
        self._non_finite = NonFiniteSteps(scales_loss=self.dtype == torch.float16)
        found = find_shards(model)
        self.layout: Layout = lay_out(found, self.dtype, chunk_bytes, state_format, device_fraction)
        placements = place(self.layout, weights, state, device_fraction)
        global_quantity = gradient_clipping > 0 or self._non_finite.scales_loss
        computed_in = compute_dtypes(compute, self.device)
        conditions = Conditions(
            shared_memory=self.device.shared_memory,
            compute_dtypes={dtype_name(a): dtype_name(b) for a, b in computed_in.items()},
            gradient_accumulation=gradient_accumulation,
            must_wait=global_quantity or overlap != "exact",
            overlap=overlap,
            lanes_pay=lanes_pay(
                sum(shard.weight_bytes for shard in self.layout.shards),
                torch.get_num_threads(),
                usable_cpus(),
            ),
        )
        routes = [route_shard(s, p, conditions) for s, p in zip(self.layout.shards, placements, strict=True)]
        streamed = frozenset(s.index for s, r in zip(self.layout.shards, routes, strict=True) if r.streamed)
        if streamed and not activation_checkpointing:
            raise ValueError(
                "activation_checkpointing = False: weights that come through slots (off the device, or stored in 16 "
                "bits and computed in fp32) need it; without it backward would read what another block left there"
            )
        if any(route.placement.state == "disk" for route in routes):
            give_large_blocks_back()
        self._shape = StepShape(
            gradient_accumulation=gradient_accumulation,
            flows=tuple(route.flow() for route in routes),
            global_quantity=global_quantity,
            overlap="exact" if overlap == "delayed" else overlap,
        )
        self._timelines: dict[tuple[Overlap, bool], Timeline] = {}
        self._clock = ComputeClock()
        self._lanes = LaneThreads(self.device)
        self._disk: DiskTier | None = None
        self._closed = False
        self._failure: BaseException | None = None
        self._host: Arithmetic | None = None
        self._window: WeightWindow | None = None
        try:
            if any("disk" in (r.placement.weights, r.placement.state) for r in routes):
                assert disk_path is not None
                self._disk = DiskTier(Path(disk_path))
            on_host = [r for r in routes if not r.on_device]
            on_device = TorchArithmetic()
            self._host = host_arithmetic(threads, state_format) if on_host else on_device
            self._assembly = assemble(
                model,
                found,
                self.layout,
                routes,
                computed_in,
                storage=self.dtype,
                device=self.device,
                disk=self._disk,
                on_host=self._host,
                on_device=on_device,
                chunk_bytes=chunk_bytes,
                materialize=materialize,
            )
            memories, parameters = self._assembly.memories, self._assembly.parameters
            self._intake = GradientIntake(
                memories, parameters, self.device, self._clock, bounded=overlap != "serial"
            )
            self._work = StepWork(
                memories, self._intake, self.device, self._host, on_device, gradient_clipping
            )
            # Where all updates are compute's own, they are done when backward returns, and no forward waits.
            lanes_work = not all(r.by_compute and r.gradients != "gathered" for r in routes)
            updated = {i for i in range(len(found)) if lanes_work and i not in streamed}
            watched = {i for i, route in enumerate(routes) if not route.by_compute}
            self._gate = ForwardGate(model, found, updated, watched, self._clock, self._intake.block_called)
            if self._assembly.streamed:
                self._window = WeightWindow(
                    self._assembly.streamed,
                    self.device,
                    self._lanes,
                    self._gate.when_ready,
                    self._clock.waiting,
                )
                self._intake.retire = self._window.retire
            self._activations = ActivationOffload(self.device) if activations == "host" else None
            self._checkpointing = BlockCheckpointing(
                model,
                [(i, s.block) for i, s in enumerate(found) if s.block is not None],
                recomputes=activation_checkpointing,
                window=self._window,
                streamed=streamed,
                around=None if self._activations is None else self._activations.around_block,
            )
        except BaseException:
            self._close_resources()
            raise

        self.steps = 0
        """Steps begun, skipped ones included."""
        self._execution: StepExecution | None = None
        self._report: StepReport | None = None
        self._micro_batches = 0
        self._tokens: list[int | None] = []
        self._in_step = False
        self._uncounted = False
        self._pending: GradientSet | None = None
        self._watchdog = Watchdog(self._lanes, watchdog_s, self._stuck)

    # What the training loop calls

    @property
    def learning_rate(self) -> float:
        """Of the step whose first backward comes next."""
        return self._settings.lr

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._settings = replace(self._settings, lr=value)

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
        self._raise_failure()
        if self._micro_batches == self._accumulation:
            raise RuntimeError(f"backward() was called {self._accumulation} times already; call step() first")
        if tokens is not None and tokens <= 0:
            raise ValueError(f"tokens = {tokens}: expected a positive number of counted tokens")
        if self._tokens and (self._tokens[0] is None) != (tokens is None):
            raise RuntimeError("tokens must be given for every micro-batch of a step or for none")
        self._gate.end_forward()
        if self._micro_batches == 0:
            self._begin_step()
        execution = self._execution
        assert execution is not None
        self._tokens.append(tokens)
        if len(self._tokens) == self._accumulation:
            self._work.set_unscale(self._unscale())
        self._complete_forward(execution, self._micro_batches)
        last = len(self._tokens) == self._accumulation
        self._intake.begin_micro_batch(self._micro_batches, last=last)
        began = time.perf_counter()
        # Weights of micro-batches are relative to the first, so that gradients keep their natural size.
        first = self._tokens[0]
        weight = 1.0 if tokens is None or first is None else tokens / first
        weight *= self._non_finite.loss_scale
        try:
            if self._activations is not None:
                self._activations.begin_backward()
            (loss if weight == 1.0 else loss * weight).backward()
            if self._window is not None:
                self._window.end_backward(last=last)
            self._intake.end_micro_batch()
            if self._activations is not None:
                self._activations.end_micro_batch()
        except torch.OutOfMemoryError as error:
            held = ledger_text(self.memory())
            self._abandon_step(execution, error)
            raise torch.OutOfMemoryError(f"{error}; the engine holds {held}") from error
        except BaseException as error:
            self._abandon_step(execution, error)
            raise
        self._clock.end_backward(began)
        self._micro_batches += 1
        if last:
            self._hold_forwards(execution)

    def step(self) -> StepReport:
        """End the step: its update runs on, or has run, and the next forward waits for it block by block.

        A step may have fewer micro-batches than `gradient_accumulation` (the end of the data); its mean is over those
        it has. Returns at once; the report waits. A delayed step has waited for its own gradients, not for their
        update.

        Raises:
            RuntimeError: there was no backward().
            LaneError: a lane's task failed.
        """
        self._raise_failure()
        execution = self._execution
        if execution is None or not self._micro_batches:
            raise RuntimeError("step() without a backward() before it")
        if self._micro_batches < self._accumulation:
            self._work.set_unscale(self._unscale())
            if self._window is not None:
                self._window.end_backward(last=True)
            for micro_batch in range(self._micro_batches, self._accumulation):
                self._intake.begin_micro_batch(micro_batch, last=micro_batch == self._accumulation - 1)
                self._complete_forward(execution, micro_batch)
                self._intake.end_micro_batch()
            self._hold_forwards(execution)
        self._micro_batches = 0
        self._tokens = []
        self._in_step = False
        report = self._report = StepReport(self.wait)
        if self._is_delayed(self.steps):
            self._settle()
        elif self._overlap == "serial":
            self.wait()
        if self._window is not None:
            self._window.expect_forward()
        return report

    def wait(self) -> None:
        """Return when no host work is left: weights and state are those after the last step.

        In a delayed engine the state has then seen the last step's gradients, and the weights that the next forward
        reads have not; `weights` gives those that have.

        Raises:
            NonFiniteGradientsError: gradients were not finite three steps in a row, or shards had been updated already.
            LaneError: a lane's task failed.
        """
        self._raise_failure()
        execution = self._execution
        if execution is None:
            return
        if self._report is not None:
            self._settle()
            execution = self._execution
        if execution is not None and not self._in_step:
            with self._clock.waiting():
                self._guard(lambda: execution.wait(execution.timeline.settled))
            self._count_update()

    def close(self) -> None:
        """Finish the last step, end the lanes and take every hook off the model, which keeps its weights.

        What came through slots, or was computed in another dtype, is bound to its weights on the host; where those are
        on disk it is lost with the disk's files: read `weights` before. A step that was begun and not ended by `step`
        is dropped. Idempotent.

        Raises:
            NonFiniteGradientsError, LaneError: the last step could not be finished; the engine is closed all the same.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self.wait()
                if self._window is not None:
                    self._window.unbind()
                if self._overlap == "delayed":
                    for memory in self._assembly.memories:
                        memory.push_weights()
                self._assembly.leave()
        finally:
            self._tear_down()

    def _tear_down(self) -> None:
        self._closed = True
        if self._execution is not None:
            self._execution.abandon("the engine was closed")
        self._break_off(LaneError("the engine was closed"))
        self._watchdog.close()
        self._lanes.close()
        self._gate.remove()
        self._intake.end_step()
        self._intake.remove()
        self._checkpointing.remove()
        if self._activations is not None:
            self._activations.close()
        self._close_resources()

    def _close_resources(self) -> None:
        self._closed = True
        if not self._lanes.close():
            # A lane is still at work, on memory that must stay as it is.
            return
        if self._host is not None:
            self._host.close()
        if self._disk is not None:
            self._disk.close()
        self.device.close()

    def __enter__(self) -> OffloadEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            # What was raised matters, not what the step that it cut off would have come to.
            self._tear_down()

    # State and weights, for checkpoints

    def state(self) -> Iterator[tuple[str, Tensor | StoredTensor]]:
        """Every tensor of the optimizer state by name (`0003-h.2/exp_avg`), in place, after `wait`.

        Writing into them and calling `restore` resumes a step later. Names, dtypes and lengths do not depend on tiers.
        """
        self.wait()
        for memory in self._assembly.memories:
            for kind, tensor in memory.state():
                yield f"{memory.shard.index:04d}-{memory.shard.name}/{kind}", tensor

    def weights(self) -> Iterator[dict[str, Tensor]]:
        """The newest weights, a dictionary a shard: each parameter once, by its first name, in the storage dtype.

        On the host; tensors of shards that live there are views, to be read before the next step. At most one shard
        that is on disk, or on a device, is held in memory at a time.
        """
        self.wait()
        return self._assembly.weights()

    def counters(self) -> dict[str, Any]:
        """What the state needs beside its tensors: steps done, in all and by parameter, and the loss scale."""
        self.wait()
        counters: dict[str, Any] = {
            "steps": self.steps,
            **self._non_finite.as_dict(),
            "parameter_steps": {
                segment.name: memory.steps[number]
                for memory in self._assembly.memories
                for number, segment in enumerate(memory.shard.segments)
            },
        }
        return counters

    def restore(self, counters: dict[str, Any]) -> None:
        """Take up `counters` after the tensors of `state` were written into; refreshes the working weights.

        Raises:
            ValueError: the counters are of another model.
        """
        self.wait()
        known = {s.name for m in self._assembly.memories for s in m.shard.segments}
        given = counters["parameter_steps"]
        if known != set(given):
            odd = sorted(known.symmetric_difference(given))
            raise ValueError(f"the counters are of another model: {odd[0]} is in only one of the two")
        self._drop_pending()
        self.steps = int(counters["steps"])
        self._non_finite.load(counters)
        assert self._host is not None
        for memory in self._assembly.memories:
            memory.steps[:] = [int(given[segment.name]) for segment in memory.shard.segments]
            memory.derive(self._host, self._work.idle_buffer)
        if self._window is not None:
            self._window.forget()

    def memory(self) -> Ledger:
        """What holds memory now, in bytes, by tier ("device", "host", "disk") and by name."""
        moved = 0 if self._activations is None else self._activations.host_bytes
        staging = self.device.staging_bytes
        return memory_ledger(self._assembly, self._window, self._intake, self._work, staging, moved)

    def disk_written_per_day(self) -> float | None:
        """Bytes a day that this engine writes to its disk at the rate so far; None without a disk tier."""
        return None if self._disk is None else self._disk.written_per_day()

    # How a step goes

    def _is_delayed(self, step: int) -> bool:
        return self._overlap == "delayed" and step > self._delay_warmup

    def _timeline(self, delayed: bool, applies_last: bool) -> Timeline:
        overlap: Overlap = "delayed" if delayed else self._shape.overlap
        if (overlap, applies_last) not in self._timelines:
            shape = replace(self._shape, overlap=overlap, applies_last=applies_last)
            self._timelines[overlap, applies_last] = build_timeline(self.layout, shape)
        return self._timelines[overlap, applies_last]

    def _new_execution(self, *, delayed: bool, applies: GradientSet | None) -> StepExecution:
        self._work.begin(self._settings, delayed=delayed, applies=applies)
        timeline = self._timeline(delayed, applies is not None)
        inline = self._overlap == "serial"
        execution = StepExecution(timeline, self._lanes, self._work.perform, inline=inline)
        self._intake.begin_step(execution)
        self._execution = execution
        self._uncounted = applies is not None
        execution.start()
        return execution

    def _begin_step(self) -> None:
        """A step's first backward. A delayed step with an update by the last one's gradients is under way already."""
        if self._report is not None:
            self._settle()
        self.steps += 1
        self._in_step = True
        if self._execution is None:
            self._new_execution(delayed=self._is_delayed(self.steps), applies=None)
        self._work.set_settings(self._settings)

    def _hold_forwards(self, execution: StepExecution) -> None:
        """A step's last backward has ended: whatever runs forward now waits for its new weights."""
        if not self._is_delayed(self.steps):
            self._gate.hold_for(execution)
            if self._window is not None:
                self._window.forget()

    def _complete_forward(self, execution: StepExecution, micro_batch: int) -> None:
        for shard in self.layout.shards:
            execution.complete(execution.timeline.find(Kind.FORWARD, micro_batch, shard.index))

    def _unscale(self) -> float:
        counted = [t for t in self._tokens if t is not None]
        mean = counted[0] / sum(counted) if counted else 1.0 / len(self._tokens)
        return mean / self._non_finite.loss_scale

    def _settle(self) -> None:
        """Let the step that `step` ended come to its end, and say what it came to."""
        execution, report = self._execution, self._report
        assert execution is not None and report is not None

        def finish() -> None:
            with self._clock.waiting():
                execution.wait_all()
            result = self._conclude(execution)
            self._execution = self._report = None
            self._gate.release()
            if self._is_delayed(self.steps):
                # The next step begins here: its update by these gradients runs beside its forward.
                after = self._new_execution(delayed=True, applies=self._pending)
                self._gate.hold_for(after)
                if self._window is not None:
                    self._window.forget()
            report.resolve(result)

        try:
            self._guard(finish)
        except BaseException as error:
            report.fail(error)
            raise

    def _guard(self, action: Callable[[], None]) -> None:
        """Run `action`; what it raises stops the engine."""
        try:
            action()
        except BaseException as error:
            self._failure = error
            self._break_off(error)
            raise

    def _conclude(self, execution: StepExecution) -> StepResult:
        verdict = self._work.verdict
        assert verdict is not None
        delayed = self._is_delayed(self.steps)
        if delayed:
            self._count_update()
            self._pending = self._work.set_aside()
        else:
            self._work.finish()
        self._intake.end_step()
        scale = self._non_finite.loss_scale
        self._non_finite.after(self.steps, verdict)
        spans, waits = self._clock.take()
        spans += execution.spans
        if self._window is not None:
            spans += self._window.take_spans()
        if self._overlap == "serial":
            # The model's own thread did the lanes' work: it waited for all of it.
            waits += [(span.start_s, span.stop_s) for span in spans if span.lane is not Lane.COMPUTE]
        return StepResult(
            step=self.steps,
            grad_norm=verdict.grad_norm,
            skipped=not verdict.finite,
            learning_rate=self._work.learning_rate,
            lane_seconds=lane_seconds(spans),
            exposed_seconds=exposed_seconds(spans, waits),
            exposed_s=sum(stop - start for start, stop in waits),
            loss_scale=scale,
            spans=tuple(sorted(spans, key=lambda span: span.start_s)),
        )

    def _count_update(self) -> None:
        """A delayed step's update by the last gradients is over: count it, once."""
        if self._uncounted:
            self._uncounted = False
            self._work.finish()

    def _drop_pending(self) -> None:
        """Forget a delayed step that has begun with nothing of its own yet."""
        if self._execution is not None and not self._in_step:
            self._gate.release()
            self._intake.end_step()
            self._execution = None

    # When something fails

    def _abandon_step(self, execution: StepExecution, error: BaseException) -> None:
        # A backward that failed half-way leaves gradients nobody can tell apart: the engine stops here.
        execution.abandon(f"backward failed: {error}")
        self._failure = error
        self._break_off(error)

    def _break_off(self, error: BaseException) -> None:
        """Let whoever waits for a buffer or a slot go on."""
        self._work.break_off()
        if self._window is not None:
            self._window.break_off(error)

    def _stuck(self, error: LaneError) -> None:
        self._lanes.give_up()
        self._failure = self._failure or error
        execution = self._execution
        if execution is not None:
            execution.fail(error)
        self._break_off(error)

    def _raise_failure(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        if self._failure is not None:
            raise RuntimeError(f"the engine stopped after an error: {self._failure}") from self._failure
