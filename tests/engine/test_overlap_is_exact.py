"""`exact` overlap gives the bits of `serial`, whatever the lanes' timing, in memories of their own."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, loss_of

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import CpuDevice, Device

STEPS = 4


def train(start: torch.nn.Module, device: Device, **options: object) -> list[torch.Tensor]:
    """Losses, norms, weights and state after a few steps."""
    model = clone(start)
    accumulation = int(options.get("gradient_accumulation", 1))  # type: ignore[call-overload]
    outcome: list[torch.Tensor] = []
    norms = []
    torch.manual_seed(0)
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=1e-2, weight_decay=0.1),
        device=device,
        chunk_bytes=CHUNK_BYTES,
        threads=2,
        **options,  # type: ignore[arg-type]
    ) as engine:
        data = iter(batches(STEPS * accumulation))
        for _ in range(STEPS):
            for _ in range(accumulation):
                loss = loss_of(model, next(data))
                outcome.append(loss.detach().clone())
                engine.backward(loss)
            norms.append(engine.step())
        outcome.append(torch.tensor([r.result().grad_norm for r in norms[-1:]], dtype=torch.float64))
        outcome += [tensor.clone() for _, tensor in engine.state()]
    return outcome + [p.detach().clone() for p in model.parameters()]


def assert_same_bits(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


CASES = [
    {"precision": precision, "gradient_accumulation": accumulation, "gradient_clipping": clipping}
    for precision, accumulation, clipping in itertools.product(("fp32", "bf16"), (1, 3), (0.0, 0.5))
]


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("name", MODELS)
def test_exact_has_the_bits_of_serial_under_any_timing(
    name: str, case: dict[str, object], checkpointing: bool, seeds: int
) -> None:
    start = MODELS[name](dropout=0.1)
    options = {**case, "activation_checkpointing": checkpointing}
    serial = train(start, SeparateMemory(), overlap="serial", **options)
    for seed in range(seeds):
        # Each case has seeds of its own; over the cases all timings come up many times.
        delayed = SeparateMemory(seed=hash_of(name, str(options)) + seed)
        assert_same_bits(serial, train(start, delayed, overlap="exact", **options))


@pytest.mark.parametrize("state", ["host", "device"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c.values())))
def test_a_shared_memory_gives_exact_the_bits_of_serial(case: dict[str, object], state: str) -> None:
    start = MODELS["gpt2"](dropout=0.1)
    serial = train(start, CpuDevice(), overlap="serial", state=state, **case)
    assert_same_bits(serial, train(start, CpuDevice(), overlap="exact", state=state, **case))


def test_separate_and_shared_memory_agree_to_the_bit() -> None:
    start = MODELS["llama"]()
    for precision, accumulation in itertools.product(("fp32", "bf16"), (1, 2)):
        options = {"precision": precision, "gradient_accumulation": accumulation, "gradient_clipping": 0.5}
        assert_same_bits(
            train(start, CpuDevice(), **options),
            train(start, SeparateMemory(seed=1), **options),
        )


def test_the_size_of_chunks_changes_no_bit() -> None:
    start = MODELS["gpt2"](layers=1)
    start.resize_token_embeddings(3000)  # larger than one block of the norm
    model = clone(start)
    outcomes = []
    for chunk_bytes in (CHUNK_BYTES, 300_000, 16 << 20):
        model = clone(start)
        with OffloadEngine(
            model, device=SeparateMemory(), gradient_clipping=0.1, chunk_bytes=chunk_bytes
        ) as engine:
            for ids in batches(2):
                engine.backward(loss_of(model, ids))
                report = engine.step()
            outcomes.append(
                [torch.tensor(report.result().grad_norm)] + [p.detach() for p in model.parameters()]
            )
            assert len(list(engine.layout.chunks())) >= (3 if chunk_bytes < 1 << 20 else 1)
    for other in outcomes[1:]:
        assert_same_bits(outcomes[0], other)


def hash_of(*words: str) -> int:
    import zlib

    return zlib.crc32(" ".join(words).encode())


def test_checkpointing_recomputes_the_same_dropout() -> None:
    start = MODELS["gpt2"](dropout=0.3)
    kept = train(start, CpuDevice(), activation_checkpointing=False)
    again = train(start, CpuDevice(), activation_checkpointing=True)
    for a, b in zip(kept, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
