"""The life of a step: begun by its first backward, ended by `step`, finished when nothing of it is left to do.

`begin` → `begin_micro_batch` (for each) → `hold_forwards` → `end` → `_finish` → the next `begin`. Between them a
`StepExecution` carries out the timeline, whose tasks `StepTasks` performs.

Invariant: at most one step has host work under way (a delayed step's own gradients are finished when it ends, and their
update is the begin of the next one). What fails stops the engine for good: from then on every call says what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workbench.engine.build import EngineRuntime, UnitPlan
from workbench.engine.config import EngineConfig
from workbench.engine.execution import LaneError, StepExecution
from workbench.engine.non_finite import NonFiniteSteps
from workbench.engine.rank_tasks import Mean
from workbench.engine.report import (
    StepReport,
    StepResult,
    cut_out,
    exposed_seconds,
    lane_seconds,
    on_update_lane,
    total_seconds,
)
from workbench.engine.speculation import SpeculationRule
from workbench.engine.state_pointers import GradientSet
from workbench.timeline import Kind, Overlap, Timeline, build_timeline


class StepScheduler:
    """Carries steps out on `runtime`. `settings`: of the step whose first backward comes next."""

    def __init__(
        self, runtime: EngineRuntime, plan: UnitPlan, config: EngineConfig, non_finite: NonFiniteSteps
    ) -> None:
        self.settings = config.optimizer
        self.steps = 0
        """Steps begun, skipped ones included."""
        self.closed = False
        self._runtime = runtime
        self._plan = plan
        self._config = config
        self._non_finite = non_finite
        self._timelines: dict[tuple[Overlap, bool, bool], Timeline] = {}
        self._rule = SpeculationRule(possible=any(route.speculates for route in plan.routes))
        self._execution: StepExecution | None = None
        self._report: StepReport | None = None
        self._last: StepResult | None = None
        self._in_step = False
        self._uncounted = False
        self._pending: GradientSet | None = None
        self._failure: BaseException | None = None

    # From a step's first backward to its last

    def begin(self) -> None:
        """A step's first backward. A delayed step with an update by the last one's gradients is under way already."""
        if self._report is not None:
            self._finish()
        self.steps += 1
        self._in_step = True
        if self._execution is None:
            self._new_execution(delayed=self._is_delayed(self.steps), applies=None)
        self._runtime.tasks.set_settings(self.settings)

    def begin_micro_batch(self, micro_batch: int, *, last: bool) -> None:
        """Its forward has ended, its backward begins."""
        execution = self._execution
        assert execution is not None
        for unit in self._plan.layout.units:
            execution.complete(execution.timeline.find(Kind.FORWARD, micro_batch, unit.index))
        self._runtime.grad_hooks.begin_micro_batch(micro_batch, last=last)

    def hold_forwards(self) -> None:
        """A step's last backward has ended: whatever runs forward now waits for its new weights."""
        if not self._is_delayed(self.steps):
            self._hold_for(self._execution)

    def _hold_for(self, execution: StepExecution | None) -> None:
        assert execution is not None
        self._runtime.barrier.hold_for(execution)
        if self._runtime.prefetcher is not None:
            self._runtime.prefetcher.forget()

    def _is_delayed(self, step: int) -> bool:
        return self._config.is_delayed(step)

    def _timeline(self, delayed: bool, applies_last: bool) -> Timeline:
        shape = self._plan.shape
        overlap: Overlap = "delayed" if delayed else shape.overlap
        key = overlap, applies_last, self._rule.speculates
        if key not in self._timelines:
            shape = replace(shape, overlap=overlap, applies_last=applies_last, speculates=key[-1])
            self._timelines[key] = build_timeline(self._plan.layout, shape)
        return self._timelines[key]

    def counters(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the steps that have ended."""
        return {"steps": self.steps, **self._rule.as_dict()}

    def restore(self, counters: dict[str, Any]) -> None:
        """Go on after the steps of `counters`."""
        self.drop_begun()
        self.steps = int(counters["steps"])
        self._rule.load(counters)

    def _new_execution(self, *, delayed: bool, applies: GradientSet | None) -> StepExecution:
        runtime = self._runtime
        runtime.tasks.begin(self.settings, delayed=delayed, applies=applies)
        timeline = self._timeline(delayed, applies is not None)
        inline = self._config.overlap == "serial"
        execution = StepExecution(
            timeline, runtime.lanes, runtime.tasks.perform, inline=inline, cancel=runtime.tasks.cancel
        )
        runtime.grad_hooks.begin_step(execution)
        self._execution = execution
        self._uncounted = applies is not None
        execution.start()
        return execution

    # From its end to where nothing of it is left

    def end(self, finish: Callable[[], None]) -> StepReport:
        """The step has had its last backward. Return its report, whose `result` calls `finish`, which has to call
        `wait`."""
        execution = self._execution
        assert execution is not None
        self._in_step = False
        self._runtime.clock.end_step()
        report = self._report = StepReport(finish, lambda: self._is_skipped(execution))
        if self._is_delayed(self.steps):
            self._finish()
        elif self._config.overlap == "serial":
            self.wait()
        if self._runtime.prefetcher is not None:
            self._runtime.prefetcher.expect_forward()
        return report

    def wait(self) -> None:
        """Return when no host work of an ended step is left; see `OffloadEngine.wait`."""
        self.raise_failure()
        execution = self._execution
        if execution is None:
            return
        if self._report is not None:
            self._finish()
            execution = self._execution
        if execution is not None and not self._in_step:
            with self._runtime.clock.waiting():
                self._guard(lambda: execution.wait(execution.timeline.update_of_last))
            self._count_update()

    def drop_begun(self) -> None:
        """Forget a delayed step that has begun with nothing of its own yet."""
        if self._execution is not None and not self._in_step:
            self._runtime.barrier.release()
            self._runtime.grad_hooks.end_step()
            self._execution = None

    def _finish(self) -> None:
        """Wait until nothing is left of the step that `end` ended, and give its report a result."""
        execution, report = self._execution, self._report
        assert execution is not None and report is not None

        def finish() -> None:
            with self._runtime.clock.waiting():
                execution.wait_all()
            result = self._result_of(execution)
            self._execution = self._report = None
            self._runtime.barrier.release()
            if self._is_delayed(self.steps):
                # The next step begins here: its update by these gradients runs beside its forward.
                self._hold_for(self._new_execution(delayed=True, applies=self._pending))
            report.resolve(result)
            if self._last is not None:
                self._last.forget_spans()
            self._last = result

        try:
            self._guard(finish)
        except BaseException as error:
            report.fail(error)
            raise

    def _result_of(self, execution: StepExecution) -> StepResult:
        tasks, prefetcher, clock = self._runtime.tasks, self._runtime.prefetcher, self._runtime.clock
        with clock.waiting():
            check = tasks.check
        assert check is not None
        if self._is_delayed(self.steps):
            self._count_update()
            self._pending = tasks.keep_for_next_step()
        else:
            tasks.count_steps()
        self._runtime.grad_hooks.end_step()
        self._rule.after(tasks.applied_as_it_is)
        scale, can_fall = self._non_finite.loss_scale, self._non_finite.scale_can_fall
        self._non_finite.after(self.steps, check)
        own, spans, waits = clock.take()
        of_lanes = execution.spans + (prefetcher.take_spans() if prefetcher is not None else [])
        if self._runtime.device.shared_memory:
            # Some of it within a backward, which waited for it: the model's own thread did it.
            of_lanes, by_own_thread = on_update_lane(of_lanes)
            own, spans = cut_out(own, by_own_thread), cut_out(spans, by_own_thread)
            waits += [(span.start_s, span.stop_s) for span in by_own_thread]
        spans = spans + of_lanes
        return StepResult(
            step=self.steps,
            grad_norm=check.grad_norm,
            skipped=not check.finite,
            learning_rate=tasks.learning_rate,
            lane_seconds=lane_seconds(own + of_lanes),
            exposed_seconds=exposed_seconds(spans, waits),
            exposed_s=total_seconds(waits),
            loss_scale=scale,
            spans=tuple(sorted(spans, key=lambda span: span.start_s)),
            scale_can_fall=can_fall,
            forward_s=sum(span.seconds for span in own if span.kind is Kind.FORWARD),
            update_threads=self._runtime.host.threads,
            speculation=tasks.speculation,
        )

    def _count_update(self) -> None:
        """A delayed step's update by the last gradients is over: count it, once."""
        if self._uncounted:
            self._uncounted = False
            self._runtime.tasks.count_steps()

    def _is_skipped(self, execution: StepExecution) -> bool:
        """Return whether the step that `end` ended is left out; its update may still run."""
        self.raise_failure()
        task = [execution.timeline.find(Kind.VERDICT, self._config.gradient_accumulation - 1)]
        if not execution.are_done(task):
            with self._runtime.clock.waiting():
                self._guard(lambda: execution.wait(task))
        with self._runtime.clock.waiting():
            check = self._runtime.tasks.check
        assert check is not None
        return not check.finite

    # When something fails, and at the end

    @property
    def failed(self) -> bool:
        """Steps have stopped for good."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise RuntimeError where there can be no further step."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        if self._failure is not None:
            raise RuntimeError(f"the engine stopped after an error: {self._failure}") from self._failure

    def fail_backward(self, error: BaseException) -> None:
        """A backward failed half-way, and leaves some gradients of the step and not others."""
        assert self._execution is not None
        self._execution.fail(LaneError(f"backward failed: {error}"))
        self._failure = error
        self._runtime.cancel(error)

    def fail_stuck(self, error: LaneError) -> None:
        """A lane is stuck; called from another thread."""
        self._runtime.lanes.abort()
        self._failure = self._failure or error
        execution = self._execution
        if execution is not None:
            execution.fail(error)
        self._runtime.cancel(error)

    def close(self) -> None:
        """There will be no further step; the one that is under way is dropped."""
        self.closed = True
        error = LaneError("the engine was closed")
        if self._execution is not None:
            self._execution.fail(error)
        self._runtime.cancel(error)

    def _guard(self, action: Callable[[], None]) -> None:
        """Run `action`; an error in it stops the engine."""
        try:
            action()
        except BaseException as error:
            self._failure = error
            self._runtime.cancel(error)
            raise


class MicroBatches:
    """The micro-batches that the step under way has had, at most `most`.

    One of `usual` tokens weighs 1 (None: as many as the step's first has), so that gradients keep their natural size;
    `mean` is what makes the step's mean of their sum. `ranks`: those that each have some of the step's.
    """

    def __init__(self, most: int, usual: int | None = None, ranks: int = 1) -> None:
        self.most = most
        self._usual = usual
        self._ranks = ranks
        self._tokens: list[int | None] = []

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def complete(self) -> bool:
        """There are as many as a step has."""
        return len(self._tokens) == self.most

    def check(self, tokens: int | None) -> None:
        """Refuse one of so many tokens where it may not follow.

        Raises:
            RuntimeError: the step has all its micro-batches, or tokens are given for some of them only.
            ValueError: `tokens` is not positive, or the ranks do not know those of a usual one.
        """
        if self.complete:
            raise RuntimeError(f"backward() was called {self.most} times already; call step() first")
        if tokens is not None and tokens <= 0:
            raise ValueError(f"tokens = {tokens}: expected a positive number of counted tokens")
        if tokens is not None and self._usual is None and self._ranks > 1:
            raise ValueError(
                "tokens on several ranks need micro_batch_tokens, those of a usual micro-batch: the first of a step is "
                "another on each rank"
            )
        if self._tokens and (self._tokens[0] is None) != (tokens is None):
            raise RuntimeError("tokens must be given for every micro-batch of a step or for none")

    def add(self, tokens: int | None) -> float:
        """Count one, and return its weight."""
        self._tokens.append(tokens)
        first = self._tokens[0]
        return 1.0 if tokens is None or first is None else tokens / (self._usual or first)

    def mean(self, loss_scale: float) -> Mean:
        """Return what turns the weighted sum over these micro-batches into their mean."""
        counted = [t for t in self._tokens if t is not None]
        usual = self._usual or (counted[0] if counted else 1)
        return Mean(sum(counted), len(self._tokens), usual, loss_scale)

    def clear(self) -> None:
        """The step has ended."""
        self._tokens.clear()
