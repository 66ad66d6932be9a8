"""Device memory that runs out, on a virtual CUDA device that has too little of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from plain_torch import SETTINGS
from small_models import CHUNK_BYTES, batches, clone, gpt2, loss_of

from workbench.engine import OffloadEngine
from workbench.virtual_cuda import VirtualCuda

SMALL, LARGE = batches(4, size=1), batches(1, size=64)[0]


@pytest.fixture(scope="module")
def start() -> Any:
    return gpt2(layers=4)


@contextmanager
def engine_of(start: Any, device_bytes: int, **options: Any) -> Iterator[tuple[OffloadEngine, VirtualCuda]]:
    model = clone(start)
    with (
        VirtualCuda(device_bytes=device_bytes) as cuda,
        OffloadEngine(
            model, optimizer=SETTINGS, device="cuda", precision="fp32", chunk_bytes=CHUNK_BYTES, **options
        ) as engine,
    ):
        yield engine, cuda


def forward(engine: OffloadEngine, ids: torch.Tensor) -> torch.Tensor:
    return loss_of(engine.model, ids.to("cuda"))


def needed(start: Any, **options: Any) -> tuple[int, int]:
    """Return the device's peak bytes in the large batch's forward, and in its backward, after a small step."""
    with engine_of(start, 1 << 30, **options) as (engine, cuda):
        engine.backward(forward(engine, SMALL[0]))
        engine.step().result()
        loss = forward(engine, LARGE)
        in_forward = cuda.memory.most_allocated
        engine.backward(loss)
        return in_forward, cuda.memory.most_allocated


def less_than(nbytes: int) -> int:
    """Return fewer bytes, a multiple of every element's size."""
    return (nbytes - 1) // 512 * 512


def fails(engine: OffloadEngine, ids: torch.Tensor, *, backward: bool) -> str:
    """Return the message of the error that a batch ends in; its tensors are gone with it."""
    try:
        loss = forward(engine, ids)
        if backward:
            engine.backward(loss)
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("there was enough memory")


@pytest.mark.parametrize("options", [{}, {"weights": "host"}, {"activations": "host"}], ids=str)
def test_after_a_forward_that_ran_out_a_smaller_micro_batch_trains_as_if_it_had_not_been(
    start: Any, options: dict[str, Any]
) -> None:
    too_little = less_than(needed(start, **options)[0] * 9 // 10)

    def losses(device_bytes: int, *, failing: bool) -> list[float]:
        with engine_of(start, device_bytes, **options) as (engine, _):
            found = []
            for ids in SMALL:
                if failing:
                    fails(engine, LARGE, backward=False)
                loss = forward(engine, ids)
                engine.backward(loss)
                engine.step()
                found.append(loss.item())
            return found

    assert losses(too_little, failing=True) == losses(1 << 30, failing=False)


def test_a_backward_that_ran_out_says_that_the_engine_has_stopped(start: Any) -> None:
    in_forward, in_backward = needed(start)
    assert in_forward < in_backward
    with engine_of(start, less_than(in_backward)) as (engine, _):
        message = fails(engine, LARGE, backward=True)
        assert "the engine holds device: weights" in message and "create it again with smaller" in message
        with pytest.raises(RuntimeError, match="the engine stopped after an error"):
            engine.backward(forward(engine, SMALL[0]))
