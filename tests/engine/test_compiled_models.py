"""torch.compile: of a block's forward it works, of a module it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS
from small_models import SeparateMemory, batches, gpt2, loss_of

from workbench.engine import OffloadEngine


def train(model: Any, **options: Any) -> list[float]:
    losses = []
    with OffloadEngine(
        model, optimizer=SETTINGS, device=SeparateMemory(), precision="fp32", **options
    ) as engine:
        for ids in batches(3):
            loss = loss_of(model, ids)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("weights", ["device", "host"])
def test_blocks_whose_forward_is_compiled_train_alike(weights: str) -> None:
    runs = 0

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal runs
            runs += 1
            return graph.forward(*arguments)

        return run

    model = gpt2()
    for block in model.transformer.h:
        block.forward = torch.compile(block.forward, backend=backend)
    assert train(model, weights=weights) == train(gpt2(), weights=weights)
    assert runs == 3 * 2 * 2, "3 steps of 2 blocks, each in forward and in recompute"


def compiled_blocks(model: Any) -> Any:
    for number, block in enumerate(model.transformer.h):
        model.transformer.h[number] = torch.compile(block)
    return model


def compiled_in_place(model: Any) -> Any:
    model.transformer.h[1].compile()
    return model


@pytest.mark.parametrize(
    ("compile", "name"),
    [
        (torch.compile, "the model"),
        (compiled_blocks, r"transformer\.h\.0"),
        (compiled_in_place, r"transformer\.h\.1"),
    ],
)
def test_a_module_that_is_compiled_is_refused(compile: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^{name} is compiled as a module.*block\.forward = torch\.compile"
    ):
        OffloadEngine(compile(gpt2()), device="cpu")
