"""Models that are hard to offload train what plain torch trains, wherever their weights and state are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from families import Placement
from hard_models import HARD, Adapters, ReadFromOutside, loss_of_hard, make_hard, plain_batch
from plain_torch import SETTINGS, assert_same_bits, assert_trains_the_same, train_engine, train_plain
from small_models import SeparateMemory

from workbench.engine import OffloadEngine
from workbench.engine.devices.device import CpuDevice
from workbench.timeline import Lane

STEPS = 5
DELAY_WARMUP = 2

# Each line is a way to train: with these, every model meets every tier, every overlap, both memories, and the rest.
WAYS: dict[str, dict[str, Any]] = {
    "resident": {"placement": Placement("device", "device"), "overlap": "exact", "shared": True},
    "state-host": {"placement": Placement("device", "host"), "overlap": "exact", "accumulation": 2},
    "state-host-shared": {"placement": Placement("device", "host"), "overlap": "exact", "shared": True},
    "half": {"placement": Placement("device", "host", 0.5), "overlap": "exact", "clipping": 0.1},
    "weights-host": {"placement": Placement("host", "host"), "overlap": "exact"},
    "weights-host-clipped": {"placement": Placement("host", "host"), "overlap": "exact", "clipping": 0.1},
    "delayed": {"placement": Placement("host", "host"), "overlap": "delayed", "accumulation": 2},
    "state-disk": {"placement": Placement("host", "disk"), "overlap": "serial", "clipping": 0.1},
    "weights-disk": {"placement": Placement("disk", "disk"), "overlap": "exact", "accumulation": 2},
    "weights-disk-shared": {"placement": Placement("disk", "disk"), "overlap": "exact", "shared": True},
}


USUAL = ("weights-host", "delayed")
"""What every model meets in the normal suite; of the others each model meets one, and all of them in the slow suite."""


def _cases() -> list[Any]:
    others = [way for way in WAYS if way not in USUAL]
    cases = []
    for number, name in enumerate(HARD):
        for way in WAYS:
            usual = way in USUAL or way == others[number % len(others)]
            cases.append(pytest.param(name, way, marks=() if usual else pytest.mark.slow))
    return cases


def options_of(way: str, folder: Path) -> dict[str, Any]:
    """What the engine is to be given for a way."""
    chosen = WAYS[way]
    placement: Placement = chosen["placement"]
    options: dict[str, Any] = {
        "weights": placement.weights,
        "state": placement.state,
        "overlap": chosen["overlap"],
        "gradient_clipping": chosen.get("clipping", 0.0),
        "gradient_accumulation": chosen.get("accumulation", 1),
    }
    if placement.device_fraction:
        options["device_fraction"] = placement.device_fraction
    if chosen["overlap"] == "delayed":
        options["delay_warmup"] = DELAY_WARMUP
    if "disk" in (placement.weights, placement.state):
        options["disk_path"] = folder
    return options


def memory_of(way: str, seed: int = 1) -> CpuDevice:
    return CpuDevice() if WAYS[way].get("shared") else SeparateMemory(seed, longest_s=0.001)


def steps_of(name: str, accumulation: int) -> list[list[Any]]:
    batch = HARD[name][1]
    return [[batch(step * accumulation + micro) for micro in range(accumulation)] for step in range(STEPS)]


@pytest.mark.parametrize(("name", "way"), _cases())
def test_a_hard_model_trains_what_torch_trains(name: str, way: str, tmp_path: Path) -> None:
    start, options = make_hard(name), options_of(way, tmp_path)
    data = steps_of(name, options["gradient_accumulation"])
    reference = train_plain(
        start,
        data,
        gradient_clipping=options["gradient_clipping"],
        delay_warmup=options.get("delay_warmup"),
        compute_loss=loss_of_hard,
    )
    ours = train_engine(start, data, memory_of(way), compute_loss=loss_of_hard, **options)
    assert_trains_the_same(ours, reference, start)


def test_torch_counts_a_step_only_where_there_was_a_gradient() -> None:
    """The models above differ in what matters: without this their agreement would show little."""
    for name, counts in {"layer_drop": {0, 2, 3, 4, 5}, "two_heads": {2, 3, 5}, "dead_block": {0, 5}}.items():
        seen = train_plain(make_hard(name), steps_of(name, 1), compute_loss=loss_of_hard).parameter_steps
        assert set(seen.values()) <= counts | {STEPS} and len(set(seen.values())) > 1, name
    start = make_hard("experts")
    after = train_plain(start, steps_of("experts", 1), compute_loss=loss_of_hard)
    before = dict(start.named_parameters())["blocks.1.experts.up"]
    unused = after.parameters["blocks.1.experts.up"][-1]
    shrunk = (1 - SETTINGS.lr * SETTINGS.weight_decay) ** STEPS
    torch.testing.assert_close(unused, before[-1] * shrunk)


@pytest.mark.parametrize("way", WAYS)
def test_parameters_that_are_read_without_their_blocks_call_are_right_or_refused(
    way: str, tmp_path: Path
) -> None:
    """Weights that are away when they are read must never give a number that looks like one."""
    torch.manual_seed(0)
    start, options = ReadFromOutside(), options_of(way, tmp_path)
    data = [
        [plain_batch(step + micro) for micro in range(options["gradient_accumulation"])] for step in range(3)
    ]
    common = {"compute_loss": loss_of_hard}
    if options["weights"] == "device":
        reference = train_plain(start, data, gradient_clipping=options["gradient_clipping"], **common)
        assert_trains_the_same(
            train_engine(start, data, memory_of(way), **common, **options), reference, start
        )
        return
    model = start
    with OffloadEngine(model, device=memory_of(way), precision="fp32", **options):
        loss = loss_of_hard(model, plain_batch(0))
        assert torch.isnan(loss)


@pytest.mark.parametrize("way", [way for way in WAYS if WAYS[way]["overlap"] == "exact"])
def test_fp32_adapters_beside_bf16_weights_keep_their_precision_and_the_bits_of_serial(
    way: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    start = Adapters()
    for name, parameter in start.named_parameters():
        if "lora" not in name:
            parameter.data = parameter.data.bfloat16()
    options = {**options_of(way, tmp_path), "precision": "bf16", "compute": "same"}
    data = [[(x.bfloat16(), extra) for x, extra in step] for step in steps_of("adapters", 2)]
    data = [step[: options["gradient_accumulation"]] for step in data]
    outcomes = []
    for overlap in ("exact", "serial"):
        options["overlap"] = overlap
        if "disk_path" in options:
            options["disk_path"] = tmp_path / overlap
            options["disk_path"].mkdir()
        outcomes.append(train_engine(start, data, memory_of(way), compute_loss=loss_of_hard, **options))
    assert_same_bits(*outcomes)
    before = dict(start.named_parameters())
    for name, weight in outcomes[0].parameters.items():
        assert weight.dtype == before[name].dtype
        assert torch.equal(weight, before[name]) == ("lora" not in name), name
    # In one precision with the reference: fp32 gradients of the adapters, an fp32 AdamW.
    reference = train_plain(
        start, data, compute_loss=loss_of_hard, gradient_clipping=options["gradient_clipping"]
    )
    for name, theirs in reference.parameters.items():
        if "lora" in name:
            moved = float((theirs - before[name].detach()).norm())
            assert float((outcomes[0].parameters[name] - theirs).norm()) <= 0.02 * moved, name


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("name", ["two_lists", "layer_drop", "any_order", "backwards", "dead_block"])
def test_nothing_is_fetched_from_a_slow_disk_while_it_is_written(
    name: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched ahead in backward may be a block that was left and is being updated, or one that never ran."""

    def slow(write: Any) -> Any:
        def late(*given: Any) -> int:
            time.sleep(0.002)
            return int(write(*given))

        return late

    monkeypatch.setattr(os, "pwritev", slow(os.pwritev))
    start = make_hard(name)
    data = steps_of(name, 1)
    ours = train_engine(
        start,
        data,
        CpuDevice() if shared else SeparateMemory(2),
        compute_loss=loss_of_hard,
        weights="disk",
        state="disk",
        disk_path=tmp_path,
    )
    assert_trains_the_same(ours, train_plain(start, data, compute_loss=loss_of_hard), start)


class OneSlowLane(SeparateMemory):
    """Every task of one lane begins late: what the others hold in the meantime piles up as high as it can."""

    def __init__(self, slow: Lane) -> None:
        super().__init__()
        self._slow = slow

    def before_task(self, lane: Lane) -> None:
        if lane is self._slow:
            time.sleep(0.004)


@pytest.mark.parametrize("clipping", [0.0, 0.1])
@pytest.mark.parametrize(
    "slow", [lane for lane in Lane if lane is not Lane.COMPUTE], ids=lambda lane: lane.value
)
@pytest.mark.parametrize("weights", ["host", "disk"])
def test_no_lane_waits_for_a_buffer_that_only_it_could_give_back(
    weights: str, slow: Lane, clipping: float, tmp_path: Path
) -> None:
    """More chunks than buffers, sums that wait on disk, one lane far behind, blocks that bring nothing at first."""
    start = make_hard("two_heads")
    data = steps_of("two_heads", 2)
    ours = train_engine(
        start,
        data,
        OneSlowLane(slow),
        compute_loss=loss_of_hard,
        weights=weights,
        state="disk",
        disk_path=tmp_path,
        gradient_accumulation=2,
        gradient_clipping=clipping,
        watchdog_s=5.0,
    )
    reference = train_plain(start, data, compute_loss=loss_of_hard, gradient_clipping=clipping)
    assert_trains_the_same(ours, reference, start)
