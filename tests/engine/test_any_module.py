"""What plain torch gives, for modules of every kind: tied, frozen, unused, mixed, without blocks."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from small_models import CHUNK_BYTES, MODELS, SeparateMemory, batches, clone, loss_of, torch_adamw
from torch import Tensor, nn

from workbench.engine import AdamW, OffloadEngine
from workbench.engine.blocks.discovery import find_blocks, find_units
from workbench.engine.devices.device import CpuDevice, Device
from workbench.timeline import Lane

LR, DECAY = 1e-2, 0.1
DEVICES: dict[str, Callable[[], Device]] = {
    "shared": CpuDevice,
    "separate": lambda: SeparateMemory(seed=3),
}


class Sometimes(nn.Module):
    """Two branches of which a batch uses one, a frozen layer, a parameter read without its module's call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.branches = nn.ModuleDict({"left": nn.Linear(8, 1), "right": nn.Linear(8, 1)})
        self.reached_past = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, branch: str) -> Tensor:
        hidden = self.frozen(torch.tanh(self.inner(x)))
        hidden = torch.nn.functional.linear(hidden, self.reached_past.weight)
        out: Tensor = self.branches[branch](hidden) * self.scale
        return out.square().mean()


@pytest.mark.parametrize("clipping", [0.0, 1e-3])
@pytest.mark.parametrize("state", ["host", "device"])
@pytest.mark.parametrize("device", DEVICES)
def test_parameters_that_get_no_gradient_in_some_steps_stay_and_count_their_own_steps(
    device: str, state: str, clipping: float
) -> None:
    torch.manual_seed(0)
    reference = Sometimes()
    model = clone(reference)
    optimizer = torch_adamw(reference, LR, DECAY, foreach=False)
    frozen = model.frozen.weight.clone()
    with OffloadEngine(
        model,
        optimizer=AdamW(lr=LR, weight_decay=DECAY),
        device=DEVICES[device](),
        state=state,  # type: ignore[arg-type]
        gradient_clipping=clipping,
        gradient_accumulation=2,
        chunk_bytes=CHUNK_BYTES,
    ) as engine:
        for step, branches in enumerate(
            (("left", "left"), ("right", "right"), ("left", "right"), ("right", "left"))
        ):
            for micro, branch in enumerate(branches):
                x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + micro))
                (reference(x, branch) / 2).backward()
                engine.backward(model(x, branch))
            if clipping:
                torch.nn.utils.clip_grad_norm_(reference.parameters(), clipping)
            optimizer.step()
            optimizer.zero_grad()
            engine.step().result()
        counted = engine.counters()["parameter_steps"]
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)
    assert torch.equal(model.frozen.weight, frozen)
    assert counted["branches.left.weight"] == 3 and counted["inner.weight"] == 4
    assert "frozen.weight" not in counted and counted["reached_past.bias"] == 0


class SlowUpload(SeparateMemory):
    """New weights come up late."""

    def before_task(self, lane: Lane) -> None:
        if lane is Lane.UPLOAD:
            time.sleep(0.02)


class ReadsAhead(nn.Module):
    """Blocks, and a last layer whose weight is read first of all and whose module is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.first(torch.nn.functional.linear(x, self.last.weight))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return hidden.square().mean()


def test_a_parameter_that_is_read_without_its_modules_call_is_waited_for_as_well() -> None:
    torch.manual_seed(0)
    start = ReadsAhead()
    outcomes = []
    for overlap in ("serial", "exact"):
        model = clone(start)
        with OffloadEngine(
            model,
            optimizer=AdamW(lr=LR),
            device=SlowUpload(),
            overlap=overlap,  # type: ignore[arg-type]
            gradient_clipping=1.0,
            chunk_bytes=CHUNK_BYTES,
        ) as engine:
            assert [s.kind for s in engine.layout.units] == ["outer", "block", "block", "block", "outer"]
            losses = []
            for step in range(4):
                loss = model(torch.randn(5, 8, generator=torch.Generator().manual_seed(step)))
                losses.append(loss.item())
                engine.backward(loss)
                engine.step()
        outcomes.append(losses)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("device", DEVICES)
def test_tied_embeddings_stay_tied_and_train_as_in_torch(device: str) -> None:
    reference = MODELS["gpt2"]()
    model = clone(reference)
    optimizer = torch_adamw(reference, LR, DECAY, foreach=False)
    with OffloadEngine(
        model, optimizer=AdamW(lr=LR, weight_decay=DECAY), device=DEVICES[device](), chunk_bytes=CHUNK_BYTES
    ) as engine:
        assert model.lm_head.weight is model.transformer.wte.weight
        for ids in batches(3):
            loss_of(reference, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.backward(loss_of(model, ids))
            engine.step()
        engine.wait()
    torch.testing.assert_close(model.lm_head.weight, reference.lm_head.weight, rtol=1e-4, atol=1e-4)


def test_a_short_last_step_is_the_mean_over_the_micro_batches_it_has() -> None:
    reference, ids = MODELS["llama"](), batches(2)
    model = clone(reference)
    optimizer = torch_adamw(reference, LR, 0.0, foreach=False)
    for part in ids:
        (loss_of(reference, part) / 2).backward()
    optimizer.step()
    with OffloadEngine(
        model, optimizer=AdamW(lr=LR), device=SeparateMemory(1), gradient_accumulation=5
    ) as engine:
        for part in ids:
            engine.backward(loss_of(model, part))
        engine.step().result()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_blocks_are_found_from_the_tree() -> None:
    assert list(find_blocks(MODELS["gpt2"](layers=3))) == [f"transformer.h.{i}" for i in range(3)]
    assert list(find_blocks(MODELS["llama"](layers=1))) == ["model.layers.0"]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == {}
    experts = nn.Module()
    experts.layers = nn.ModuleList(
        nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(4)), "gate": nn.Linear(2, 2)})
        for _ in range(2)
    )
    assert list(find_blocks(experts)) == ["layers.0", "layers.1"]


def test_every_parameter_is_in_one_unit_and_tied_ones_appear_once() -> None:
    for make in MODELS.values():
        model = make()
        found = find_units(model)
        listed = [id(p) for unit in found for p in unit.parameters.values()]
        assert sorted(listed) == sorted(id(p) for p in model.parameters())
        assert [s.kind for s in found] == ["outer", "block", "block", "outer"]
    assert "lm_head.weight" not in [n for s in find_units(MODELS["gpt2"]()) for n in s.parameters]


def test_a_module_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        OffloadEngine(nn.Linear(2, 2).requires_grad_(False), device="cpu")
