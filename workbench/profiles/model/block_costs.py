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

from workbench.plan.model_profile import BlockCost, ComputeWidth, Curve
from workbench.profiles.model.amounts import (
    Recording,
    alive_after,
    curve,
    fit,
    fit_phase,
    made_and_gone,
    operations,
    peak,
)
from workbench.profiles.model.cut_model import Call, hidden_of, seeded
from workbench.profiles.model.stand_ins import AttentionOf16Bits, FusedDropout
from workbench.profiles.model.tracker import StorageTracker

FORWARD, BACKWARD = 0, 1
DTYPES: dict[ComputeWidth, torch.dtype] = {"32": torch.float32, "16": torch.float64}


class BlockRuns:
    """The runs of one block, in the dtype that its parameters have.

    `calls` are what it was called with at `four_sizes(tokens)`.
    """

    def __init__(self, block: nn.Module, calls: Sequence[Call], tokens: int) -> None:
        self._block = block
        self._calls = calls
        self._tokens = tokens

    def cost(self, *, fused_dropout: bool = False) -> BlockCost:
        """The costs on a CPU; those on an accelerator with `fused_dropout`."""
        tokens = self._tokens
        alone = [record_forward(self._block, call, fused_dropout=fused_dropout) for call in self._calls]
        graphs = [record_training(self._block, call, fused_dropout=fused_dropout) for call in self._calls]
        return BlockCost(
            input=curve(fit([r.sizes[0] for r in alone], tokens)),
            saved=alive_after(graphs, FORWARD, tokens),
            passing=made_and_gone(graphs, FORWARD, tokens),
            forward_peak=peak(alone, FORWARD, tokens),
            graph_peak=peak(graphs, FORWARD, tokens),
            backward_peak=peak(graphs, BACKWARD, tokens),
            element_bytes=fit_phase(graphs, FORWARD, "element_bytes", tokens),
            backward_element_bytes=fit_phase(graphs, BACKWARD, "element_bytes", tokens),
            operations=operations(graphs, FORWARD),
            backward_operations=operations(graphs, BACKWARD),
        )

    def flops(self) -> Curve:
        """Of a forward's products."""
        alone = [record_forward(self._block, call) for call in self._calls]
        return fit_phase(alone, FORWARD, "flops", self._tokens)

    def has_dropout(self) -> bool:
        _, args, kwargs = self._calls[0].fresh(_dtype(self._block))
        mode = FusedDropout()
        with seeded(), torch.no_grad(), mode:
            self._block(*args, **kwargs)
        return mode.met


def record_forward(block: nn.Module, call: Call, *, fused_dropout: bool = False) -> Recording:
    """A forward without a graph; storage 0 is the hidden states that go in."""
    hidden, args, kwargs = call.fresh(_dtype(block))
    tracker = StorageTracker(narrow=hidden.dtype == DTYPES["16"])
    tracker.count(hidden)
    with _undisturbed(), torch.no_grad(), _as_there(fused_dropout), tracker:
        block(*args, **kwargs)
    return tracker.recording


def record_training(block: nn.Module, call: Call, *, fused_dropout: bool = False) -> Recording:
    """A forward with a graph (phase 0) and its backward (phase 1); storage 0 is the hidden states that go in."""
    hidden, args, kwargs = call.fresh(_dtype(block))
    hidden.requires_grad_()
    tracker = StorageTracker(narrow=hidden.dtype == DTYPES["16"])
    tracker.count(hidden)
    with _undisturbed(), _gradients_dropped(block, tracker):
        with _as_there(fused_dropout), tracker:
            result = block(*args, **kwargs)
        end = _End.apply(hidden_of(result, hidden))  # type: ignore[no-untyped-call]
        del result
        gc.collect(0)  # all that the run has made is young: the collector is off
        tracker.mark()
        gradient = torch.ones_like(end)
        with tracker:
            end.backward(gradient)
    return tracker.recording


@contextlib.contextmanager
def _as_there(fused_dropout: bool) -> Iterator[None]:
    with AttentionOf16Bits(), FusedDropout() if fused_dropout else contextlib.nullcontext():
        yield


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
    enabled = gc.isenabled()
    gc.disable()
    try:
        with seeded():
            yield
    finally:
        if enabled:
            gc.enable()


def set_dtype(block: nn.Module, dtype: torch.dtype) -> None:
    """Cast the block's parameters one at a time; buffers stay as they are, as in a run.

    Where some are frozen, those that are trained are an adapter's, which stay fp32.
    """
    adapted = not all(parameter.requires_grad for parameter in block.parameters())
    for parameter in block.parameters():
        if parameter.is_floating_point() and not (adapted and parameter.requires_grad):
            parameter.data = parameter.data.to(dtype)


def _dtype(block: nn.Module) -> torch.dtype:
    """Of the block's parameters: what it computes in."""
    return next(p.dtype for p in block.parameters() if p.is_floating_point())
