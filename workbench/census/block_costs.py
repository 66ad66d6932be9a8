"""What one real block keeps, takes and launches, from four runs of it at each compute width.

For 16 bits the block runs in float64: every tensor in the compute dtype is then float64, and those that its code
makes fp32 on purpose stay fp32, so that both are counted for what they are. CPUs are slow in 16 bits.

Invariant: bytes are counted beside parameters, buffers, parameters' gradients and what all blocks share.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.census.accelerator import FusedDropout
from workbench.census.amounts import (
    Recording,
    alive_after,
    curve,
    fit,
    fit_phase,
    operations,
    peak,
)
from workbench.census.cut_model import Call, hidden_of, seeded
from workbench.census.tracker import StorageTracker
from workbench.plan.census import BlockCost, ComputeWidth, Curve

FORWARD, BACKWARD = 0, 1
DTYPES: dict[ComputeWidth, torch.dtype] = {"32": torch.float32, "16": torch.float64}


class BlockRuns:
    """The runs of one block at one width: `calls` are what it was called with at `four_sizes(tokens)`."""

    def __init__(self, block: nn.Module, calls: Sequence[Call], tokens: int, width: ComputeWidth) -> None:
        self._block = block
        self._calls = calls
        self._tokens = tokens
        self._width = width

    def cost(self) -> tuple[BlockCost, Curve]:
        """The costs on a CPU, and the curve of the forward's products."""
        return self._measure(contextlib.nullcontext())

    def accelerator_cost(self) -> BlockCost | None:
        """The costs on an accelerator; None where they are the same."""
        mode = FusedDropout()
        with mode:
            record_forward(self._block, self._calls[0], self._width)
        return self._measure(FusedDropout())[0] if mode.met else None

    def _measure(self, mode: contextlib.AbstractContextManager[Any]) -> tuple[BlockCost, Curve]:
        tokens = self._tokens
        with mode:
            alone = [record_forward(self._block, call, self._width) for call in self._calls]
        graphs = [record_training(self._block, call, self._width, mode) for call in self._calls]
        cost = BlockCost(
            input=curve(fit([r.sizes[0] for r in alone], tokens)),
            saved=alive_after(graphs, FORWARD, tokens),
            forward_peak=peak(alone, FORWARD, tokens),
            graph_peak=peak(graphs, FORWARD, tokens),
            backward_peak=peak(graphs, BACKWARD, tokens),
            element_bytes=fit_phase(graphs, FORWARD, "element_bytes", tokens),
            backward_element_bytes=fit_phase(graphs, BACKWARD, "element_bytes", tokens),
            operations=operations(graphs, FORWARD),
            backward_operations=operations(graphs, BACKWARD),
        )
        return cost, fit_phase(graphs, FORWARD, "flops", tokens)


def record_forward(block: nn.Module, call: Call, width: ComputeWidth) -> Recording:
    """A forward without a graph; storage 0 is the hidden states that go in."""
    hidden, args, kwargs = call.fresh(_dtype(block, width))
    tracker = StorageTracker(narrow=_stands_in(hidden, width))
    tracker.count(hidden)
    with _undisturbed(), torch.no_grad(), tracker:
        block(*args, **kwargs)
    return tracker.recording


def record_training(
    block: nn.Module,
    call: Call,
    width: ComputeWidth,
    mode: contextlib.AbstractContextManager[Any] | None = None,
) -> Recording:
    """A forward with a graph (phase 0) and its backward (phase 1), within `mode`; storage 0 is what goes in."""
    hidden, args, kwargs = call.fresh(_dtype(block, width))
    hidden.requires_grad_()
    tracker = StorageTracker(narrow=_stands_in(hidden, width))
    tracker.count(hidden)
    mode = mode or contextlib.nullcontext()
    with _undisturbed(), _gradients_dropped(block, tracker):
        with mode, tracker:
            result = block(*args, **kwargs)
        end = _End.apply(hidden_of(result, hidden))  # type: ignore[no-untyped-call]
        del result
        gc.collect()
        tracker.mark()
        with mode, tracker:
            end.backward()
    return tracker.recording


class _End(torch.autograd.Function):
    """Takes the place of the blocks that follow: holds nothing of what it is given, and gives a gradient for it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = hidden.shape, hidden.dtype
        return torch.zeros((), dtype=hidden.dtype)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        return torch.empty(ctx.shape, dtype=ctx.dtype)


@contextlib.contextmanager
def _gradients_dropped(block: nn.Module, tracker: StorageTracker) -> Iterator[None]:
    def drop(parameter: Tensor) -> None:
        assert parameter.grad is not None
        tracker.leave_out(parameter.grad)
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(drop) for p in block.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Memory goes when nobody refers to it, not when the collector happens to run; random numbers are the same."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with seeded():
            yield
    finally:
        if enabled:
            gc.enable()


def set_dtype(block: nn.Module, dtype: torch.dtype) -> None:
    """Cast the block's parameters one at a time; buffers stay as they are, as in a run."""
    for parameter in block.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def _dtype(block: nn.Module, width: ComputeWidth) -> torch.dtype:
    """Of the block's parameters: what it computes in."""
    return next((p.dtype for p in block.parameters() if p.is_floating_point()), DTYPES[width])


def _stands_in(hidden: Tensor, width: ComputeWidth) -> bool:
    return width == "16" and hidden.dtype == torch.float64
