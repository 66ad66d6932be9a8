"""The timeline: tasks wait for what they need and for nothing they need not."""

from __future__ import annotations

import itertools

import pytest

from workbench.layout import NORM_BLOCK, Layout, ParameterSpec, ShardSpec, build_layout
from workbench.timeline import Kind, Lane, StepShape, Timeline, build_timeline

SHAPES = [
    StepShape(
        gradient_accumulation=accumulation,
        state=state,  # type: ignore[arg-type]
        shared_memory=shared,
        referenced_gradients=referenced,
        global_quantity=wide,
        overlap=overlap,  # type: ignore[arg-type]
    )
    for accumulation, state, shared, referenced, wide, overlap in itertools.product(
        (1, 3), ("device", "host"), (False, True), (False, True), (False, True), ("serial", "exact")
    )
]


def _layout() -> Layout:
    def spec(name: str, kind: str) -> ShardSpec:
        return ShardSpec(name, kind, (ParameterSpec(f"{name}.w", (2, NORM_BLOCK), "bfloat16"),))  # type: ignore[arg-type]

    return build_layout([spec("embedding", "outer"), spec("h.0", "block"), spec("h.1", "block")], 1)


def _ancestors(timeline: Timeline, index: int) -> set[int]:
    seen: set[int] = set()
    waiting = list(timeline.tasks[index].waits)
    while waiting:
        task = waiting.pop()
        if task not in seen:
            seen.add(task)
            waiting.extend(timeline.tasks[task].waits)
    return seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tasks_wait_for_earlier_ones_only_and_each_is_found_by_what_it_is(shape: StepShape) -> None:
    timeline = build_timeline(_layout(), shape)
    for number, task in enumerate(timeline.tasks):
        assert task.index == number and all(wait < number for wait in task.waits)
        assert timeline.find(task.kind, task.micro_batch, task.shard, task.chunk) == number


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_waits_for_all_its_gradients_and_for_the_verdict_where_it_needs_one(
    shape: StepShape,
) -> None:
    layout = _layout()
    timeline = build_timeline(layout, shape)
    last = shape.gradient_accumulation - 1
    for shard, chunk in layout.chunks():
        before = _ancestors(timeline, timeline.find(Kind.UPDATE, last, shard.index, chunk.index))
        for micro_batch in range(shape.gradient_accumulation):
            assert timeline.find(Kind.BACKWARD, micro_batch, shard.index, chunk.index) in before
        # Weights are written in place where there is one memory: nobody may read them any more.
        over = timeline.find(Kind.BACKWARD, last, shard.index)
        ended = timeline.find(Kind.BACKWARD, last)
        assert over in before or ended in before
        verdict = timeline.find(Kind.VERDICT, last)
        assert (verdict in before) == shape.global_quantity
        assert timeline.find(Kind.NORM, last, shard.index, chunk.index) in before


@pytest.mark.parametrize(
    "shape", [s for s in SHAPES if s.overlap == "exact" and not s.global_quantity], ids=str
)
def test_without_a_global_quantity_a_blocks_update_waits_for_no_other_shard(shape: StepShape) -> None:
    layout = _layout()
    timeline = build_timeline(layout, shape)
    last = shape.gradient_accumulation - 1
    update = timeline.find(Kind.UPDATE, last, 2, 0)
    before = [timeline.tasks[t] for t in _ancestors(timeline, update)]
    assert {t.shard for t in before if t.micro_batch == last and t.kind is not Kind.FORWARD} <= {2, None}
    assert timeline.find(Kind.BACKWARD, last) not in {t.index for t in before}


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap == "exact"], ids=str)
def test_gradients_go_down_while_backward_goes_on(shape: StepShape) -> None:
    timeline = build_timeline(_layout(), shape)
    for task in timeline.tasks:
        if task.kind in (Kind.DOWNLOAD, Kind.ACCUMULATE, Kind.NORM):
            ended = timeline.find(Kind.BACKWARD, task.micro_batch)
            assert ended not in _ancestors(timeline, task.index)


@pytest.mark.parametrize("shape", [s for s in SHAPES if not s.referenced_gradients], ids=str)
def test_micro_batches_are_summed_one_after_the_other(shape: StepShape) -> None:
    layout = _layout()
    timeline = build_timeline(layout, shape)
    for micro_batch in range(1, shape.gradient_accumulation):
        for shard, chunk in layout.chunks():
            later = timeline.find(Kind.ACCUMULATE, micro_batch, shard.index, chunk.index)
            earlier = timeline.find(Kind.ACCUMULATE, micro_batch - 1, shard.index, chunk.index)
            assert earlier in _ancestors(timeline, later)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap == "serial"], ids=str)
def test_serial_host_work_starts_when_backward_has_ended(shape: StepShape) -> None:
    timeline = build_timeline(_layout(), shape)
    for task in timeline.tasks:
        if task.kind not in (Kind.FORWARD, Kind.BACKWARD):
            ended = timeline.find(Kind.BACKWARD, task.micro_batch)
            assert ended in _ancestors(timeline, task.index)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_next_forward_of_a_shard_waits_for_that_shard_alone(shape: StepShape) -> None:
    layout = _layout()
    timeline = build_timeline(layout, shape)
    for shard in layout.shards:
        ready = timeline.ready[shard.index]
        assert len(ready) == len(shard.chunks)
        assert {timeline.tasks[t].shard for t in ready} == {shard.index}
        kind = Kind.UPLOAD if shape.state == "host" and not shape.shared_memory else Kind.UPDATE
        assert {timeline.tasks[t].kind for t in ready} == {kind}


def test_updates_after_a_verdict_come_in_forward_order_and_backward_runs_in_reverse() -> None:
    shape = StepShape(1, "host", False, True, True, "exact")
    timeline = build_timeline(_layout(), shape)
    updates = [(t.shard, t.chunk) for t in timeline.tasks if t.kind is Kind.UPDATE]
    downs = [(t.shard, t.chunk) for t in timeline.tasks if t.kind is Kind.DOWNLOAD]
    assert updates == sorted(updates) and downs == sorted(updates, reverse=True)


def test_where_nothing_travels_nothing_is_on_the_copy_lanes() -> None:
    for shape in SHAPES:
        lanes = {task.lane for task in build_timeline(_layout(), shape).tasks}
        travels = shape.state == "host" and not shape.shared_memory
        assert (Lane.DOWNLOAD in lanes) == (Lane.UPLOAD in lanes) == travels
        assert (Lane.UPDATE in lanes) == (shape.state == "host")
