"""One step after the other: begun by its first backward, ended by `step`, settled when nothing of it is left to do.

Invariant: at most one step has host work under way (a delayed step's own gradients are settled when it ends, and their
update is the begin of the next one). What fails stops the cycle for good: from then on every call says what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workbench.engine.arrangement import Arrangement
from workbench.engine.gradients.gradient_set import GradientSet
from workbench.engine.lanes.compute_clock import exposed_seconds, lane_seconds
from workbench.engine.lanes.execution import LaneError, StepExecution
from workbench.engine.machinery import Machinery
from workbench.engine.steps.non_finite import NonFiniteSteps
from workbench.engine.steps.report import StepReport, StepResult
from workbench.optimizer.settings import AdamW
from workbench.timeline import Kind, Lane, Overlap, Timeline, build_timeline


class StepCycle:
    """Carries steps out on `machinery`. `settings`: of the step whose first backward comes next."""

    def __init__(
        self,
        machinery: Machinery,
        arrangement: Arrangement,
        settings: AdamW,
        non_finite: NonFiniteSteps,
        delay_warmup: int,
    ) -> None:
        self.settings = settings
        self.steps = 0
        """Steps begun, skipped ones included."""
        self.closed = False
        self._machinery = machinery
        self._arrangement = arrangement
        self._non_finite = non_finite
        self._delay_warmup = delay_warmup
        self._timelines: dict[tuple[Overlap, bool], Timeline] = {}
        self._execution: StepExecution | None = None
        self._report: StepReport | None = None
        self._in_step = False
        self._uncounted = False
        self._pending: GradientSet | None = None
        self._failure: BaseException | None = None

    # From a step's first backward to its last

    def begin(self) -> None:
        """A step's first backward. A delayed step with an update by the last one's gradients is under way already."""
        if self._report is not None:
            self._settle()
        self.steps += 1
        self._in_step = True
        if self._execution is None:
            self._new_execution(delayed=self._is_delayed(self.steps), applies=None)
        self._machinery.work.set_settings(self.settings)

    def begin_micro_batch(self, micro_batch: int, *, last: bool) -> None:
        """Its forward has ended, its backward begins."""
        execution = self._execution
        assert execution is not None
        for unit in self._arrangement.layout.units:
            execution.complete(execution.timeline.find(Kind.FORWARD, micro_batch, unit.index))
        self._machinery.intake.begin_micro_batch(micro_batch, last=last)

    def hold_forwards(self) -> None:
        """A step's last backward has ended: whatever runs forward now waits for its new weights."""
        if not self._is_delayed(self.steps):
            self._hold_for(self._execution)

    def _hold_for(self, execution: StepExecution | None) -> None:
        assert execution is not None
        self._machinery.gate.hold_for(execution)
        if self._machinery.window is not None:
            self._machinery.window.forget()

    def _is_delayed(self, step: int) -> bool:
        return self._arrangement.overlap == "delayed" and step > self._delay_warmup

    def _timeline(self, delayed: bool, applies_last: bool) -> Timeline:
        shape = self._arrangement.shape
        overlap: Overlap = "delayed" if delayed else shape.overlap
        if (overlap, applies_last) not in self._timelines:
            shape = replace(shape, overlap=overlap, applies_last=applies_last)
            self._timelines[overlap, applies_last] = build_timeline(self._arrangement.layout, shape)
        return self._timelines[overlap, applies_last]

    def _new_execution(self, *, delayed: bool, applies: GradientSet | None) -> StepExecution:
        machinery = self._machinery
        machinery.work.begin(self.settings, delayed=delayed, applies=applies)
        timeline = self._timeline(delayed, applies is not None)
        inline = self._arrangement.overlap == "serial"
        execution = StepExecution(timeline, machinery.lanes, machinery.work.perform, inline=inline)
        machinery.intake.begin_step(execution)
        self._execution = execution
        self._uncounted = applies is not None
        execution.start()
        return execution

    # From its end to where nothing of it is left

    def end(self, settle: Callable[[], None]) -> StepReport:
        """The step has had its last backward; its report, whose `result` calls `settle`, which has to call `wait`."""
        execution = self._execution
        assert execution is not None
        self._in_step = False
        self._machinery.clock.end_step()
        report = self._report = StepReport(settle, lambda: self._is_skipped(execution))
        if self._is_delayed(self.steps):
            self._settle()
        elif self._arrangement.overlap == "serial":
            self.wait()
        if self._machinery.window is not None:
            self._machinery.window.expect_forward()
        return report

    def wait(self) -> None:
        """Return when no host work of an ended step is left; see `OffloadEngine.wait`."""
        self.raise_failure()
        execution = self._execution
        if execution is None:
            return
        if self._report is not None:
            self._settle()
            execution = self._execution
        if execution is not None and not self._in_step:
            with self._machinery.clock.waiting():
                self._guard(lambda: execution.wait(execution.timeline.settled))
            self._count_update()

    def drop_begun(self) -> None:
        """Forget a delayed step that has begun with nothing of its own yet."""
        if self._execution is not None and not self._in_step:
            self._machinery.gate.release()
            self._machinery.intake.end_step()
            self._execution = None

    def _settle(self) -> None:
        """Let the step that `end` ended come to its end, and say what it came to."""
        execution, report = self._execution, self._report
        assert execution is not None and report is not None

        def finish() -> None:
            with self._machinery.clock.waiting():
                execution.wait_all()
            result = self._conclude(execution)
            self._execution = self._report = None
            self._machinery.gate.release()
            if self._is_delayed(self.steps):
                # The next step begins here: its update by these gradients runs beside its forward.
                self._hold_for(self._new_execution(delayed=True, applies=self._pending))
            report.resolve(result)

        try:
            self._guard(finish)
        except BaseException as error:
            report.fail(error)
            raise

    def _conclude(self, execution: StepExecution) -> StepResult:
        work, window = self._machinery.work, self._machinery.window
        verdict = work.verdict
        assert verdict is not None
        if self._is_delayed(self.steps):
            self._count_update()
            self._pending = work.set_aside()
        else:
            work.finish()
        self._machinery.intake.end_step()
        scale, can_fall = self._non_finite.loss_scale, self._non_finite.scale_can_fall
        self._non_finite.after(self.steps, verdict)
        own, spans, waits = self._machinery.clock.take()
        of_lanes = execution.spans + (window.take_spans() if window is not None else [])
        spans = spans + of_lanes
        if self._arrangement.overlap == "serial":
            # The model's own thread did the lanes' work: it waited for all of it.
            waits += [(span.start_s, span.stop_s) for span in spans if span.lane is not Lane.COMPUTE]
        return StepResult(
            step=self.steps,
            grad_norm=verdict.grad_norm,
            skipped=not verdict.finite,
            learning_rate=work.learning_rate,
            lane_seconds=lane_seconds(own + of_lanes),
            exposed_seconds=exposed_seconds(spans, waits),
            exposed_s=sum(stop - start for start, stop in waits),
            loss_scale=scale,
            spans=tuple(sorted(spans, key=lambda span: span.start_s)),
            scale_can_fall=can_fall,
        )

    def _count_update(self) -> None:
        """A delayed step's update by the last gradients is over: count it, once."""
        if self._uncounted:
            self._uncounted = False
            self._machinery.work.finish()

    def _is_skipped(self, execution: StepExecution) -> bool:
        """Whether the step that `end` ended is left out; its update may still run."""
        self.raise_failure()
        last = self._arrangement.shape.gradient_accumulation - 1
        task = [execution.timeline.find(Kind.VERDICT, last)]
        if not execution.are_done(task):
            with self._machinery.clock.waiting():
                self._guard(lambda: execution.wait(task))
        verdict = self._machinery.work.verdict
        assert verdict is not None
        return not verdict.finite

    # When something fails, and at the end

    @property
    def failed(self) -> bool:
        """Whether steps have stopped for good."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise RuntimeError where there can be no further step."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        if self._failure is not None:
            raise RuntimeError(f"the engine stopped after an error: {self._failure}") from self._failure

    def fail_backward(self, error: BaseException) -> None:
        """A backward failed half-way, and leaves gradients that nobody can tell apart."""
        assert self._execution is not None
        self._execution.abandon(f"backward failed: {error}")
        self._failure = error
        self._machinery.break_off(error)

    def fail_stuck(self, error: LaneError) -> None:
        """A lane is stuck; called from another thread."""
        self._machinery.lanes.give_up()
        self._failure = self._failure or error
        execution = self._execution
        if execution is not None:
            execution.fail(error)
        self._machinery.break_off(error)

    def close(self) -> None:
        """There will be no further step; the one that is under way is dropped."""
        self.closed = True
        if self._execution is not None:
            self._execution.abandon("the engine was closed")
        self._machinery.break_off(LaneError("the engine was closed"))

    def _guard(self, action: Callable[[], None]) -> None:
        """Run `action`; what it raises stops the engine."""
        try:
            action()
        except BaseException as error:
            self._failure = error
            self._machinery.break_off(error)
            raise
