"""One step after the other as work on memory: which gradients it brings, which it applies, and the verdict over them.

What each task does is in gradient_work.py and update_work.py; which thread calls is the execution's business.

Invariant: nothing is written to a unit for a step whose verdict is not finite. Where updates run before the verdict
(no global quantity is needed), nothing is written from the first chunk on that is not finite, and the step is `torn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from torch import Tensor

from workbench.engine.arithmetic.tier_arithmetic import Arithmetic
from workbench.engine.devices.device import Device
from workbench.engine.devices.slot_pool import SlotPool
from workbench.engine.gradients.grad_hooks import GradientHooks
from workbench.engine.gradients.gradient_set import GradientSet, Verdict
from workbench.engine.steps.gradient_work import GradientWork
from workbench.engine.steps.state_tables import StateTables
from workbench.engine.steps.update_work import UpdateWork
from workbench.engine.storage.unit_memory import UnitMemory
from workbench.optimizer.settings import AdamW
from workbench.sizes import BufferSizes
from workbench.timeline import Kind, Task

NORM_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6


class StepWork:
    """Performs the tasks of one step after the other on the units' memories."""

    def __init__(
        self,
        memories: Sequence[UnitMemory],
        intake: GradientHooks,
        device: Device,
        on_host: Arithmetic,
        on_device: Arithmetic,
        sizes: BufferSizes,
        gradient_clipping: float,
    ) -> None:
        self._memories = memories
        self._intake = intake
        self._device = device
        self._clipping = gradient_clipping
        self._any_on_device = any(m.route.on_device for m in memories)
        # The update lane may wait only for buffers that come back without it: those of first sums, which go straight
        # to disk, and not those that are read and wait for the update lane's next task.
        staging, waiting, first_sums = self._pools = [
            SlotPool(lambda size=b.nbytes: device.empty_pages(size), b.number)  # type: ignore[misc]
            for b in (sizes.state, sizes.gradients, sizes.first_sums)
        ]
        self.idle_buffer: Tensor | None = (
            device.empty_pages(sizes.state.nbytes) if sizes.state.number else None
        )
        """A staging buffer for use while no step is under way."""
        self._tables = StateTables(memories, intake, on_host, on_device, self.idle_buffer)
        self._gradients = GradientWork(memories, intake, device, self._tables, waiting, first_sums)
        self._updates = UpdateWork(memories, intake, device, self._tables, staging, waiting)
        self._current = self._applied = GradientSet.none()
        self._perform = {
            Kind.DOWNLOAD: self._gradients.download,
            Kind.READ_GRADIENT: self._gradients.read,
            Kind.ACCUMULATE: self._gradients.accumulate,
            Kind.NORM: self._gradients.measure,
            Kind.WRITE_GRADIENT: self._gradients.write,
            Kind.VERDICT: self._judge,
            Kind.READ_STATE: self._updates.read_state,
            Kind.UPDATE: self._updates.update,
            Kind.WRITE_STATE: self._updates.write_state,
            Kind.UPLOAD: self._updates.upload,
        }

    # The step

    def begin(self, settings: AdamW, *, delayed: bool = False, applies: GradientSet | None = None) -> None:
        """Start a step. Its update is by its own gradients, with `settings`; where delayed, by those of `applies`,
        if there are any."""
        number = 0 if applies is None else 1 - applies.number
        self._current = GradientSet(number, replace(settings), self._intake.has_gradient)
        self._applied = self._current
        if delayed:
            self._applied = applies or GradientSet(1, settings, blocked=True)
        self._gradients.begin(self._current)
        self._updates.begin(self._current, self._applied)

    def set_settings(self, settings: AdamW) -> None:
        """What the gradients of this step will be applied with."""
        self._current.settings = replace(settings)

    def set_unscale(self, unscale: float) -> None:
        """What turns the sum over micro-batches into the step's mean; known before the first update."""
        self._current.unscale = self._current.scale = unscale

    def set_aside(self) -> GradientSet:
        """The gradients of the step that has ended, to be applied during the next one."""
        kept = self._current
        kept.has_gradient = [list(flags) for flags in kept.has_gradient]
        kept.held = {}
        for memory in self._memories:
            if memory.route.gradients == "referenced":
                unit = memory.unit.index
                for segment in range(len(memory.unit.segments)):
                    gradient = self._intake.gradient(unit, segment)
                    if gradient is not None:
                        kept.held[unit, segment] = gradient
                        self._intake.release(unit, segment)
        return kept

    def finish(self) -> None:
        """The update has run and was not left out: every parameter that got a gradient is one step older."""
        if self._applied.blocked:
            return
        for memory, flags in zip(self._memories, self._applied.has_gradient, strict=True):
            for segment, had in enumerate(flags):
                memory.steps[segment] += had

    def perform(self, task: Task) -> None:
        """Do what `task` says."""
        try:
            with self._device.computing() if self._computes(task) else nullcontext():
                self._perform[task.kind](task)
        except BaseException:
            # Whoever waits for a slot that this task would have freed must not wait for ever.
            self.break_off()
            raise

    def _computes(self, task: Task) -> bool:
        """Whether a task works on a device of its own, whose operations belong on the stream of compute."""
        return self._any_on_device if task.unit is None else self._memories[task.unit].route.on_device

    def break_off(self) -> None:
        """Let whoever waits for a buffer go on: the step has failed."""
        self._intake.break_off()
        for pool in self._pools:
            pool.break_off()

    @property
    def verdict(self) -> Verdict | None:
        """Over this step's gradients; None until it is known."""
        return self._current.verdict

    @property
    def learning_rate(self) -> float:
        """Of this step's gradients."""
        return self._current.settings.lr

    @property
    def buffer_bytes(self) -> int:
        """Host buffers between memory and disk."""
        idle = 0 if self.idle_buffer is None else self.idle_buffer.nbytes
        return idle + sum(pool.nbytes for pool in self._pools)

    def _judge(self, task: Task) -> None:
        current = self._current
        total = self._tables.sum_of_squares()
        if math.isfinite(total):
            norm = math.sqrt(total) * current.unscale
            if self._clipping > 0:
                current.scale = current.unscale * min(1.0, self._clipping / (norm + NORM_EPSILON))
            current.verdict = Verdict(norm, finite=True)
        else:
            current.blocked = True
            where = self._tables.not_finite()
            current.verdict = Verdict(total, finite=False, where=where, torn=current.written)
