"""What is done with a model beside plain training gives torch's result, or is refused in a sentence."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hard_models import memory_of, options_of
from plain_torch import SETTINGS, assert_went_the_same_way, engine_weights
from small_models import clone, torch_adamw
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from workbench.engine import OffloadEngine
from workbench.engine.blocks.discovery import find_blocks, find_units

WIDTH = 8
X = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(torch.tanh(self.a(x)))
        return out


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Checkpointed(Stack):
    """Has re-entrant checkpoints of its own around its blocks."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


class Lists(nn.Module):
    """As many research models are written: lists of lists, whose members alone are called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for one, other in self.layers:
            x = x + other(torch.tanh(one(x)))
        return x


def shared() -> nn.Module:
    model = Stack()
    for block in model.blocks[1:]:
        block.a = model.blocks[0].a
    return model


def with_codes() -> nn.Module:
    model = Stack()
    model.codes = nn.Parameter(torch.arange(5), requires_grad=False)
    model.blocks[1].taken = nn.Parameter(torch.ones(3, dtype=torch.bool), requires_grad=False)
    return model


WAYS = ("weights-disk", "state-host")
"""Streamed weights, and resident ones."""


def engine_on(model: nn.Module, way: str, folder: Path, **more: Any) -> OffloadEngine:
    options = {"device": memory_of(way), **options_of(way, folder), "gradient_accumulation": 1, **more}
    return OffloadEngine(model, optimizer=SETTINGS, threads=2, precision="fp32", **options)


def plain_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def gradient_penalty(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    penalty: Tensor = (gradient.norm(dim=1) - 1).square().mean()
    return penalty


def input_gradient(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    return gradient


def assert_trains_as_torch(
    start: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor], way: str, folder: Path
) -> None:
    model, reference = clone(start), clone(start)
    optimizer = torch_adamw(
        reference, SETTINGS.lr, SETTINGS.weight_decay, betas=SETTINGS.betas, eps=SETTINGS.eps, foreach=False
    )
    with engine_on(model, way, folder) as engine:
        for step in range(3):
            loss(reference, X + step).backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.backward(loss(model, X + step))
            engine.step()
        ours, theirs = engine_weights(engine, model), dict(reference.named_parameters())
        before = clone(start)
        for module in before.modules():
            for name, parameter in list(module._parameters.items()):
                if not parameter.is_floating_point():
                    del module._parameters[name]
        moved = dict(before.named_parameters())
        assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() - moved.keys())
        assert_went_the_same_way(
            {name: ours[name] for name in moved}, {name: theirs[name].detach() for name in moved}, before
        )


class Caching(Stack):
    """Gives its blocks a cache by position, as XLM does: each adds what it sees, and reads all that was added."""

    class Block(Block):
        def forward(self, x: Tensor, cache: DynamicCache | None, layer: int) -> Tensor:
            seen = x if cache is None else cache.update(x[None, None], x[None, None], layer)[0][0, 0]
            out: Tensor = x + self.b(torch.tanh(self.a(seen)))
            return out

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        cache = DynamicCache()
        for layer, block in enumerate(self.blocks):
            x = block(x, cache, layer)
        return x


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make", [Lists, shared, Checkpointed, Caching, with_codes], ids=lambda make: make.__name__
)
def test_a_model_written_another_way_trains_as_torch_does(
    make: Callable[[], nn.Module], way: str, tmp_path: Path
) -> None:
    assert_trains_as_torch(made(make), plain_loss, way, tmp_path)


def test_a_gradient_penalty_is_right_with_resident_weights(tmp_path: Path) -> None:
    assert_trains_as_torch(made(Stack), gradient_penalty, "state-host", tmp_path)


def test_a_gradient_penalty_through_streamed_weights_is_refused(tmp_path: Path) -> None:
    model = made(Stack)
    with engine_on(model, "weights-disk", tmp_path) as engine:
        with pytest.raises(RuntimeError, match="create_graph=True through blocks whose weights are streamed"):
            gradient_penalty(model, X)
        engine.backward(plain_loss(model, X))
        assert engine.step().result().grad_norm > 0


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_of_an_input_beside_training_is_torchs_and_changes_nothing(
    way: str, tmp_path: Path
) -> None:
    trained = {}
    for looks in (False, True):
        model = made(Stack)
        with engine_on(model, way, tmp_path / str(looks)) as engine:
            for step in range(3):
                if looks:  # before a step, once it is settled, and while it is not
                    reference = made(Stack)
                    reference.load_state_dict(engine_weights(engine, model))
                    torch.testing.assert_close(input_gradient(model, X), input_gradient(reference, X))
                engine.backward(plain_loss(model, X + step))
                report = engine.step()
                if looks and step == 1:
                    input_gradient(model, X)
                report.result()
            trained[looks] = engine_weights(engine, model)
    assert all(torch.equal(trained[True][name], value) for name, value in trained[False].items())


@pytest.mark.parametrize("way", WAYS)
def test_backward_through_weights_that_are_no_more_is_refused(way: str, tmp_path: Path) -> None:
    model = made(Stack)
    engine = engine_on(model, way, tmp_path)
    engine.backward(plain_loss(model, X))
    stale = plain_loss(model, X)
    engine.step()
    with pytest.raises(RuntimeError, match=r"ran before the last engine.step\(\)"):
        engine.backward(stale)
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_model_has_one_engine(way: str, tmp_path: Path) -> None:
    model = made(Stack)
    engine = engine_on(model, way, tmp_path)
    with pytest.raises(ValueError, match=r"another OffloadEngine holds this Stack: call its close\(\) first"):
        engine_on(model, way, tmp_path)
    with pytest.raises(ValueError, match="another OffloadEngine holds this Block"):
        engine_on(model.blocks[1], way, tmp_path)
    engine.backward(plain_loss(model, X))
    engine.step().result()
    engine.close()
    if way != "weights-disk":  # those are lost with the disk's files
        engine_on(model, way, tmp_path).close()


def test_the_model_of_an_engine_that_was_dropped_is_refused(tmp_path: Path) -> None:
    model = made(Stack)
    engine = engine_on(model, "weights-disk", tmp_path, watchdog_s=0)
    engine.backward(plain_loss(model, X))
    engine.step().result()
    lanes = [thread for thread in threading.enumerate() if thread.name.startswith("lane-")]
    del engine
    gc.collect()
    for thread in lanes:
        thread.join(20)
    with pytest.raises(RuntimeError, match=r"dropped without close\(\)"):
        model(X)
    with pytest.raises(ValueError, match=r"dropped without close\(\)"):
        engine_on(model, "weights-disk", tmp_path)


def test_reading_and_loading_the_state_dict_of_an_engines_model(tmp_path: Path) -> None:
    for way in WAYS:
        model = made(Stack)
        engine = engine_on(model, way, tmp_path / way)
        engine.backward(plain_loss(model, X))
        engine.step()
        if way == "weights-disk":
            with pytest.raises(
                RuntimeError, match=r"read engine.weights\(\), or call engine.close\(\) first"
            ):
                model.blocks[0].state_dict()
        else:
            read = {name: value.clone() for name, value in model.state_dict().items()}
            newest = engine_weights(engine, model)
            assert all(torch.equal(read[name], value) for name, value in newest.items())
        with pytest.raises(RuntimeError, match="its next update would undo what is loaded"):
            model.load_state_dict(Stack().state_dict())
        engine.close()
        if way != "weights-disk":  # they are lost with the disk's files
            model.load_state_dict(Stack().state_dict())


def test_what_is_never_called_is_no_block() -> None:
    assert find_blocks(Lists()) == {}
    model = shared()
    of_first = {name for unit in find_units(model) if unit.kind == "outer" for name in unit.parameters}
    assert of_first == {"blocks.0.a.weight", "blocks.0.a.bias"}
