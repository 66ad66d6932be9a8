"""Workbench's optimizer, called as the engine calls it: one table, one step count, one update."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from benchmarks.host_optimizer.buffers import SETTINGS, WARM_UP_SCALES, Buffers
from benchmarks.host_optimizer.contender import Run, UnavailableError, repeat
from benchmarks.host_optimizer.torch_contenders import with_gradients
from workbench.optimizer.host import HostOptimizer, Piece, PieceTable


@cache
def host(threads: int) -> HostOptimizer:
    """The one optimizer of so many threads: contenders that take turns do not need threads of their own."""
    return HostOptimizer(threads)


def make(name: str, buffers: Buffers, threads: int) -> Run:
    """The contender of this name."""
    if name == "sum_of_squares":
        return repeat(sum_of_squares(buffers, threads))
    if name in ("fp32", "host_adamw"):
        moments = buffers.moments("exact")
        tensors = ([buffers.master], [buffers.gradient_fp32], [moments["exp_avg"]], [moments["exp_avg_sq"]])
        return repeat(fp32(*tensors, threads) if name == "fp32" else host_adamw(*tensors[:2], threads))
    state_format, _, ahead = name.partition("_")
    if ahead:
        piece = buffers.split_piece(state_format)  # type: ignore[arg-type]
        piece = replace(piece, records=buffers.records(piece.state_format))
        return repeat(speculate(piece, buffers.gradient_bf16, threads, redo=ahead == "redo"))
    return repeat(update([buffers.split_piece(name)], [buffers.gradient_bf16], threads))  # type: ignore[arg-type]


def fp32(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    threads: int,
) -> Callable[[], None]:
    """Plain float32, with the moments that torch's contenders use."""
    pieces = [
        Piece(master=master, exp_avg=first, exp_avg_sq=second)
        for master, first, second in zip(weights, exp_avg, exp_avg_sq, strict=True)
    ]
    return update(pieces, gradients, threads)


def update(pieces: Sequence[Piece], gradients: Sequence[Tensor], threads: int) -> Callable[[], None]:
    """One step of all pieces in one call, with the step counts that the call needs."""
    optimizer, table = host(threads), PieceTable(pieces)
    for index, gradient in enumerate(gradients):
        table.set_gradient(index, gradient)
    steps = count(len(WARM_UP_SCALES) + 1)

    def step() -> None:
        number = next(steps)
        for index in range(len(table)):
            table.set_step(index, number)
        optimizer.update(table, SETTINGS)

    return step


def speculate(piece: Piece, gradient: Tensor, threads: int, *, redo: bool) -> Callable[[], None]:
    """An update ahead of its verdict, and after it, where `redo`, the road back and forth."""
    optimizer, table = host(threads), PieceTable([piece])
    table.set_gradient(0, gradient)
    steps = count(len(WARM_UP_SCALES) + 1)

    def step() -> None:
        table.set_step(0, next(steps))
        left = optimizer.speculate(table, SETTINGS)
        if left:
            raise RuntimeError(f"{left} elements could not be updated ahead")
        if redo:
            optimizer.redo(table, SETTINGS, 1.0, 0.5)

    return step


def sum_of_squares(buffers: Buffers, threads: int) -> Callable[[], None]:
    """Partial sums and their total, which is what clipping and the finite check need."""
    optimizer = host(threads)
    table = PieceTable([Piece(master=buffers.master, **buffers.moments("exact"))])
    table.set_gradient(0, buffers.gradient_bf16)

    def step() -> None:
        optimizer.sum_of_squares(table)
        float(table.partials.sum())

    return step


def host_adamw(weights: Sequence[Tensor], gradients: Sequence[Tensor], threads: int) -> Callable[[], object]:
    """The drop-in class, which makes its own moments."""
    if importlib.util.find_spec("workbench.optimizer.host_adamw") is None:
        raise UnavailableError("this version of Workbench has no HostAdamW")
    from workbench.optimizer.host_adamw import HostAdamW

    parameters: list[torch.nn.Parameter] = with_gradients(weights, gradients)
    settings: dict[str, Any] = {
        "lr": SETTINGS.lr,
        "betas": SETTINGS.betas,
        "eps": SETTINGS.eps,
        "weight_decay": SETTINGS.weight_decay,
        "threads": threads,
    }
    try:
        step: Callable[[], object] = HostAdamW(parameters, **settings).step
    except TypeError as error:
        raise UnavailableError(f"HostAdamW is called otherwise in this version: {error}") from error
    return step
