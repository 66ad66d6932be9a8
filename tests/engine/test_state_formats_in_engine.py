"""The engine keeps `half` and `compact` state as it keeps `exact`: any timing, the same bits, and close to it."""

from __future__ import annotations

import pytest
import torch
from small_models import CHUNK_BYTES, SeparateMemory, batches, clone, gpt2, llama, loss_of, torch_adamw

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import CpuDevice, Device

FORMATS = ["half", "compact"]


def train(
    start: torch.nn.Module, device: Device, steps: int = 4, **options: object
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses, and the state by name after so many steps."""
    model = clone(start)
    torch.manual_seed(0)
    losses = []
    settings = AdamW(lr=1e-2, weight_decay=0.1)
    with OffloadEngine(model, optimizer=settings, device=device, threads=2, **options) as engine:  # type: ignore[arg-type]
        for ids in batches(steps):
            loss = loss_of(model, ids)
            losses.append(loss.detach().clone())
            engine.backward(loss)
            engine.step()
        return torch.stack(losses), {name: tensor.clone() for name, tensor in engine.state()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("state_format", FORMATS)
def test_exact_overlap_has_the_bits_of_serial(state_format: str, precision: str) -> None:
    start = gpt2(dropout=0.1)
    options = {"state_format": state_format, "precision": precision, "gradient_clipping": 0.5}
    losses, state = train(start, SeparateMemory(), overlap="serial", **options)
    for seed in range(3):
        # However small the chunks are, and wherever they cut.
        delayed = SeparateMemory(seed=seed)
        for other in (
            train(start, delayed, chunk_bytes=CHUNK_BYTES, **options),
            train(start, CpuDevice(), **options),
        ):
            assert torch.equal(losses, other[0])
            assert state.keys() == other[1].keys()
            assert all(torch.equal(state[name], other[1][name]) for name in state)


@pytest.mark.parametrize("state_format", FORMATS)
def test_matrices_are_kept_short_and_embeddings_gains_and_biases_exact(state_format: str) -> None:
    with OffloadEngine(gpt2(), device="cpu", state_format=state_format) as engine:  # type: ignore[arg-type]
        exact, short = set(), set()
        for unit in engine.layout.units:
            for segment in unit.segments:
                region = unit.regions[segment.region]
                (exact if region.state_format == "exact" else short).add(segment.name)
                assert region.state_format in ("exact", state_format)
        names = {name for name, _ in engine.state()}
    assert "transformer.h.0.mlp.c_fc.weight" in short and "transformer.h.1.attn.c_proj.weight" in short
    assert {"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.bias"} <= exact
    assert all(
        name.endswith((".bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")) or ".w" in name
        for name in exact
    )
    assert f"0001-transformer.h.0/exp_avg.{state_format}" in names
    assert "0001-transformer.h.0/exp_avg.exact" in names
    assert "0000-embedding/exp_avg" in names


@pytest.mark.parametrize("state_format", FORMATS)
def test_a_curve_of_100_steps_stays_beside_exacts(state_format: str) -> None:
    start = llama()
    exact, _ = train(start, CpuDevice(), steps=100)
    short, _ = train(start, CpuDevice(), steps=100, state_format=state_format)
    assert float(exact[-10:].mean()) < 0.7 * float(exact[0])
    assert float(short[-10:].mean()) == pytest.approx(float(exact[-10:].mean()), rel=0.05)


def test_state_on_the_device_is_exact() -> None:
    with pytest.raises(ValueError, match="state_format = 'half': on the device the state is exact"):
        OffloadEngine(gpt2(), device="cpu", state="device", state_format="half")


@pytest.mark.parametrize("state", ["host", "device"])
def test_coupled_decay_trains_what_torchs_adam_trains(state: str) -> None:
    reference = gpt2()
    model = clone(reference)
    groups = torch_adamw(reference, 1e-3, 0.1).param_groups
    optimizer = torch.optim.Adam(
        [{"params": g["params"], "weight_decay": g["weight_decay"]} for g in groups], lr=1e-3, foreach=False
    )
    settings = AdamW(lr=1e-3, weight_decay=0.1, coupled_decay=True)
    with OffloadEngine(model, optimizer=settings, state=state, device=SeparateMemory()) as engine:  # type: ignore[arg-type]
        for ids in batches(5):
            loss_of(reference, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.backward(loss_of(model, ids))
            engine.step()
        engine.wait()
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5, msg=name)
