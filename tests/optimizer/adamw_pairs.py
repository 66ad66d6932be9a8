"""Single updates; and HostAdamW and torch.optim.AdamW on the same parameters and gradients, to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from workbench.layout import StateFormat
from workbench.optimizer.host import AdamW, HostOptimizer, Piece, PieceTable
from workbench.optimizer.host_adamw import HostAdamW

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7, 13), (256,), (3, 5, 17), (1025,)]
FORMATS: list[StateFormat] = ["exact", "half", "compact"]
DECAYING = AdamW(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


def update(
    pieces: Sequence[Piece],
    gradients: Sequence[Tensor | None],
    settings: AdamW = DECAYING,
    steps: int = 1,
    scale: float = 1.0,
    threads: int = 1,
) -> None:
    """Take one update, the `steps`-th of each piece."""
    table = PieceTable(pieces)
    table.set_gradients(gradients)
    table.set_steps([steps] * len(pieces))
    with HostOptimizer(threads) as optimizer:
        optimizer.update(table, settings, scale)


def values(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameters(
    shapes: Sequence[Sequence[int]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Parameter]:
    """The same at each call."""
    return [Parameter(values(shape, seed + index, dtype)) for index, shape in enumerate(shapes)]


def host(params: Any, **options: Any) -> HostAdamW:
    return HostAdamW(params, threads=1, **{**SETTINGS, **options})


def torchs(params: Any, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, **{**SETTINGS, "foreach": False, **options})


def listed(optimizer: torch.optim.Optimizer) -> list[Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def take_steps(
    *optimizers: torch.optim.Optimizer, first: int = 0, count: int = 5, dtype: torch.dtype | None = None
) -> None:
    """The same gradients for each optimizer, none of which is zero, new tensors at each step."""
    for step in range(first, first + count):
        for optimizer in optimizers:
            for index, parameter in enumerate(listed(optimizer)):
                gradient = values(parameter.shape, 1000 * step + index)
                parameter.grad_dtype = None
                parameter.grad = gradient.to(dtype or parameter.dtype)
            optimizer.step()


def same(a: Tensor, b: Tensor) -> bool:
    """The same dtype, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def same_entries(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)


def same_states(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a["state"].keys() == b["state"].keys() and all(
        same_entries(entry, b["state"][index]) for index, entry in a["state"].items()
    )


def assert_follows(ours: HostAdamW, theirs: torch.optim.Optimizer) -> None:
    """Assert the same step counts and nearly the same moments and parameters, for gradients of `take_steps`.

    Not the bits, which test_host_update.py asserts: where torch's kernels have no fma, they round a product more. A
    step adds at most 2^-24 of a term below 10 to exp_avg, and to exp_avg_sq, whose terms have one sign, two roundings
    and, with coupled decay, 2^-24 of twice the gradient.
    """
    close = torch.testing.assert_close
    largest = 10 / (1 - max(group["betas"][0] for group in ours.param_groups))
    for mine, other in zip(listed(ours), listed(theirs), strict=True):
        assert (mine in ours.state) == (other in theirs.state)
        if mine in ours.state:
            state, expected = ours.state[mine], theirs.state[other]
            assert same(state["step"], expected["step"])
            close(state["exp_avg"], expected["exp_avg"], rtol=0, atol=largest * 2.0**-24)
            rtol = (int(state["step"]) + 1) * 2.0**-23
            close(state["exp_avg_sq"], expected["exp_avg_sq"], rtol=rtol, atol=10 * 2.0**-24)
        close(mine, other, rtol=1e-5, atol=1e-6)


def master_of(optimizer: HostAdamW, index: int = 0) -> Tensor:
    master: Tensor = optimizer.state_dict()["state"][index]["master"]
    return master
