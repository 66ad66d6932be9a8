"""The offload engine: trains any `torch.nn.Module` with its optimizer state, and the optimizer's step, on the host.

    engine = OffloadEngine(model, optimizer=AdamW(lr=3e-4), state="host", gradient_clipping=1.0)
    for batch in batches:
        engine.backward(model(**batch).loss)
        report = engine.step()

It needs no configuration file, screen or run directory. The model is called as always; hooks on it wait, block by
block, for the weights that the step before is still updating.

Invariant: at most one step has host work under way. It is settled before the next step's first backward begins, so
every gradient buffer has one owner, and state is read by nobody else while it is written.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic import Arithmetic, TorchArithmetic
from workbench.engine.checkpointing import BlockCheckpointing
from workbench.engine.device import Device, has_bfloat16, open_device
from workbench.engine.discovery import FoundShard, find_shards, lay_out, working_dtype
from workbench.engine.execution import Span, StepExecution
from workbench.engine.forward_gate import ForwardGate
from workbench.engine.gradients import GradientIntake
from workbench.engine.lanes import LaneThreads
from workbench.engine.memory import ShardMemory
from workbench.engine.report import NonFiniteGradientsError, StepReport, StepResult, lane_seconds
from workbench.engine.step_work import StepWork
from workbench.layout import Layout
from workbench.optimizer.extension import MissingExtensionWarning, missing_extension
from workbench.optimizer.settings import AdamW
from workbench.state_formats import MOMENTS, StateFormat
from workbench.timeline import Kind, Lane, StepShape, Timeline, build_timeline

Precision = Literal["auto", "bf16", "fp32"]
SKIPS_ALLOWED = 2
DEFAULT_CHUNK_BYTES = 16 << 20


class OffloadEngine:
    """Trains `model` in place.

    Args:
        model: its floating-point parameters are recast to the working precision and moved to `device`, and stay bound
            to the engine's memory until `close`. Parameters on the meta device are given values by `materialize`.
        optimizer: AdamW's numbers. Weight decay applies to parameters of two or more dimensions.
        weights: the tier of the working weights; "device".
        state: the tier of the optimizer state, "device" or "host".
        state_format: how the state is kept on the host: "exact", or "half" or "compact" for matrices; embeddings and
            parameters with fewer than two dimensions stay exact. On the device it is exact.
        gradient_accumulation: micro-batches a step.
        gradient_clipping: the largest norm of a step's mean gradient; 0 leaves it as it is.
        overlap: "exact" hides the update behind backward and the next forward, "serial" does everything in order;
            both give the same bits.
        precision: of the working weights; "auto" is bf16 on a device that has it, else fp32.
        activation_checkpointing: recompute each block's forward during backward.
        chunk_bytes: bytes of working weights that move and update together.
        threads: of the host optimizer; "auto" takes what this process may use.
        device: "cuda", "cuda:1", "cpu", "auto", or a `Device`.
        materialize: called with each shard that has parameters on the meta device, before it is laid into memory;
            has to replace them by real ones (see `FoundShard.owners`).

    Where the native extension is missing, a `MissingExtensionWarning` says so and torch's fused AdamW does its work.

    Raises:
        ValueError: an argument is out of range, or the model cannot be trained, or the extension that `half` and
            `compact` need is missing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: AdamW | None = None,
        weights: Literal["device"] = "device",
        state: Literal["device", "host"] = "host",
        state_format: StateFormat = "exact",
        gradient_accumulation: int = 1,
        gradient_clipping: float = 0.0,
        overlap: Literal["serial", "exact"] = "exact",
        precision: Precision = "auto",
        activation_checkpointing: bool = True,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int | Literal["auto"] = "auto",
        device: str | torch.device | Device = "auto",
        materialize: Callable[[FoundShard], None] | None = None,
    ) -> None:
        _check_choice("weights", weights, ("device",))
        _check_choice("state", state, ("device", "host"))
        _check_choice("state_format", state_format, tuple(MOMENTS))
        if state == "device" and state_format != "exact":
            raise ValueError(f"state_format = {state_format!r}: on the device the state is exact")
        _check_choice("overlap", overlap, ("serial", "exact"))
        if gradient_accumulation < 1:
            raise ValueError(f"gradient_accumulation = {gradient_accumulation}: expected 1 or more")
        if not gradient_clipping >= 0:
            raise ValueError(f"gradient_clipping = {gradient_clipping}: expected 0 (off) or more")
        self.model = model
        self.device = open_device(device)
        self.dtype = working_precision(precision, self.device)
        self._settings = optimizer or AdamW()
        self._accumulation = gradient_accumulation
        found = find_shards(model)
        self.layout: Layout = lay_out(found, self.dtype, chunk_bytes, state_format)
        self._lanes = LaneThreads(self.device)

        travels = state == "host" and not self.device.shared_memory
        # Autograd's own sum over micro-batches is in the gradient's dtype; only in fp32 is it the one we want.
        referenced = not travels and (gradient_accumulation == 1 or self.dtype == torch.float32)
        accumulates = not referenced and gradient_accumulation > 1
        on_host = state == "host" or self.device.shared_memory
        self._arithmetic = _host_arithmetic(threads, state_format) if on_host else TorchArithmetic()
        # On the device there is nothing to overlap the update with: it may as well know the verdict first.
        global_quantity = gradient_clipping > 0 or state == "device"
        shape = StepShape(
            gradient_accumulation=gradient_accumulation,
            state=state,
            shared_memory=self.device.shared_memory,
            referenced_gradients=not accumulates,
            global_quantity=global_quantity,
            overlap=overlap,
        )
        self._timeline: Timeline = build_timeline(self.layout, shape)
        self._serial = overlap == "serial"

        def gradient_dtype(dtype: str) -> torch.dtype | None:
            if referenced:
                return None
            return torch.float32 if accumulates else getattr(torch, dtype)

        self._memories: list[ShardMemory] = []
        parameters: list[list[nn.Parameter]] = []
        for shard, source in zip(self.layout.shards, found, strict=True):
            if materialize is not None and any(p.is_meta for p in source.parameters.values()):
                materialize(source)
            memory = ShardMemory(
                shard,
                self.device,
                state_on_device=state == "device",
                gradient_dtype=gradient_dtype,
            )
            members = [source.parameters[segment.name] for segment in shard.segments]
            memory.adopt(members, self._arithmetic)
            for frozen in shard.frozen:
                _place_frozen(source.parameters[frozen.name], self.dtype, self.device)
            for member in members:
                member.grad = None
            self._memories.append(memory)
            parameters.append(members)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(self.device.torch_device)

        self._intake = GradientIntake(
            self._memories,
            parameters,
            self.device,
            referenced=referenced,
            accumulates=accumulates,
            travels=travels,
            bounded=overlap != "serial",
        )
        self._work = StepWork(self._memories, self._intake, self.device, self._arithmetic, gradient_clipping)
        self._checkpointing = BlockCheckpointing(
            model, [s.block for s in found if s.block is not None] if activation_checkpointing else []
        )
        self._gate = ForwardGate(model, found, self._intake.block_called)

        self.steps = 0
        """Steps begun, skipped ones included."""
        self._skipped_in_a_row = 0
        self._execution: StepExecution | None = None
        self._report: StepReport | None = None
        self._micro_batches = 0
        self._tokens: list[int | None] = []
        self._failure: BaseException | None = None
        self._closed = False

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
        """
        self._raise_failure()
        if self._micro_batches == self._accumulation:
            raise RuntimeError(f"backward() was called {self._accumulation} times already; call step() first")
        if tokens is not None and tokens <= 0:
            raise ValueError(f"tokens = {tokens}: expected a positive number of counted tokens")
        if self._tokens and (self._tokens[0] is None) != (tokens is None):
            raise RuntimeError("tokens must be given for every micro-batch of a step or for none")
        self._gate.pause()
        if self._micro_batches == 0:
            self._begin_step()
        execution = self._execution
        assert execution is not None
        self._tokens.append(tokens)
        if len(self._tokens) == self._accumulation:
            self._work.set_unscale(self._unscale())
        self._end_forward(execution)
        self._intake.begin_micro_batch(self._micro_batches)
        start = time.perf_counter()
        # Weights of micro-batches are relative to the first, so that gradients keep their natural size.
        first = self._tokens[0]
        weight = 1.0 if tokens is None or first is None else tokens / first
        try:
            (loss if weight == 1.0 else loss * weight).backward()
            self._intake.end_micro_batch()
        except BaseException as error:
            self._abandon_step(execution, error)
            raise
        execution.spans.append(Span(Lane.COMPUTE, Kind.BACKWARD, None, None, start, time.perf_counter()))
        self._micro_batches += 1

    def step(self) -> StepReport:
        """End the step: its update runs on, or has run, and the next forward waits for it block by block.

        A step may have fewer micro-batches than `gradient_accumulation` (the end of the data); its mean is over those
        it has. Returns at once; the report waits.

        Raises:
            RuntimeError: there was no backward().
        """
        self._raise_failure()
        execution = self._execution
        if execution is None or not self._micro_batches:
            raise RuntimeError("step() without a backward() before it")
        if self._micro_batches < self._accumulation:
            self._work.set_unscale(self._unscale())
            for micro_batch in range(self._micro_batches, self._accumulation):
                self._intake.begin_micro_batch(micro_batch)
                for shard in self.layout.shards:
                    execution.complete(self._timeline.find(Kind.FORWARD, micro_batch, shard.index))
                self._intake.end_micro_batch()
        self._micro_batches = 0
        self._tokens = []
        report = self._report = StepReport(self.wait)
        self._gate.hold_for(execution)
        if self._serial:
            self.wait()
        return report

    def wait(self) -> None:
        """Return when no host work is left: weights and state are those after the last step.

        Raises:
            NonFiniteGradientsError: gradients were not finite three steps in a row, or shards had been updated already.
            LaneError: a lane's task failed.
        """
        self._raise_failure()
        execution, report = self._execution, self._report
        if execution is None or report is None:
            return
        start = time.perf_counter()
        try:
            execution.wait_all()
            exposed_s = self._gate.take_waited_s() + time.perf_counter() - start
            result = self._conclude(execution, exposed_s)
        except BaseException as error:
            self._failure = error
            report.fail(error)
            raise
        self._execution = self._report = None
        self._gate.release()
        report.resolve(result)

    def close(self) -> None:
        """Finish the last step, end the lanes and take every hook off the model, which keeps its weights. Idempotent.

        A step that was begun and not ended by `step` is dropped.

        Raises:
            NonFiniteGradientsError, LaneError: the last step could not be finished; the engine is closed all the same.
        """
        if self._closed:
            return
        try:
            if self._failure is None:
                self.wait()
        finally:
            self._tear_down()

    def _tear_down(self) -> None:
        self._closed = True
        if self._execution is not None:
            self._execution.abandon("the engine was closed")
            self._intake.break_off()
        self._lanes.close()
        self._gate.remove()
        self._intake.end_step()
        self._intake.remove()
        self._checkpointing.remove()
        self._arithmetic.close()
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

    # State, for checkpoints

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the optimizer state by name (`0003-h.2/exp_avg`), in place, after `wait`.

        Writing into them and calling `restore` resumes a step later.
        """
        self.wait()
        for memory in self._memories:
            for kind, tensor in memory.state():
                yield f"{memory.shard.index:04d}-{memory.shard.name}/{kind}", tensor

    def counters(self) -> dict[str, Any]:
        """What the state needs beside its tensors: steps done, in all and by parameter."""
        self.wait()
        return {
            "steps": self.steps,
            "skipped_in_a_row": self._skipped_in_a_row,
            "parameter_steps": {
                segment.name: memory.steps[number]
                for memory in self._memories
                for number, segment in enumerate(memory.shard.segments)
            },
        }

    def restore(self, counters: dict[str, Any]) -> None:
        """Take up `counters` after the tensors of `state` were written into; refreshes the working weights.

        Raises:
            ValueError: the counters are of another model.
        """
        self.wait()
        known = {s.name for m in self._memories for s in m.shard.segments}
        given = counters["parameter_steps"]
        if known != set(given):
            odd = sorted(known.symmetric_difference(given))
            raise ValueError(f"the counters are of another model: {odd[0]} is in only one of the two")
        self.steps = int(counters["steps"])
        self._skipped_in_a_row = int(counters["skipped_in_a_row"])
        for memory in self._memories:
            memory.steps[:] = [int(given[segment.name]) for segment in memory.shard.segments]
            memory.push_weights()

    # How a step goes

    def _begin_step(self) -> None:
        self.wait()
        self.steps += 1
        self._work.begin(self._settings)
        execution = StepExecution(self._timeline, self._lanes, self._work.perform, inline=self._serial)
        self._intake.begin_step(execution)
        self._execution = execution

    def _end_forward(self, execution: StepExecution) -> None:
        execution.spans.extend(self._gate.end_forward())
        for shard in self.layout.shards:
            execution.complete(self._timeline.find(Kind.FORWARD, self._micro_batches, shard.index))

    def _unscale(self) -> float:
        counted = [t for t in self._tokens if t is not None]
        return counted[0] / sum(counted) if counted else 1.0 / len(self._tokens)

    def _conclude(self, execution: StepExecution, exposed_s: float) -> StepResult:
        verdict = self._work.verdict
        assert verdict is not None
        if verdict.finite:
            self._work.finish()
        self._intake.end_step()
        self._skipped_in_a_row = 0 if verdict.finite else self._skipped_in_a_row + 1
        if verdict.torn:
            raise NonFiniteGradientsError(
                f"step {self.steps}: the gradient of {verdict.offender} is not finite, and other shards had been "
                "updated already; go on from the last checkpoint (clipping makes every step wait for the verdict)"
            )
        if self._skipped_in_a_row > SKIPS_ALLOWED:
            raise NonFiniteGradientsError(
                f"step {self.steps}: the gradient of {verdict.offender} is not finite, for the "
                f"{self._skipped_in_a_row}rd step in a row; nothing was written for them"
            )
        return StepResult(
            step=self.steps,
            grad_norm=verdict.grad_norm,
            skipped=not verdict.finite,
            learning_rate=self._work.learning_rate,
            lane_seconds=lane_seconds(execution.spans),
            exposed_s=exposed_s,
            spans=tuple(sorted(execution.spans, key=lambda span: span.start_s)),
        )

    def _abandon_step(self, execution: StepExecution, error: BaseException) -> None:
        # A backward that failed half-way leaves gradients nobody can tell apart: the engine stops here.
        execution.abandon(f"backward failed: {error}")
        self._intake.break_off()
        self._failure = error

    def _raise_failure(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        if self._failure is not None:
            raise RuntimeError(f"the engine stopped after an error: {self._failure}") from self._failure


def working_precision(precision: Precision, device: Device) -> torch.dtype:
    """The dtype of working weights that `precision` means on `device`.

    Raises:
        ValueError: `precision` is none of auto, bf16 and fp32.
    """
    _check_choice("precision", precision, ("auto", "bf16", "fp32"))
    if precision == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _place_frozen(parameter: nn.Parameter, dtype: torch.dtype, device: Device) -> None:
    parameter.data = parameter.data.to(device=device.torch_device, dtype=working_dtype(parameter, dtype))


def _host_arithmetic(threads: int | Literal["auto"], state_format: StateFormat) -> Arithmetic:
    missing = missing_extension()
    if missing is None:
        from workbench.engine.host_arithmetic import HostArithmetic

        return HostArithmetic(threads)
    if state_format != "exact":
        raise ValueError(f"state_format = {state_format!r}: {missing}; without it the state is kept exact")
    warnings.warn(
        f"{missing}; until then torch's fused AdamW does its work, slower", MissingExtensionWarning, 3
    )
    return TorchArithmetic()


def _check_choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r}: expected {' or '.join(map(repr, known))}")
