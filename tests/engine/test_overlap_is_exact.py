"""`exact` overlap gives the bits of `serial`, whatever the lanes' timing, in memories of their own and in one."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import pytest
import torch
from plain_torch import Outcome, assert_same_bits, train_engine
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches

from workbench.engine.devices.device import CpuDevice, Device

STEPS = 4


def train(start: torch.nn.Module, device: Device, **options: Any) -> Outcome:
    data = batches(STEPS * options.get("gradient_accumulation", 1))
    steps = [data[number::STEPS] for number in range(STEPS)]
    return train_engine(start, steps, device, **options)


CASES: list[dict[str, Any]] = [
    {"precision": precision, "gradient_accumulation": accumulation, "gradient_clipping": clipping}
    for precision, accumulation, clipping in itertools.product(("fp32", "bf16"), (1, 3), (0.0, 0.5))
]
SHORT_STATE: list[dict[str, Any]] = [
    {"state_format": state_format, "precision": precision, "gradient_clipping": 0.5}
    for state_format, precision in itertools.product(("half", "compact"), ("fp32", "bf16"))
]


def label(case: dict[str, Any]) -> str:
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", [*CASES, *SHORT_STATE], ids=label)
@pytest.mark.parametrize("name", MODELS)
def test_exact_has_the_bits_of_serial_under_any_timing(
    name: str, case: dict[str, Any], checkpointing: bool, seeds: int
) -> None:
    start = MODELS[name](dropout=0.1)
    options = {**case, "activation_checkpointing": checkpointing}
    serial = train(start, SeparateMemory(), overlap="serial", **options)
    # Each case has seeds of its own; over the cases all timings come up many times.
    first = zlib.crc32(f"{name} {options}".encode())
    for seed in range(first, first + seeds):
        assert_same_bits(serial, train(start, SeparateMemory(seed), overlap="exact", **options))


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_that_all_wait_have_the_bits_of_a_ring(precision: str, seeds: int) -> None:
    start = MODELS["gpt2"](dropout=0.1)
    ring = train(start, SeparateMemory(), precision=precision)
    for seed in range(seeds):
        waiting = train(start, SeparateMemory(seed), precision=precision, all_gradients_wait=True)
        assert_same_bits(ring, waiting)


@pytest.mark.parametrize("state", ["host", "device"])
@pytest.mark.parametrize("case", CASES, ids=label)
def test_exact_in_a_shared_memory_has_the_bits_of_serial(case: dict[str, Any], state: str) -> None:
    start = MODELS["gpt2"](dropout=0.1)
    # With the state on the host also those of separate memories; on the device the norm is measured in another way.
    device = SeparateMemory() if state == "host" else CpuDevice()
    serial = train(start, device, overlap="serial", state=state, **case)
    assert_same_bits(serial, train(start, CpuDevice(), overlap="exact", state=state, **case))


@pytest.mark.parametrize("state_format", ["exact", "half", "compact"])
def test_the_size_of_chunks_changes_no_bit(state_format: str) -> None:
    start = MODELS["gpt2"](layers=1)
    start.resize_token_embeddings(3000)  # larger than one block of the norm
    smallest, *others = (
        train(start, device, chunk_bytes=chunk_bytes, gradient_clipping=0.1, state_format=state_format)
        for chunk_bytes in (CHUNK_BYTES, 300_000, 16 << 20)
        for device in (SeparateMemory(), CpuDevice())
    )
    for other in others:
        assert_same_bits(smallest, other)


def test_checkpointing_recomputes_the_same_dropout() -> None:
    start = MODELS["gpt2"](dropout=0.3)
    kept, again = (
        train(start, CpuDevice(), activation_checkpointing=checkpointing) for checkpointing in (False, True)
    )
    assert kept.losses == pytest.approx(again.losses, rel=1e-5)
    torch.testing.assert_close(kept.parameters, again.parameters, rtol=1e-5, atol=1e-6)
