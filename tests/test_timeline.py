"""The timeline: tasks wait for what they need and for nothing they need not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from workbench.layout import NORM_BLOCK, Layout, ParameterSpec, UnitSpec, build_layout
from workbench.timeline import Kind, Lane, StepShape, Timeline, UnitFlow, build_timeline


def flow(state: str, *, one_memory: bool, accumulates: bool, waits_on_disk: bool) -> UnitFlow:
    update_on_compute = state == "device"
    on_disk = waits_on_disk and state == "disk"
    return UnitFlow(
        state=state,  # type: ignore[arg-type]
        update_on_compute=update_on_compute,
        downloads=on_disk or not (one_memory or update_on_compute),
        accumulates=accumulates,
        gradients_on_disk=on_disk,
        uploads=not (one_memory or update_on_compute),
    )


SHAPES = [
    StepShape(
        gradient_accumulation=accumulation,
        flows=tuple(
            flow(state, one_memory=shared, accumulates=accumulation > 1, waits_on_disk=wide)
            for state in states
        ),
        global_quantity=wide,
        overlap=overlap,  # type: ignore[arg-type]
    )
    for accumulation, states, shared, wide, overlap in itertools.product(
        (1, 3),
        (("device",) * 3, ("host",) * 3, ("disk",) * 3, ("device", "host", "disk")),
        (False, True),
        (False, True),
        ("serial", "exact", "delayed"),
    )
]


def name(shape: StepShape) -> str:
    states = "-".join(f.state for f in shape.flows)
    return f"{shape.overlap}-{shape.gradient_accumulation}-{states}-{shape.global_quantity}-{shape.flows[-1].downloads}"


def layout() -> Layout:
    def spec(name: str, kind: str) -> UnitSpec:
        return UnitSpec(name, kind, (ParameterSpec(f"{name}.w", (2, NORM_BLOCK), "bfloat16"),))  # type: ignore[arg-type]

    return build_layout([spec("embedding", "outer"), spec("h.0", "block"), spec("h.1", "block")], 1)


def ancestors(timeline: Timeline, index: int) -> set[int]:
    seen: set[int] = set()
    waiting = list(timeline.tasks[index].waits)
    while waiting:
        task = waiting.pop()
        if task not in seen:
            seen.add(task)
            waiting.extend(timeline.tasks[task].waits)
    return seen


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_tasks_wait_for_earlier_ones_only_and_each_is_found_by_what_it_is(shape: StepShape) -> None:
    timeline = build_timeline(layout(), shape)
    for number, task in enumerate(timeline.tasks):
        assert task.index == number and all(wait < number for wait in task.waits)
        assert timeline.find(task.kind, task.micro_batch, task.unit, task.chunk) == number
        assert timeline.wait_counts[number] == len(task.waits)
        assert all(task.index in timeline.followers[earlier] for earlier in task.waits)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap != "delayed"], ids=name)
def test_an_update_waits_for_all_its_gradients_and_for_the_verdict_where_it_needs_one(
    shape: StepShape,
) -> None:
    made = layout()
    timeline = build_timeline(made, shape)
    last = shape.gradient_accumulation - 1
    verdict = timeline.find(Kind.VERDICT, last)
    for unit, chunk in made.chunks():
        before = ancestors(timeline, timeline.find(Kind.UPDATE, last, unit.index, chunk.index))
        for micro_batch in range(shape.gradient_accumulation):
            assert timeline.find(Kind.BACKWARD, micro_batch, unit.index, chunk.index) in before
        assert timeline.find(Kind.NORM, last, unit.index, chunk.index) in before
        assert timeline.find(Kind.BACKWARD, last, unit.index) in before, "its weights may still be read"
        held = shape.global_quantity or shape.flows[unit.index].update_on_compute
        assert (verdict in before) == held
        if shape.overlap == "exact" and not held:
            assert timeline.find(Kind.BACKWARD, last) not in before


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_what_is_on_disk_is_read_before_it_is_used_and_written_after(shape: StepShape) -> None:
    made = layout()
    timeline = build_timeline(made, shape)
    last = shape.gradient_accumulation - 1
    for unit, chunk in made.chunks():
        place = (unit.index, chunk.index)
        of_unit = shape.flows[unit.index]
        if of_unit.state == "disk":
            read, update, write = (
                timeline.find(kind, last, *place) for kind in (Kind.READ_STATE, Kind.UPDATE, Kind.WRITE_STATE)
            )
            assert read in timeline.tasks[update].waits and update in timeline.tasks[write].waits
            assert (timeline.tasks[read].lane, timeline.tasks[write].lane) == (Lane.READ, Lane.WRITE)
        if not of_unit.gradients_on_disk:
            continue
        for micro_batch in range(shape.gradient_accumulation):
            written = timeline.find(Kind.WRITE_GRADIENT, micro_batch, *place)
            if micro_batch == last:
                assert timeline.find(Kind.NORM, last, *place) in ancestors(timeline, written)
                if shape.overlap != "delayed":
                    assert written in ancestors(timeline, timeline.find(Kind.READ_STATE, last, *place))
            else:
                again = timeline.find(Kind.READ_GRADIENT, micro_batch + 1, *place)
                assert written in ancestors(timeline, again)
                # A buffer that waits for the model could keep the model from going on.
                arrived = timeline.find(Kind.BACKWARD, micro_batch + 1, *place)
                assert arrived in ancestors(timeline, again)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap == "exact"], ids=name)
def test_the_next_forward_of_a_unit_waits_for_its_own_update_alone(shape: StepShape) -> None:
    made = layout()
    timeline = build_timeline(made, shape)
    for unit in made.units:
        assert {timeline.tasks[i].unit for i in timeline.ready[unit.index]} == {unit.index}
        for chunk in unit.chunks:
            update = timeline.find(Kind.UPDATE, shape.gradient_accumulation - 1, unit.index, chunk.index)
            assert any(i == update or update in ancestors(timeline, i) for i in timeline.ready[unit.index])


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap == "serial"], ids=name)
def test_serial_updates_begin_when_backward_has_ended_and_downloads_before(shape: StepShape) -> None:
    timeline = build_timeline(layout(), shape)
    for task in timeline.tasks:
        has_ended = timeline.find(Kind.BACKWARD, task.micro_batch) in ancestors(timeline, task.index)
        if task.kind is Kind.UPDATE:
            assert has_ended
        elif task.kind is Kind.DOWNLOAD:
            assert not has_ended, "all gradients would be on the device twice"


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap == "serial"], ids=name)
def test_a_serial_step_in_index_order_has_the_buffers_of_one_chunk_in_use(shape: StepShape) -> None:
    timeline = build_timeline(layout(), shape)
    for taken, given_back in ((Kind.READ_STATE, Kind.WRITE_STATE), (Kind.DOWNLOAD, Kind.WRITE_GRADIENT)):
        pairs = [t for t in timeline.tasks if t.kind in (taken, given_back)]
        if not any(t.kind is given_back for t in pairs):
            continue
        on_disk = [t for t in pairs if t.unit is not None and shape.flows[t.unit].state == "disk"]
        for first, second in zip(on_disk[::2], on_disk[1::2], strict=True):
            assert (first.kind, second.kind) == (taken, given_back)
            assert (first.unit, first.chunk) == (second.unit, second.chunk)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.overlap == "delayed"], ids=name)
def test_a_delayed_step_updates_beside_its_forward_by_gradients_that_are_there(shape: StepShape) -> None:
    made = layout()
    timeline = build_timeline(made, shape)
    last = shape.gradient_accumulation - 1
    computed = {t.index for t in timeline.tasks if t.kind in (Kind.FORWARD, Kind.BACKWARD)}
    for index in timeline.update_of_last:
        assert not computed & ({index} | ancestors(timeline, index))
    for unit, chunk in made.chunks():
        update = timeline.find(Kind.UPDATE, last, unit.index, chunk.index)
        upload = timeline.find(Kind.UPLOAD, last, unit.index, chunk.index)
        assert {update, upload} <= set(timeline.update_of_last)
        assert upload in ancestors(timeline, update), "what was not published yet would be overwritten"
        assert upload in timeline.ready[unit.index] and update not in timeline.ready[unit.index]


def test_a_delayed_step_with_nothing_to_apply_has_no_update() -> None:
    shape = next(s for s in SHAPES if s.overlap == "delayed")
    first = build_timeline(
        layout(),
        StepShape(
            shape.gradient_accumulation, shape.flows, shape.global_quantity, "delayed", applies_last=False
        ),
    )
    assert {Kind.UPDATE, Kind.UPLOAD}.isdisjoint(t.kind for t in first.tasks)
    assert first.update_of_last == ()


@pytest.mark.parametrize("global_quantity", [False, True])
@pytest.mark.parametrize("overlap", ["serial", "exact"])
def test_units_updated_after_backward_are_measured_and_updated_in_one_task_each_or_in_one_for_both(
    overlap: str, global_quantity: bool
) -> None:
    made = layout()
    collected = UnitFlow(
        state="host",
        update_on_compute=True,
        downloads=False,
        accumulates=False,
        gradients_on_disk=False,
        uploads=False,
        after_backward=True,
    )
    on_lanes = flow("disk", one_memory=True, accumulates=False, waits_on_disk=False)
    timeline = build_timeline(made, StepShape(1, (collected, on_lanes, collected), global_quantity, overlap))  # type: ignore[arg-type]
    verdict, update = timeline.find(Kind.VERDICT, 0), timeline.find(Kind.UPDATE, 0)
    assert timeline.find(Kind.BACKWARD, 0) in ancestors(timeline, update)
    at_once = overlap == "exact" and not global_quantity
    if at_once:
        assert update in ancestors(timeline, verdict), "its norm is part of the verdict"
        with pytest.raises(KeyError):
            timeline.find(Kind.NORM, 0)
    else:
        assert {verdict, timeline.find(Kind.NORM, 0)} <= ancestors(timeline, update)
    assert timeline.ready[0] == timeline.ready[2] == (update,)
    assert not [t for t in timeline.tasks if t.unit in (0, 2) and t.chunk is not None]
    assert timeline.find(Kind.UPDATE, 0, 1, 0) in timeline.ready[1] + tuple(
        i for ready in timeline.ready[1] for i in timeline.tasks[ready].waits
    )


@pytest.mark.parametrize("overlap", ["serial", "exact"])
@pytest.mark.parametrize("global_quantity", [False, True])
def test_what_ranks_do_together_has_one_order(overlap: str, global_quantity: bool) -> None:
    """Chunks are reduced in reverse, then comes the verdict, then weights are gathered in forward order."""
    made = layout()
    flow = UnitFlow("host", False, downloads=True, accumulates=False, gradients_on_disk=False, uploads=True)
    shape = StepShape(1, (flow,) * 3, global_quantity, overlap, ranks=4)  # type: ignore[arg-type]
    timeline = build_timeline(made, shape)
    together = [task for task in timeline.tasks if task.lane is Lane.COMMUNICATE]
    for before, task in itertools.pairwise(together):
        assert before.index in task.waits
    places = [(unit.index, chunk.index) for unit, chunk in made.chunks()]
    assert [(task.kind, task.unit, task.chunk) for task in together] == [
        *((Kind.REDUCE, *place) for place in reversed(places)),
        (Kind.VERDICT, None, None),
        *((Kind.GATHER, *place) for place in places),
    ]
    for unit, chunk in places:
        reduced = timeline.find(Kind.REDUCE, 0, unit, chunk)
        assert timeline.find(Kind.BACKWARD, 0, unit, chunk) in timeline.tasks[reduced].waits
        assert timeline.tasks[timeline.find(Kind.DOWNLOAD, 0, unit, chunk)].waits == (reduced,)
        gathered = timeline.find(Kind.GATHER, 0, unit, chunk)
        assert timeline.find(Kind.UPLOAD, 0, unit, chunk) in timeline.tasks[gathered].waits
        assert gathered in timeline.ready[unit]
        verdict = timeline.find(Kind.VERDICT, 0)
        assert (verdict in ancestors(timeline, timeline.find(Kind.UPDATE, 0, unit, chunk))) == global_quantity


@pytest.mark.parametrize("streamed", [False, True])
def test_ranks_gather_what_is_late_before_a_forward_and_beside_their_updates(streamed: bool) -> None:
    """Streamed weights are gathered by each fetch."""
    made = layout()
    flow = UnitFlow(
        "host",
        update_on_compute=False,
        downloads=True,
        accumulates=False,
        gradients_on_disk=False,
        uploads=True,
        streamed=streamed,
    )
    timeline = build_timeline(made, StepShape(1, (flow,) * 3, True, "delayed", ranks=4))
    together = [task for task in timeline.tasks if task.lane is Lane.COMMUNICATE]
    for before, task in itertools.pairwise(together):
        assert before.index in task.waits
    places = [(unit.index, chunk.index) for unit, chunk in made.chunks()]
    gathered = [] if streamed else places
    assert [(task.kind, task.unit, task.chunk) for task in together] == [
        *((Kind.GATHER, *place) for place in gathered),
        *((Kind.REDUCE, *place) for place in reversed(places)),
        (Kind.VERDICT, None, None),
    ]
    assert timeline.tasks[together[-1].index].index not in timeline.update_of_last
    for unit, chunk in places:
        upload = timeline.find(Kind.UPLOAD, 0, unit, chunk)
        update = ancestors(timeline, timeline.find(Kind.UPDATE, 0, unit, chunk))
        assert upload in update
        if streamed:
            assert upload in timeline.ready[unit]
            continue
        gather = timeline.find(Kind.GATHER, 0, unit, chunk)
        assert upload in timeline.tasks[gather].waits and gather in timeline.ready[unit]
        assert gather in timeline.update_of_last
        assert gather not in update


@pytest.mark.parametrize("uploads", [True, False], ids=["resident", "streamed"])
def test_an_update_ahead_waits_for_its_gradient_alone_and_where_weights_are_fetched_for_its_backward(
    uploads: bool,
) -> None:
    made = layout()
    unit_flow = replace(
        flow("host", one_memory=False, accumulates=False, waits_on_disk=False),
        uploads=uploads,
        speculates=True,
    )
    shape = StepShape(1, (unit_flow,) * 3, global_quantity=True, overlap="exact", speculates=True)
    timeline = build_timeline(made, shape)
    usual = build_timeline(made, replace(shape, speculates=False))
    assert timeline.tasks[: len(usual.tasks)] == usual.tasks, "they are the last: they keep nothing waiting"
    assert timeline.ready == usual.ready
    verdict = timeline.find(Kind.VERDICT, 0)
    for unit, chunk in made.chunks():
        ahead = timeline.find(Kind.SPECULATE, 0, unit.index, chunk.index)
        assert timeline.tasks[ahead].lane is timeline.tasks[verdict].lane is Lane.UPDATE
        before = ancestors(timeline, ahead)
        assert timeline.find(Kind.NORM, 0, unit.index, chunk.index) in before
        assert verdict not in before and not timeline.followers[ahead]
        assert (timeline.find(Kind.BACKWARD, 0, unit.index) in before) is not uploads


def test_updates_ahead_go_on_while_the_verdict_waits_for_units_on_the_device() -> None:
    """Their norm is known when the device has been through backward, long after the host has issued it."""
    made = layout()
    on_host = replace(flow("host", one_memory=False, accumulates=False, waits_on_disk=False), speculates=True)
    on_device = replace(
        on_host, state="device", downloads=False, uploads=False, after_backward=True, speculates=False
    )
    shape = StepShape(
        1, (on_device, on_host, on_host), global_quantity=True, overlap="exact", speculates=True
    )
    timeline = build_timeline(made, shape)
    verdict = timeline.tasks[timeline.find(Kind.VERDICT, 0)]
    assert timeline.find(Kind.NORM, 0) in verdict.waits
    assert verdict.lane is Lane.DOWNLOAD
    down = [task.index for task in timeline.tasks if task.kind is Kind.DOWNLOAD]
    assert down and set(down) <= ancestors(timeline, verdict.index), "it keeps no copy waiting"
