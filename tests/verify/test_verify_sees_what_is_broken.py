"""An engine that trains wrongly is found out: each of its breakages makes the row fail that stands for it.

The engine is broken from outside, in one place each; the same configuration holds in every row while it is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from small_trials import failed, rows_of, small_config
from torch import nn

from workbench.engine import step_scheduler
from workbench.engine.blocks.param_ready_barrier import ParamReadyBarrier
from workbench.engine.offload import OffloadEngine
from workbench.engine.report import GradCheck
from workbench.engine.step_scheduler import StepScheduler
from workbench.engine.step_tasks import StepTasks
from workbench.engine.unit_memory import UnitMemory
from workbench.timeline import Kind, Task, Timeline

Patch = pytest.MonkeyPatch

BFLOAT16 = ("train.precision=bf16",)
ACCUMULATES = ("train.precision=bf16", "train.gradient_accumulation=3")
DELAYED = ("offload.overlap=delayed", "offload.weights=host")
CONFIGURATIONS = [
    pytest.param((), id="as it is", marks=pytest.mark.slow),  # the command's test verifies it
    pytest.param(BFLOAT16, id="bf16", marks=pytest.mark.slow),
    pytest.param(ACCUMULATES, id="bf16, accumulated"),
    pytest.param(DELAYED, id="delayed, streamed"),
    pytest.param(("train.gradient_clipping=0.0",), id="not clipped", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("overrides", CONFIGURATIONS)
def test_a_whole_engine_holds_in_every_row(overrides: tuple[str, ...]) -> None:
    rows = rows_of(small_config(*overrides))
    assert failed(rows) == []
    assert {row.name for row in rows} >= {
        "first step",
        "clipping",
        "update",
        "delayed lanes",
        "save and resume",
    }


def drop_a_micro_batch(patch: Patch) -> None:
    accumulate = StepTasks.accumulate

    def dropping(self: StepTasks, task: Task) -> None:
        if task.micro_batch == 1:
            slot = self._in_hand.pop((task.unit, task.chunk), None)  # type: ignore[arg-type]
            if slot is not None:
                self._grad_hooks.host_slots.give_back(slot)
            return
        accumulate(self, task)

    patch.setattr(StepTasks, "accumulate", dropping)


def upload_one_step_late(patch: Patch) -> None:
    upload = StepTasks.upload
    held: dict[tuple[int, Any, Any], Task] = {}

    def late(self: StepTasks, task: Task) -> None:
        place = (id(self), task.unit, task.chunk)
        if place in held:
            upload(self, task)
        held[place] = task

    # The first step's weights never come up; every later one's do.
    patch.setattr(StepTasks, "upload", late)


def let_the_forward_not_wait(patch: Patch) -> None:
    patch.setattr(ParamReadyBarrier, "_wait_for", lambda self, units: None)


def without_waits(patch: Patch, kind: Kind, for_kinds: tuple[Kind, ...]) -> None:
    """Tasks of `kind` do not wait for those of `for_kinds`."""
    build = step_scheduler.build_timeline

    def broken(*arguments: Any) -> Timeline:
        timeline = build(*arguments)
        kinds = [task.kind for task in timeline.tasks]
        tasks = tuple(
            replace(t, waits=tuple(w for w in t.waits if kinds[w] not in for_kinds)) if t.kind is kind else t
            for t in timeline.tasks
        )
        return replace(timeline, tasks=tasks)

    patch.setattr(step_scheduler, "build_timeline", broken)


def update_before_the_verdict(patch: Patch) -> None:
    without_waits(patch, Kind.UPDATE, (Kind.VERDICT,))


def download_before_the_gradient(patch: Patch) -> None:
    without_waits(patch, Kind.DOWNLOAD, (Kind.BACKWARD,))


def decay_everything(patch: Patch) -> None:
    views = UnitMemory.views

    def decaying(self: UnitMemory, *arguments: Any) -> Any:
        return [view._replace(decay=True) for view in views(self, *arguments)]

    patch.setattr(UnitMemory, "views", decaying)


def after_creation(patch: Patch, do: Callable[[OffloadEngine], None]) -> None:
    create = OffloadEngine.__init__

    def creating(self: OffloadEngine, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        do(self)

    patch.setattr(OffloadEngine, "__init__", creating)


def lose_a_tied_gradient(patch: Patch) -> None:
    """The head reads the same weights, and its gradient goes to a parameter of its own that nobody updates."""

    def untie(engine: OffloadEngine) -> None:
        head = engine.model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.data)

    after_creation(patch, untie)


def forget_step_counts(patch: Patch) -> None:
    restore = OffloadEngine.restore

    def forgetting(self: OffloadEngine, counters: dict[str, Any]) -> None:
        forgotten = dict.fromkeys(counters["parameter_steps"], 0)
        restore(self, {**counters, "parameter_steps": forgotten})

    patch.setattr(OffloadEngine, "restore", forgetting)


def forget_the_learning_rate(patch: Patch) -> None:
    patch.setattr(OffloadEngine, "learning_rate", property(lambda self: 1e-2, lambda self, value: None))


def around_the_verdict(patch: Patch, before: Callable[[Any], None], after: Callable[[Any], None]) -> None:
    check_overflow = StepTasks.check_overflow

    def broken(self: StepTasks, task: Task) -> None:
        before(self)
        check_overflow(self, task)
        after(self)

    patch.setattr(StepTasks, "check_overflow", broken)


def write_an_overflow(patch: Patch) -> None:
    around_the_verdict(patch, lambda tasks: None, lambda tasks: setattr(tasks._current, "blocked", False))


def ignore_clipping(patch: Patch) -> None:
    around_the_verdict(patch, lambda tasks: setattr(tasks, "_clipping", 0.0), lambda tasks: None)


def claim_another_norm(patch: Patch) -> None:
    def claim(tasks: StepTasks) -> None:
        assert tasks.check is not None
        tasks._current.check = GradCheck(tasks.check.grad_norm * 1.001, tasks.check.finite)

    around_the_verdict(patch, lambda tasks: None, claim)


def weigh_micro_batches_alike(patch: Patch) -> None:
    backward = OffloadEngine.backward
    patch.setattr(OffloadEngine, "backward", lambda self, loss, tokens=None: backward(self, loss))


def never_delay(patch: Patch) -> None:
    patch.setattr(StepScheduler, "_is_delayed", lambda self, step: False)


BROKEN: list[tuple[Callable[[Patch], None], tuple[str, ...], str, str]] = [
    # What is broken; in which configuration; the check and its row that have to say so.
    (drop_a_micro_batch, ACCUMULATES, "accumulation", "accumulation"),
    (weigh_micro_batches_alike, (), "accumulation", "accumulation"),
    (weigh_micro_batches_alike, ACCUMULATES, "training", "6 steps"),
    (upload_one_step_late, (), "delayed lanes", "separate memory"),
    (upload_one_step_late, BFLOAT16, "delayed lanes", "separate memory"),
    (let_the_forward_not_wait, (), "delayed lanes", "delayed lanes"),
    (update_before_the_verdict, (), "clipping", "clipping"),
    (download_before_the_gradient, (), "delayed lanes", "delayed lanes"),
    (decay_everything, (), "update", "update"),
    (decay_everything, ("offload.state=device",), "training", "6 steps"),
    (lose_a_tied_gradient, (), "tied weights", "tied weights"),
    (lose_a_tied_gradient, (), "first step", "first step"),
    (forget_step_counts, (), "save and resume", "save and resume"),
    (forget_the_learning_rate, (), "update", "update"),
    (write_an_overflow, (), "overflow", "overflow"),
    (ignore_clipping, (), "clipping", "clipping"),
    (claim_another_norm, (), "first step", "first step"),
    (never_delay, DELAYED, "training", "6 steps"),
]


@pytest.mark.parametrize(
    ("break_it", "overrides", "check", "row"),
    BROKEN,
    ids=[f"{b.__name__}-{check}" for b, _, check, _ in BROKEN],
)
def test_an_engine_that_is_broken_fails_a_row(
    break_it: Callable[[Patch], None],
    overrides: tuple[str, ...],
    check: str,
    row: str,
    monkeypatch: Patch,
) -> None:
    config = small_config(*overrides)
    break_it(monkeypatch)
    wrong = [r.name for r in rows_of(config, [check]) if not r.holds]
    assert row in wrong or check in wrong
