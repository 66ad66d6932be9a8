"""A predicted step: its lanes add up, overlap hides what it can, and faster machines are never slower."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from synthetic import gpt2, machine, workload

from workbench.layout import Layout, StateFormat, place
from workbench.plan import two_steps
from workbench.plan.rates import TASK_S, Rates
from workbench.plan.step_time import StepTime, step_time
from workbench.plan.two_steps import MOST_GROUPS, group_layout
from workbench.profiles.described import described_machine
from workbench.profiles.machine_profile import MachineProfile
from workbench.profiles.model_profile import KindTimes, ModelProfile, ModelTimes
from workbench.profiles.named_machines import known_machines
from workbench.timeline import Lane

MODEL = gpt2(24, 2048)


def predict(
    *,
    gpu: bool = True,
    times: ModelTimes | None = None,
    model: ModelProfile = MODEL,
    profile: MachineProfile | None = None,
    **changes: Any,
) -> StepTime:
    profile = profile or machine(gpu_gib=32 if gpu else None)
    if not gpu:
        changes = {"shared_memory": True, "precision": "float32", **changes}
    work = workload(**changes)
    layout = model.layout(work.precision, work.chunk_bytes, work.state_format, work.device_fraction)
    return step_time(layout, model, work, Rates(profile, work.threads), times)


def test_a_serial_step_is_the_sum_of_its_lanes() -> None:
    step = predict(overlap="serial", gradient_clipping=1.0)
    together = sum(lane.busy_s for lane in step.lanes.values())
    assert step.step_s == pytest.approx(together, rel=0.01)


@pytest.mark.parametrize("clipping", [0.0, 1.0])
def test_exact_overlap_hides_and_never_adds(clipping: float) -> None:
    serial = predict(overlap="serial", gradient_clipping=clipping)
    exact = predict(overlap="exact", gradient_clipping=clipping)
    assert exact.step_s < serial.step_s
    assert exact.step_s >= exact.lanes[Lane.COMPUTE].busy_s
    for lane in exact.lanes.values():
        assert 0 <= lane.exposed_s <= lane.busy_s + 1e-9


def test_without_clipping_more_of_the_update_is_hidden() -> None:
    clipped = predict(gradient_clipping=1.0).lanes[Lane.UPDATE]
    free = predict(gradient_clipping=0.0).lanes[Lane.UPDATE]
    assert free.exposed_s < clipped.exposed_s


def test_a_delayed_update_hides_behind_the_whole_step() -> None:
    assert predict(overlap="delayed", gradient_clipping=1.0).step_s < predict(gradient_clipping=1.0).step_s


def test_state_on_the_device_uses_no_other_lane() -> None:
    step = predict(state="device")
    assert [lane for lane, time in step.lanes.items() if time.busy_s > 0] == [Lane.COMPUTE]


def test_of_many_micro_batches_the_slowest_lane_sets_the_pace() -> None:
    few = {
        "micro_batch_size": 1,
        "sequence_length": 64,
        "gradient_accumulation": 64,
        "gradient_clipping": 1.0,
    }
    on_host, on_device = predict(**few), predict(gradient_sums="device", **few)
    link = machine(gpu_gib=32).link
    assert link is not None
    downs = 64 * 2 * MODEL.parameters / link.down_bytes_per_s
    assert on_host.step_s > downs, "every micro-batch's gradients go down, and there is room for so many"
    assert on_device.step_s < downs
    down, update = (on_device.lanes[lane].busy_s for lane in (Lane.DOWNLOAD, Lane.UPDATE))
    # 64 times 2 bytes a parameter or 4 once, and each chunk is handed over.
    assert 28 < on_host.lanes[Lane.DOWNLOAD].busy_s / down < 33
    assert update < on_host.lanes[Lane.UPDATE].busy_s


def test_streamed_weights_cost_uploads_that_hide_behind_compute() -> None:
    resident, streamed = predict(), predict(weights="host")
    assert streamed.lanes[Lane.UPLOAD].busy_s > 1.5 * resident.lanes[Lane.UPLOAD].busy_s
    assert streamed.step_s < resident.step_s + streamed.lanes[Lane.UPLOAD].busy_s / 2


def test_delayed_updates_copy_streamed_weights_with_all_threads_of_the_host() -> None:
    def upload_s(copies: tuple[float, ...], **changes: Any) -> float:
        profile = machine()
        host = profile.host.model_copy(update={"copy_bytes_per_s": copies})
        profile = profile.model_copy(update={"host": host})
        work = workload(overlap="delayed", **changes)
        layout = MODEL.layout(work.precision, work.chunk_bytes, work.state_format, work.device_fraction)
        return step_time(layout, MODEL, work, Rates(profile, work.threads), None).lanes[Lane.UPLOAD].busy_s

    blocks = sum(unit.weight_bytes for unit in MODEL.layout("bfloat16", 1 << 24, "exact", 0.0).units[1:-1])
    slow, fast = (upload_s((1e9, rate, rate), weights="host") for rate in (5e9, 50e9))
    assert slow - fast > 0.99 * blocks * (1 / 5e9 - 1 / 50e9), "and more where the update shares the memory"
    assert upload_s((1e9, 5e9, 5e9)) == upload_s((1e9, 50e9, 50e9)), "resident weights come over the link"


def test_a_block_is_fetched_from_the_host_as_one_task() -> None:
    coarse, fine = (
        predict(weights="host", chunk_bytes=size).lanes[Lane.UPLOAD] for size in (1 << 24, 1 << 22)
    )
    layout = MODEL.layout("bfloat16", 1 << 22, "exact", 0.0)
    pieces = sum(len(unit.chunks) for unit in layout.units[1:-1])
    assert fine.busy_s - coarse.busy_s < pieces * TASK_S / 2, "the blocks' own pieces cost nothing more"


def test_a_disk_tier_reads_and_writes_the_state_once_a_step() -> None:
    step = predict(weights="host", state="disk", state_format="compact")
    moved = MODEL.parameters * (4 + 2 + 8 / 256)
    # Embeddings are kept exact in every format.
    assert moved < step.written_bytes < 1.5 * moved
    assert step.lanes[Lane.WRITE].busy_s >= step.written_bytes / 2e9


def test_accumulation_takes_as_many_forwards_and_backwards_and_one_update() -> None:
    one, eight = predict(), predict(gradient_accumulation=8)
    assert eight.tokens == 8 * one.tokens
    assert eight.lanes[Lane.COMPUTE].busy_s == pytest.approx(8 * one.lanes[Lane.COMPUTE].busy_s, rel=0.02)
    assert eight.step_s < 8 * one.step_s


def test_more_micro_batches_than_are_played_take_their_time_each() -> None:
    steps = [predict(gradient_accumulation=n).step_s for n in (3, 4, 5)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=1e-6)
    assert steps[1] - steps[0] == pytest.approx(steps[0] / 3, rel=0.5)


def test_in_one_memory_update_and_compute_share_the_cores() -> None:
    step = predict(gpu=False)
    alone = step.lanes[Lane.COMPUTE].busy_s + step.lanes[Lane.UPDATE].busy_s
    assert step.step_s > 0.45 * alone
    update = MODEL.parameters * 0.5e-9
    forward_and_backward = predict(gpu=False, state="device").step_s - update
    assert step.step_s == pytest.approx(forward_and_backward + update, rel=0.1)


def times(speed: float, sequences: int = 8, tokens: int = 1024) -> ModelTimes:
    return ModelTimes(
        fingerprint="",
        sequences=sequences,
        tokens=tokens,
        dtype="bfloat16",
        kinds=(KindTimes(forward_s=0.1, graph_s=0.1, again_s=0.1, backward_s=0.2),),
        outer_forward_s=0.05,
        outer_backward_s=0.05,
        matrix_flops_per_s=speed,
    )


def test_measured_times_are_taken_before_arithmetic_whatever_a_matrix_product_took_beside_them() -> None:
    measured = predict(times=times(150e12), state="device")
    assert measured.measured
    assert measured.lanes[Lane.COMPUTE].busy_s == pytest.approx(24 * 0.4 + 0.1, rel=0.1)
    assert predict(times=times(75e12), state="device").step_s == measured.step_s
    assert not predict().measured


@pytest.mark.parametrize(("checkpointing", "forwards"), [(True, 2), (False, 1)])
def test_masks_that_keep_documents_apart_take_attention_through_all_pairs(
    checkpointing: bool, forwards: int
) -> None:
    sizes = {"micro_batch_size": 4, "sequence_length": 1024, "activation_checkpointing": checkpointing}
    together, apart = (
        predict(times=times(1e12, 2, 512), state="device", separate_documents=apart, **sizes)
        .lanes[Lane.COMPUTE]
        .busy_s
        for apart in (False, True)
    )
    masked_s = 0.5 * MODEL.kinds[0].flops.per_token_pair * 4 * 1024**2 / 1e12
    assert apart - together == pytest.approx(24 * (forwards + 2) * masked_s)


@pytest.mark.parametrize(("checkpointing", "forwards"), [(True, 2), (False, 1)])
def test_attention_takes_its_own_speed_for_the_pairs_that_it_goes_through(
    checkpointing: bool, forwards: int
) -> None:
    """Half of all pairs forward, 2.5 times that backward; all of them with a mask that keeps documents apart."""
    sizes = {"micro_batch_size": 4, "sequence_length": 1024, "activation_checkpointing": checkpointing}
    known = machine()
    device = known.device.model_copy(update={"attention_flops_per_s": {"bfloat16": 1e12}})

    def busy_s(profile: MachineProfile, apart: bool) -> float:
        found = predict(profile=profile, state="device", separate_documents=apart, **sizes)
        return found.lanes[Lane.COMPUTE].busy_s

    slow = known.model_copy(update={"device": device})
    half_s = 0.5 * MODEL.kinds[0].flops.per_token_pair * 4 * 1024**2 / 1e12
    product_s = half_s * 1e12 / (0.5 * known.device.matrix_flops_per_s["bfloat16"])
    assert busy_s(slow, True) - busy_s(slow, False) == pytest.approx(24 * (forwards + 2.5) * half_s)
    gained = busy_s(slow, False) - busy_s(known, False)
    assert gained == pytest.approx(24 * (forwards + 2.5) * (half_s - product_s), rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_units_that_are_taken_for_alike_take_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    weights, state = draw.choice(
        [("device", "device"), ("device", "host"), ("host", "host"), ("host", "disk")]
    )
    changes: dict[str, Any] = {
        "model": MODEL.model_copy(update={"after": ()}) if seed % 2 else MODEL,
        "weights": weights,
        "state": state,
        "state_format": draw.choice(["exact", "half", "compact"]),
        "overlap": draw.choice(["serial", "exact", "delayed"]),
        "device_fraction": draw.choice([0.0, 0.3]) if (weights, state) == ("device", "host") else 0.0,
        "gradient_accumulation": draw.choice([1, 2, 5]),
        "gradient_clipping": draw.choice([0.0, 1.0]),
    }
    together = predict(**changes)

    def each_by_itself(*settings: Any) -> two_steps.GroupedLayout:
        grouped = group_layout(*settings)
        assert len(set(grouped.alike)) < len(grouped.groups), "some are alike"
        return replace(grouped, alike=tuple(range(len(grouped.groups))))

    monkeypatch.setattr(two_steps, "group_layout", each_by_itself)
    monkeypatch.setattr(two_steps, "_cache", {})
    assert predict(**changes) == together


@pytest.mark.parametrize(("name", "host"), [("server-h200", 357e9), ("server-80gb", 159e9)])
@pytest.mark.parametrize("clipping", [0.0, 1.0])
def test_blocks_that_are_played_as_one_take_what_they_take_one_by_one(
    name: str, host: float, clipping: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of the sheet's memory the update of the whole model ends just after backward: the next forward waits for
    its first blocks, whatever the lanes are busy with then."""
    fast = replace(known_machines()[name], rates={"host.read_bytes_per_s": host})
    model, rates = gpt2(50, 4096), Rates(described_machine(fast), "auto")
    work = workload(gradient_clipping=clipping, all_gradients_wait=not clipping, micro_batch_size=10)
    layout = model.layout(work.precision, work.chunk_bytes, work.state_format, work.device_fraction)
    together = step_time(layout, model, work, rates).step_s
    monkeypatch.setattr(two_steps, "MOST_GROUPS", 1 << 10)
    monkeypatch.setattr(two_steps, "_cache", {})
    one_by_one = step_time(layout, model, work, rates).step_s
    assert together == pytest.approx(one_by_one, rel=0.04)


# The layout that is simulated

MODELS = {
    "ten billion": gpt2(50, 4096),
    "small": gpt2(12, 768),
    "tiny": gpt2(4, 128, 257, 128),
    "one": gpt2(1, 64),
}


def elements_by_dtype(layout: Layout) -> Counter[str]:
    found: Counter[str] = Counter()
    for unit in layout.units:
        for region in unit.regions:
            found[region.dtype] += region.elements
    return found


@pytest.mark.parametrize("model_profile", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_elements_and_chunks_are_the_engines(
    model_profile: ModelProfile, precision: str, state_format: StateFormat, fraction: float
) -> None:
    for chunk_bytes in (16 << 20, 1 << 30):
        engine = model_profile.layout(precision, chunk_bytes, state_format, fraction)
        placements = place(engine, "device", "host", fraction)
        grouped = group_layout(engine, placements, model_profile, chunk_bytes)
        assert elements_by_dtype(grouped.layout) == elements_by_dtype(engine)
        assert sum(group.chunks for group in grouped.groups) == len(list(engine.chunks()))
        assert sum(group.count for group in grouped.groups) == len(engine.units)
        assert len(grouped.groups) <= MOST_GROUPS + 4
        by_unit = [group.placement for group in grouped.groups for _ in range(group.count)]
        assert by_unit == list(placements)
