"""What a run needs is counted as the engine lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import SETTINGS, build_engine

from workbench.engine.blocks.discovery import find_units, lay_out
from workbench.engine.devices.device import CpuDevice
from workbench.engine.precision import compute_dtypes, dtype_name, working_precision
from workbench.layout import Layout, ParameterSpec, UnitSpec, build_layout
from workbench.model.build import build_on_meta, model_config
from workbench.plan.machine import Free
from workbench.plan.memory import EngineNeeds, MemoryPlan, heap_reserve, model_rows, plan_memory
from workbench.plan.workload import Workload
from workbench.profiles.meta_model import count_parts
from workbench.profiles.model_profile import ModelProfile

GIB = 1 << 30


CHUNK_BYTES = 1 << 17
PAIRS = [
    ("device", "device"),
    ("device", "host"),
    ("host", "host"),
    ("device", "disk"),
    ("host", "disk"),
    ("disk", "disk"),
]
BOUNDS = ("gradient slots", "staging")
"""Buffers that circulate: the plan has their limit, of which a run uses as many as it needs."""


def tiny_layout(
    dtype: torch.dtype = torch.float32, state_format: Any = "exact", device_fraction: float = 0.0
) -> Layout:
    units = find_units(build_on_meta(model_config("gpt2", dict(SETTINGS))))
    return lay_out(units, dtype, CHUNK_BYTES, state_format, device_fraction)


def tiny_model_profile(layers: int = 2) -> ModelProfile:
    """Without what blocks take: the formula stands in for that."""
    return count_parts(build_on_meta(model_config("gpt2", {**SETTINGS, "n_layer": layers})), "gpt2")


def workload(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "weights": "device",
        "state": "host",
        "shared_memory": True,
        "precision": "float32",
        "gradient_accumulation": 1,
        "micro_batch_size": 2,
        "sequence_length": 16,
        "activation_checkpointing": True,
        "checkpoints_kept": 2,
        "chunk_bytes": CHUNK_BYTES,
    }
    return Workload(**{**values, **changes})


def plan(**changes: Any) -> MemoryPlan:
    dtype = changes.pop("dtype", torch.float32)
    layout = tiny_layout(dtype, changes.pop("state_format", "exact"))
    free = {"host": GIB, "device": None, "disk": GIB}
    free |= {name: changes.pop(f"free_{name}") for name in list(free) if f"free_{name}" in changes}
    work = workload(precision=dtype_name(dtype), shared_memory=free["device"] is None, **changes)
    return plan_memory(layout, tiny_model_profile(), work, Free(**free))


def needs(plan: MemoryPlan) -> dict[str, dict[str, int]]:
    return {tier.tier: tier.needs for tier in plan.tiers}


@pytest.mark.parametrize("shared_memory", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize(("weights", "state"), PAIRS)
@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp32", "gradient_accumulation": 2},
        {"precision": "bf16", "gradient_clipping": 1.0, "compute": "same"},
        {"precision": "bf16", "overlap": "serial", "device_fraction": 0.5},
        {"precision": "bf16", "all_gradients_wait": True},
        {"precision": "bf16", "gradient_clipping": 1.0, "speculation": 0.5, "compute": "same"},
        {"precision": "bf16", "state_format": "compact", "device_fraction": 0.6, "compute": "same"},
        {"precision": "fp16", "state_format": "half", "gradient_accumulation": 2, "overlap": "delayed"},
        {"precision": "bf16", "gradient_accumulation": 2, "gradient_sums": "device", "compute": "same"},
        {"precision": "fp32", "gradient_accumulation": 3, "gradient_sums": "device", "overlap": "delayed"},
        {"precision": "bf16", "state_format": "compact", "overlap": "delayed", "compute": "same"},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_the_plan_has_the_bytes_of_the_engines_memory_breakdown(
    tmp_path: Path, weights: str, state: str, shared_memory: bool, options: dict[str, Any]
) -> None:
    if state == "device":
        options = {**options, "state_format": "exact", "device_fraction": 0.0}
    if weights == "disk" and options.get("overlap") == "delayed":
        options = {**options, "overlap": "exact"}
    device = CpuDevice(shared_memory=shared_memory)
    dtype = working_precision(options["precision"], device)
    model, engine = build_engine(
        weights=weights,
        state=state,
        delay_warmup=0,
        chunk_bytes=CHUNK_BYTES,
        disk_path=tmp_path,
        **{**options, "device": device},
    )
    with engine:
        for _ in range(2):
            for _ in range(options.get("gradient_accumulation", 1)):
                ids = torch.arange(32).reshape(2, 16)
                engine.backward(model(input_ids=ids, labels=ids, use_cache=False).loss)
            engine.step()
        engine.wait()
        memory_breakdown = engine.memory()
    computed_in = compute_dtypes(options.pop("compute", "auto"), device)
    work = workload(
        **{k: v for k, v in options.items() if k not in ("precision", "state_format")},
        weights=weights,
        state=state,
        shared_memory=shared_memory,
        precision=dtype_name(dtype),
        compute_dtypes={dtype_name(a): dtype_name(b) for a, b in computed_in.items()},
    )
    layout = tiny_layout(dtype, options.get("state_format", "exact"), options.get("device_fraction", 0.0))
    foretold = EngineNeeds(layout, work).memory_breakdown()
    for tier in ("device", "host", "disk"):
        held = {name: size for name, size in memory_breakdown[tier].items() if name not in BOUNDS}
        assert {name: size for name, size in foretold[tier].items() if name not in BOUNDS} == held, tier
        for name in BOUNDS:
            assert foretold[tier].get(name, 0) >= memory_breakdown[tier].get(name, 0), (tier, name)


def test_frozen_weights_lie_where_their_block_does_and_in_slots_beside_what_is_trained() -> None:
    def spec(name: str, trainable: bool) -> ParameterSpec:
        return ParameterSpec(name, (512, 4), "bfloat16", trainable)

    units = [
        UnitSpec("embedding", "outer", (spec("e", False),)),
        *(UnitSpec(f"h{i}", "block", (spec(f"h{i}.w", False), spec(f"h{i}.a", True))) for i in range(4)),
    ]
    layout = build_layout(units, CHUNK_BYTES)
    size = 512 * 4 * 2

    def placed(weights: str, state: str) -> dict[str, dict[str, int]]:
        work = workload(weights=weights, state=state, precision="bfloat16", shared_memory=False)
        return EngineNeeds(layout, work).memory_breakdown()

    resident, streamed, filed = placed("device", "host"), placed("host", "host"), placed("disk", "disk")
    assert resident["device"]["frozen weights"] == 5 * size
    assert streamed["device"] == {
        "frozen weights": size,
        "weight slots": 3 * 2 * size,
        "gradient slots": streamed["device"]["gradient slots"],
    }
    assert streamed["host"]["frozen weights"] == filed["disk"]["frozen weights"] == 4 * size


def test_an_update_that_runs_during_backward_needs_two_blocks_of_gradients_and_not_all_of_them() -> None:
    layout = lay_out(
        find_units(build_on_meta(model_config("gpt2", {**SETTINGS, "n_layer": 5}))),
        torch.float32,
        CHUNK_BYTES,
    )
    size = {unit.name: 4 * unit.elements for unit in layout.units}
    blocks = [4 * unit.elements for unit in layout.units if unit.kind == "block"]

    def gradients(**changes: Any) -> int:
        work = workload(**changes)
        rows = model_rows(tiny_model_profile(5), work, EngineNeeds(layout, work).gradients_in_autograd())
        assert sum(rows["device"].values()) > 0
        return EngineNeeds(layout, work).gradients_in_autograd().at_end

    assert gradients(gradient_clipping=1.0) == sum(size.values())
    assert gradients() == sum(size.values()) - sum(blocks) + 2 * max(blocks)


def test_streamed_weights_take_the_device_no_more_room_however_deep_the_model_is() -> None:
    def device(layers: int) -> dict[str, int]:
        config = model_config("gpt2", {**SETTINGS, "n_layer": layers})
        layout = lay_out(find_units(build_on_meta(config)), torch.bfloat16, CHUNK_BYTES)
        work = workload(weights="host", precision="bfloat16", shared_memory=False)
        return EngineNeeds(layout, work).memory_breakdown()["device"]

    assert device(8) == device(4)


def test_activations_that_wait_on_the_host_leave_the_device() -> None:
    name = "activations"
    kept = needs(plan(free_device=GIB))
    moved = needs(plan(free_device=GIB, activations="host"))
    assert moved["device"][name] <= kept["device"][name] and name not in kept["host"]
    assert (
        moved["host"][name] == 2 * 2 * 16 * 16 * 4
    )  # two blocks' inputs of 2 x 16 tokens of width 16 in fp32


def test_a_disk_tier_on_another_disk_is_a_tier_of_its_own() -> None:
    layout, work = tiny_layout(), workload(weights="disk", state="disk")
    together = plan_memory(layout, tiny_model_profile(), work, Free(GIB, None, GIB)).tiers
    apart = plan_memory(layout, tiny_model_profile(), work, Free(GIB, None, GIB, disk_tier=1000)).tiers
    assert [tier.tier for tier in together] == ["host", "disk"]
    assert [(tier.tier, tier.fits) for tier in apart] == [
        ("host", True),
        ("disk tier", False),
        ("disk", True),
    ]
    assert together[1].needed_bytes == apart[1].needed_bytes + apart[2].needed_bytes


def test_a_tier_that_lacks_a_byte_does_not_fit_and_says_how_much_is_missing() -> None:
    enough = plan().tiers[0].needed_bytes
    assert plan(free_host=enough).fits
    short = plan(free_host=enough - 1)
    assert not short.fits
    assert "host: does not fit" in short.table() and "missing" in short.table()
    assert short.missing_bytes == 1
    assert not plan(free_disk=1000).fits


def test_the_heap_keeps_holes_only_in_one_memory_whose_blocks_are_not_given_back() -> None:
    def reserve(**changes: Any) -> int:
        dtype = torch.bfloat16 if changes.get("precision") == "bfloat16" else torch.float32
        work = workload(**changes)
        gradients = EngineNeeds(tiny_layout(dtype), work).gradients_in_autograd()
        return heap_reserve(tiny_model_profile(), work, gradients)

    assert reserve(gradient_clipping=1.0) > reserve() > 0, "gradients that wait keep holes apart"
    assert reserve(activation_checkpointing=False) > 0
    assert reserve(shared_memory=False) == 0
    assert reserve(weights="disk", state="disk") == 0
    assert reserve(micro_batch_size=1 << 16) == 0, "blocks of 32 MiB and more are mapped by themselves"
