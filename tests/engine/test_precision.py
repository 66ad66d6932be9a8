"""16-bit weights: what they are stored in, what they are computed in, and the search for fp16's loss scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import CHUNK_BYTES, SeparateMemory, batches, clone, gpt2, llama, loss_of

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.device import CpuDevice, Device
from workbench.engine.loss_scale import HYSTERESIS, INITIAL_SCALE, WINDOW_STEPS, LossScale
from workbench.optimizer.reference import ReferenceParameter, join_float32, split_float32

PLACES = [("device", "host"), ("host", "host"), ("host", "disk"), ("disk", "disk")]
SETTINGS = AdamW(lr=1e-2, weight_decay=0.1)


def open_engine(model: torch.nn.Module, device: Device, tmp_path: Path, **options: Any) -> OffloadEngine:
    chosen = {"chunk_bytes": CHUNK_BYTES, "threads": 2, "disk_path": tmp_path, **options}
    return OffloadEngine(model, optimizer=SETTINGS, device=device, **chosen)


def masters(engine: OffloadEngine) -> dict[str, torch.Tensor]:
    """The fp32 master of every parameter, from wherever it is kept."""
    kept = {name: t if isinstance(t, torch.Tensor) else t.read(0, t.numel()) for name, t in engine.state()}
    found = {}
    for shard in engine.layout.shards:
        prefix = f"{shard.index:04d}-{shard.name}"
        for s in shard.segments:
            place = slice(s.offset, s.offset + s.numel)
            if f"{prefix}/master" in kept:
                value = kept[f"{prefix}/master"][place]
            else:
                value = join_float32(kept[f"{prefix}/high"][place], kept[f"{prefix}/low"][place])
            found[s.name] = value.view(s.shape).clone()
    return found


def reference(
    start: torch.nn.Module, dtype: torch.dtype, data: list[torch.Tensor], scale: float = 1.0
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """fp32 arithmetic on weights rounded to `dtype`, gradients rounded to it, AdamW on fp32 masters."""
    model = clone(start)
    kept = {
        n: ReferenceParameter.fresh(p.detach().clone(), decay=p.dim() >= 2)
        for n, p in model.named_parameters()
    }
    losses = []
    for ids in data:
        for name, parameter in model.named_parameters():
            master = kept[name].parameter
            rounded = split_float32(master)[0] if dtype == torch.bfloat16 else master.to(dtype)
            parameter.data = rounded.float()
            parameter.grad = None
        loss = loss_of(model, ids)
        (loss * scale).backward()
        losses.append(loss.item())
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            kept[name].update(parameter.grad.to(dtype).float() / scale, SETTINGS)
    return losses, {name: k.parameter for name, k in kept.items()}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("clipping", [0.0, 1e9])
@pytest.mark.parametrize(("weights", "state"), PLACES)
def test_bf16_weights_computed_in_fp32_train_as_rounded_weights_do(
    weights: str, state: str, clipping: float, shared: bool, tmp_path: Path
) -> None:
    start, data = llama(), batches(5)
    losses, wanted = reference(start, torch.bfloat16, data)
    model = clone(start)
    device = CpuDevice() if shared else SeparateMemory(seed=3)
    options = {"weights": weights, "state": state, "gradient_clipping": clipping, "compute": "fp32"}
    with open_engine(model, device, tmp_path, precision="bf16", **options) as engine:
        ours = []
        for ids in data:
            loss = loss_of(model, ids)
            assert loss.dtype == torch.float32
            engine.backward(loss)
            engine.step()
            ours.append(loss.item())
        assert ours == pytest.approx(losses, rel=1e-5)
        for name, master in masters(engine).items():
            moved = float((wanted[name] - dict(start.named_parameters())[name]).norm())
            assert float((master - wanted[name]).norm()) <= 1e-3 * moved + 1e-6, name
        stored = {n: w for shard in engine.weights() for n, w in shard.items()}
        assert {w.dtype for w in stored.values()} == {torch.bfloat16}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("weights", "state"), PLACES)
def test_fp16_weights_train_on_an_fp32_master_under_a_loss_scale(
    weights: str, state: str, shared: bool, tmp_path: Path
) -> None:
    start, data = gpt2(), batches(5)
    model = clone(start)
    device = CpuDevice() if shared else SeparateMemory(seed=4)
    with open_engine(model, device, tmp_path, precision="fp16", weights=weights, state=state) as engine:
        ours, scales = [], []
        for ids in data:
            loss = loss_of(model, ids)
            engine.backward(loss)
            ours.append(loss.item())
            scales.append(engine.step().result().loss_scale)
        assert scales == [INITIAL_SCALE] * 5
        losses, wanted = reference(start, torch.float16, data, scale=INITIAL_SCALE)
        assert ours == pytest.approx(losses, rel=1e-5)
        for name, master in masters(engine).items():
            moved = float((wanted[name] - dict(start.named_parameters())[name]).norm())
            assert float((master - wanted[name]).norm()) <= 1e-3 * moved + 1e-6, name


def test_an_overflow_in_fp16_is_skipped_and_lowers_the_scale_when_patience_is_used_up(tmp_path: Path) -> None:
    model = gpt2()
    ids = batches(1)[0]
    with open_engine(model, CpuDevice(), tmp_path, precision="fp16") as engine:
        before = masters(engine)
        seen = []
        for _ in range(HYSTERESIS + 1):
            engine.backward(loss_of(model, ids) * 1e6)  # beyond fp16's largest under any scale so far
            result = engine.step().result()
            assert result.skipped
            seen.append(result.loss_scale)
        assert seen == [INITIAL_SCALE, INITIAL_SCALE, INITIAL_SCALE / 2]
        after = masters(engine)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert set(engine.counters()["parameter_steps"].values()) == {0}


def test_a_loss_scale_halves_after_its_patience_doubles_after_its_window_and_goes_on_where_it_was_saved() -> (
    None
):
    scale = LossScale()
    for _ in range(HYSTERESIS):
        scale.after(finite=False)
    assert scale.value == INITIAL_SCALE / 2
    scale.after(finite=False)
    assert scale.value == INITIAL_SCALE / 4
    for _ in range(WINDOW_STEPS - 1):
        scale.after(finite=True)
    again = LossScale()
    again.load(scale.as_dict())
    for one in (scale, again):
        assert one.value == INITIAL_SCALE / 4
        one.after(finite=True)
        assert one.value == INITIAL_SCALE / 2
    for _ in range(40):
        scale.after(finite=False)
    assert scale.value == 1.0 and scale.exhausted


def test_16_bit_storage_with_fp32_compute_needs_checkpointing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="activation_checkpointing = False"):
        open_engine(
            gpt2(), CpuDevice(), tmp_path, precision="bf16", compute="fp32", activation_checkpointing=False
        )
