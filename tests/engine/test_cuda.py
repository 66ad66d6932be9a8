"""What the engine promises of a device with a memory of its own, in three places: see `device_places`.

`pytest -m gpu` runs the checks on a CUDA device, where there is one; most of those on the virtual device are slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_places import (
    CONFIGURATIONS,
    NEEDS_CUDA,
    PLACES,
    loss_at,
    opened,
    steps_of,
    torch_device,
    train_16_bits,
    train_at,
)
from families import PLACEMENTS, Placement
from plain_torch import (
    Outcome,
    assert_same_bits,
    assert_trains_the_same,
    counted_tokens,
    train_plain,
)
from small_models import CHUNK_BYTES, MODELS, batches, clone, loss_of
from torch import nn

from workbench.engine import OffloadEngine
from workbench.engine.blocks import activation_offload
from workbench.engine.non_finite import LossScaling

STEPS = 4
INITIAL_SCALE, HYSTERESIS = LossScaling().initial, LossScaling().hysteresis
LAYERS = 5  # more than the slots of streamed weights: each slot is used again
DELAY_WARMUP = 2

QUICK = {"fp16", "state on both", "accumulated", "all on the host"}
"""Not slow on the virtual device; `test_ordering.py` has others with a smaller model."""
WHAT_IS_LATE = [
    pytest.param(
        name, place, seed, marks=marks if marks or (seed == 0 and name in QUICK) else pytest.mark.slow
    )
    for name in CONFIGURATIONS
    for place, seeds, marks in (("separate", 1, ()), ("virtual", 23, ()), ("cuda", 3, NEEDS_CUDA))
    for seed in range(seeds)
]


@pytest.fixture(scope="module")
def on_time() -> Callable[[str, str], Outcome]:
    """What a configuration comes to where nothing is late: each operation runs as it is issued.

    The virtual device is held to the bits of separate memories, but for state on a device: a CPU updates that in C.
    """

    @functools.cache
    def outcome(place: str, name: str) -> Outcome:
        options = CONFIGURATIONS[name]
        if place == "virtual" and options.get("state") != "device" and "device_fraction" not in options:
            return outcome("separate", name)
        start = MODELS["gpt2"](dropout=0.1, layers=LAYERS)
        return train(start, place, steps=2, compute="same", **options)

    return outcome


@pytest.fixture(autouse=True)
def _small_activations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1024)


@pytest.fixture(autouse=True)
def _same_kernels_every_time() -> Iterator[None]:
    chosen = {
        torch.backends.cuda.enable_flash_sdp: torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.enable_mem_efficient_sdp: torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.enable_cudnn_sdp: torch.backends.cuda.cudnn_sdp_enabled(),
    }
    torch.use_deterministic_algorithms(True)
    for enable in chosen:
        enable(False)
    yield
    for enable, before in chosen.items():
        enable(before)
    torch.use_deterministic_algorithms(False)


def options_for(placement: Placement, folder: Path, **options: Any) -> dict[str, Any]:
    options = {"weights": placement.weights, "state": placement.state, **options}
    if placement.device_fraction:
        options["device_fraction"] = placement.device_fraction
    if "disk" in (placement.weights, placement.state):
        folder.mkdir()
        options["disk_path"] = folder
    return options


def train(start: nn.Module, place: str, seed: int | None = None, **options: Any) -> Outcome:
    data = steps_of(options.get("gradient_accumulation", 1), options.pop("steps", STEPS))
    return train_at(place, seed, start, data, tokens=counted_tokens, **options)


def train_plainly(start: nn.Module, place: str, **options: Any) -> Outcome:
    """By torch alone, on the same device; what it comes to is on the CPU."""
    data = steps_of(options.pop("gradient_accumulation", 1), STEPS)
    there = clone(start).to(torch_device(place))
    outcome = train_plain(there, data, compute_loss=loss_at(place), tokens=counted_tokens, **options)
    for name, parameter in outcome.parameters.items():
        outcome.parameters[name] = parameter.cpu()
    return outcome


ON_CPU = [
    ("separate", "gpt2", precision, 2, 0.5, placement)
    for placement, precision in zip(
        PLACEMENTS, ("fp32", "bf16", "fp16", "bf16", "fp32", "fp16", "bf16"), strict=True
    )
]
ON_CUDA = [
    pytest.param("cuda", name, precision, accumulation, clipping, placement, marks=NEEDS_CUDA)
    for name in MODELS
    for precision in ("fp32", "bf16", "fp16")
    for accumulation, clipping in ((1, 0.0), (1, 0.5), (3, 0.5))
    for placement in PLACEMENTS
]


@pytest.mark.parametrize(
    ("place", "name", "precision", "accumulation", "clipping", "placement"), [*ON_CPU, *ON_CUDA], ids=str
)
def test_exact_has_the_bits_of_serial_whatever_is_late(
    place: str,
    name: str,
    precision: str,
    accumulation: int,
    clipping: float,
    placement: Placement,
    tmp_path: Path,
) -> None:
    start = MODELS[name](dropout=0.1, layers=LAYERS)
    common = {
        "precision": precision,
        "gradient_accumulation": accumulation,
        "gradient_clipping": clipping,
    }
    options = options_for(placement, tmp_path / "serial", **common)
    serial = train(start, place, overlap="serial", **options)
    for seed in range(3 if place == "cuda" else 1):
        options = options_for(placement, tmp_path / str(seed), **common)
        assert_same_bits(serial, train(start, place, seed, overlap="exact", **options))


@pytest.mark.parametrize("overlap", ["exact", "delayed"])
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_fp32_trains_what_torch_trains(
    place: str, placement: Placement, overlap: str, tmp_path: Path
) -> None:
    if overlap == "delayed" and placement.weights == "disk":
        pytest.skip("delayed weights cannot be on disk")
    start = MODELS["llama"](layers=LAYERS)
    common: dict[str, Any] = {"gradient_accumulation": 2, "gradient_clipping": 0.5}
    options = options_for(placement, tmp_path / "disk", **common)
    if overlap == "delayed":
        options["delay_warmup"] = common["delay_warmup"] = DELAY_WARMUP
    ours = train(start, place, 1, overlap=overlap, **options)
    assert_trains_the_same(ours, train_plainly(start, place, **common), start)


@pytest.mark.parametrize(("precision", "scale"), [("bf16", 1.0), ("fp16", INITIAL_SCALE)])
@pytest.mark.parametrize("weights", ["device", "host"])
@pytest.mark.parametrize("place", PLACES)
def test_16_bits_train_what_torch_trains_on_fp32_masters(
    place: str, weights: str, precision: str, scale: float
) -> None:
    start = MODELS["llama"](layers=LAYERS)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    wanted = train_16_bits(start, batches(STEPS), dtype, dtype, scale, place)
    ours = train(start, place, 2, precision=precision, compute="same", weights=weights)
    assert ours.losses == pytest.approx(wanted.losses, rel=1e-3)
    before = dict(start.named_parameters())
    for name, weight in ours.parameters.items():
        assert weight.dtype == dtype
        master = wanted.parameters[name]
        moved = float((master - before[name].detach()).norm())
        rounding = torch.finfo(dtype).eps * float(master.norm())
        assert float((weight.float() - master).norm()) <= 0.03 * moved + rounding, name


@pytest.mark.parametrize("state", ["device", "host"])
@pytest.mark.parametrize("place", PLACES)
def test_an_overflow_in_fp16_writes_nothing_and_lowers_the_scale(place: str, state: str) -> None:
    model = MODELS["gpt2"]()
    options: dict[str, Any] = {"precision": "fp16", "state": state, "chunk_bytes": CHUNK_BYTES}
    with opened(place, seed=3) as device, OffloadEngine(model, device=device, **options) as engine:
        ids = batches(1)[0].to(device.torch_device)
        before = {n: w.clone() for unit in engine.weights() for n, w in unit.items()}
        for number in range(HYSTERESIS):
            engine.backward(loss_of(model, ids).float() * 1e6)
            result = engine.step().result()
            assert result.skipped and result.loss_scale == INITIAL_SCALE, number
        after = {n: w.clone() for unit in engine.weights() for n, w in unit.items()}
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert set(engine.counters()["parameter_steps"].values()) == {0}
        engine.backward(loss_of(model, ids))
        result = engine.step().result()
        assert not result.skipped and result.loss_scale == INITIAL_SCALE / 2


@pytest.mark.parametrize("weights", ["device", "host"])
@pytest.mark.parametrize("place", PLACES)
def test_activations_on_the_host_change_no_bit(place: str, weights: str) -> None:
    start = MODELS["gpt2"](dropout=0.1, layers=LAYERS)
    options = {"gradient_accumulation": 2, "gradient_clipping": 0.5, "weights": weights}
    kept = train(start, place, activations="device", **options)
    assert_same_bits(kept, train(start, place, 0, activations="host", **options))


@pytest.mark.parametrize(("name", "place", "seed"), WHAT_IS_LATE)
def test_whatever_is_late_changes_no_bit(
    on_time: Callable[[str, str], Outcome], name: str, place: str, seed: int
) -> None:
    start = MODELS["gpt2"](dropout=0.1, layers=LAYERS)
    late = train(start, place, seed, steps=2, compute="same", **CONFIGURATIONS[name])
    assert_same_bits(on_time(place, name), late)


@pytest.mark.parametrize("place", PLACES)
def test_a_second_engine_trains_the_same_on_what_the_first_has_left(place: str) -> None:
    """The allocator hands the first one's memory to the second while nothing of the first may still come."""
    start = MODELS["llama"](layers=LAYERS)
    first = train(start, place, 4, weights="host")
    assert_same_bits(first, train(start, place, 5, weights="host"))
