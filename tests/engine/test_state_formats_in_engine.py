"""The formats of the state in the engine: which parameters they hold, and curves that stay beside those of `exact`."""

from __future__ import annotations

import pytest
import torch
from plain_torch import train_engine
from small_models import SeparateMemory, batches, clone, gpt2, llama, loss_of, torch_adamw

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.devices.device import CpuDevice

FORMATS = ["half", "compact"]


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


def test_a_curve_of_60_steps_stays_beside_exacts() -> None:
    start, data, settings = llama(), [[ids] for ids in batches(60)], AdamW(lr=1e-2, weight_decay=0.1)
    exact, half, compact = (
        torch.tensor(
            train_engine(start, data, CpuDevice(), settings=settings, state_format=state_format).losses
        )
        for state_format in ("exact", *FORMATS)
    )
    assert float(exact[-10:].mean()) < 0.7 * float(exact[0])
    for short in (half, compact):
        assert float(short[-10:].mean()) == pytest.approx(float(exact[-10:].mean()), rel=0.05)


def test_state_on_the_device_is_exact() -> None:
    with pytest.raises(ValueError, match="state_format = 'half': the state on the device is always exact"):
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
