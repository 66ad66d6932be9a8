"""The model profile of a [model] table: its parameters, and what one block of each kind keeps, takes and launches.

A block runs forward and backward on the meta device, where nothing is computed and no memory is taken: torch's
operations are followed as shapes, in the very dtype that a run computes in. Only attention and dropout would take
other paths there than on a real device; `_Kernels` gives them the operations that a CPU or an accelerator has.

Invariant: bytes are counted beside parameters, buffers, parameters' gradients and what all blocks share. A profile
never fails because a block cannot be run: its kind then has no costs, and a `problem` that says why.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.profiles.meta_model import (
    Call,
    capture,
    count_parts,
    cut,
    first_blocks,
    hidden_of,
    materialise,
    meta_model,
    model_name,
    pass_blocks,
    quiet_transformers,
    seeded,
    shrink_vocabulary,
    tokens,
)
from workbench.profiles.model_profile import BlockCost, BlockKind, ComputeWidth, Curve, ModelProfile
from workbench.profiles.storage_tracker import Phase, Recording, StorageTracker, after

SEQUENCES = 2
"""A single sequence is a special case in many a kernel."""
LONGEST_RUN = 256
"""Tokens of the shorter of the two runs; the longer one has twice as many."""
DTYPES: dict[ComputeWidth, torch.dtype] = {"32": torch.float32, "16": torch.bfloat16}
FORWARD, BACKWARD = 0, 1


def take_model_profile(
    model_table: Mapping[str, Any], report: Callable[[str], None] | None = None
) -> ModelProfile:
    """Return the model profile of the model that a [model] table describes.

    Raises:
        ConfigurationError: the table describes no model that can be built.
    """
    quiet_transformers()
    profile = count_parts(meta_model(model_table), model_name(model_table))
    if not profile.kinds:
        return profile
    if report is not None:
        report("running a block of each kind without memory")
    length = run_length(profile)
    try:
        model = meta_model(model_table, windows_below=length)
        cut(model, first_blocks(profile))
        shrink_vocabulary(model)
        materialise(model, blocks=False)
        calls = [
            capture(model, first_blocks(profile), tokens(SEQUENCES, each, profile.vocab_size))
            for each in (length, 2 * length)
        ]
        in_chunks = _loss_goes_in_chunks(model, profile)
    except Exception as error:
        problem = f"its blocks could not be run: {_sentence(error)}"
        kinds = tuple(kind.model_copy(update={"problem": problem}) for kind in profile.kinds)
        return profile.model_copy(update={"kinds": kinds})
    kinds = tuple(
        _measured(kind, model.get_submodule(name), [each[name] for each in calls], length)
        for kind, name in zip(profile.kinds, first_blocks(profile), strict=True)
    )
    return profile.model_copy(update={"kinds": kinds, "loss_in_chunks": in_chunks})


def run_length(profile: ModelProfile) -> int:
    """Return the tokens of the shorter of the two runs of a block."""
    return max(1, min(LONGEST_RUN, (profile.positions or 2 * LONGEST_RUN) // 2))


def _loss_goes_in_chunks(model: nn.Module, profile: ModelProfile) -> bool:
    loss = ChunkedLoss(model)
    with pass_blocks(model):
        loss.check(tokens(SEQUENCES, min(16, run_length(profile)), profile.vocab_size), use_cache=False)
    return loss.refusal is None


def _measured(kind: BlockKind, block: nn.Module, calls: Sequence[Call], length: int) -> BlockKind:
    costs: dict[ComputeWidth, BlockCost] = {}
    accelerator: dict[ComputeWidth, BlockCost] = {}
    flops = kind.flops
    try:
        for width, dtype in DTYPES.items():
            set_dtype(block, dtype)
            kernels = _Kernels(on_cpu=True)
            costs[width], products = _run(block, calls, length, kernels)
            if width == "32":
                flops = products
            if kernels.met_dropout:
                accelerator[width], _ = _run(block, calls, length, _Kernels(on_cpu=False))
    except Exception as error:
        return kind.model_copy(update={"problem": f"a block could not be run: {_sentence(error)}"})
    return kind.model_copy(update={"costs": costs, "accelerator": accelerator, "flops": flops})


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# Running a block


def _run(block: nn.Module, calls: Sequence[Call], tokens: int, kernels: _Kernels) -> tuple[BlockCost, Curve]:
    """Return the costs and a forward's products, in the dtype of the block's parameters.

    `calls`: with `tokens` and with twice as many.
    """
    alone = [record_forward(block, call, kernels) for call in calls]
    graphs = [record_training(block, call, kernels) for call in calls]
    again = [record_recompute(block, call, kernels) for call in calls]
    left_out = [after(run.phases[FORWARD], phase) for run, phase in zip(graphs, again, strict=True)]

    def curve(values: Iterable[float]) -> Curve:
        return fit(*values, tokens=tokens)

    cost = BlockCost(
        input=curve(run.sizes[0] for run in alone),
        saved=curve(_alive_bytes(run, FORWARD) for run in graphs),
        passing=curve(_passing_bytes(run) for run in graphs),
        forward_peak=peak(alone, FORWARD, tokens),
        graph_peak=peak(graphs, FORWARD, tokens),
        backward_peak=peak(graphs, BACKWARD, tokens),
        element_bytes=curve(run.phases[FORWARD].element_bytes for run in graphs),
        backward_element_bytes=curve(run.phases[BACKWARD].element_bytes for run in graphs),
        operations=max(run.phases[FORWARD].operations for run in graphs),
        backward_operations=max(run.phases[BACKWARD].operations for run in graphs),
        left_out_flops=curve(phase.flops for phase in left_out),
        left_out_element_bytes=curve(phase.element_bytes for phase in left_out),
        left_out_operations=min(phase.operations for phase in left_out),
    )
    return cost, curve(run.phases[FORWARD].flops for run in alone)


def record_forward(block: nn.Module, call: Call, kernels: TorchFunctionMode | None = None) -> Recording:
    """Record a forward without a graph; storage 0 is the hidden states that go in."""
    parameter = next(block.parameters())
    hidden, args, kwargs = call.fresh(_dtype(block), parameter.device)
    tracker = StorageTracker()
    tracker.count(hidden)
    with _undisturbed(), torch.no_grad(), kernels or contextlib.nullcontext(), tracker:
        block(*args, **kwargs)
    return tracker.recording


def record_training(block: nn.Module, call: Call, kernels: TorchFunctionMode | None = None) -> Recording:
    """Record a forward with a graph (phase 0) and its backward (phase 1); storage 0 is the hidden states that go in."""
    parameter = next(block.parameters())
    hidden, args, kwargs = call.fresh(_dtype(block), parameter.device)
    hidden.requires_grad_()
    tracker = StorageTracker()
    tracker.count(hidden)
    with _undisturbed(), _gradients_dropped(block, tracker):
        with kernels or contextlib.nullcontext(), tracker:
            result = block(*args, **kwargs)
        end = _End.apply(hidden_of(result, hidden))  # type: ignore[no-untyped-call]
        del result
        gc.collect(0)  # all that the run has made is young: the collector is off
        tracker.mark()
        gradient = torch.ones_like(end)
        with tracker:
            end.backward(gradient)
    return tracker.recording


def record_recompute(block: nn.Module, call: Call, kernels: TorchFunctionMode | None = None) -> Phase:
    """Record what a checkpoint computes again: a forward up to where its graph keeps its last tensor."""
    parameter = next(block.parameters())
    hidden, args, kwargs = call.fresh(_dtype(block), parameter.device)
    hidden.requires_grad_()
    tracker = StorageTracker()
    again = Phase()

    def keep(tensor: Tensor) -> Tensor:
        nonlocal again
        again = replace(tracker.recording.phases[FORWARD])
        return tensor

    kept = saved_tensors_hooks(keep, lambda tensor: tensor)
    with _undisturbed(), kernels or contextlib.nullcontext(), tracker, kept:
        block(*args, **kwargs)
    return again


class _End(torch.autograd.Function):
    """Takes the place of the blocks that follow: keeps nothing of its input, and returns a gradient for it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.shape, ctx.like = hidden.shape, hidden.new_empty(0)
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        empty: Tensor = ctx.like.new_empty(ctx.shape)
        return empty


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
    """Free memory when nobody refers to it, not when the collector happens to run; draw the same random numbers."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        with seeded():
            yield
    finally:
        if enabled:
            gc.enable()


def set_dtype(block: nn.Module, dtype: torch.dtype) -> None:
    """Cast the block's parameters; buffers stay as they are, as in a run.

    Where some are frozen, those that are trained are an adapter's, which stay fp32.
    """
    adapted = not all(parameter.requires_grad for parameter in block.parameters())
    for parameter in block.parameters():
        if parameter.is_floating_point() and not (adapted and parameter.requires_grad):
            parameter.data = parameter.data.to(dtype)


def _dtype(block: nn.Module) -> torch.dtype:
    return next(p.dtype for p in block.parameters() if p.is_floating_point())


class _Kernels(TorchFunctionMode):
    """Attention and dropout as a CPU or an accelerator runs them, for tensors on the meta device.

    A CPU takes dropout apart, keeps its mask in the dtype of the values, and has no fused attention with it. An
    accelerator has dropout as one operation that keeps a byte an element, and fuses it into attention.
    `met_dropout`: there was any.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        super().__init__()
        self.met_dropout = False
        self._on_cpu = on_cpu

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in (functional.dropout, torch.dropout):
            return self._dropout(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, func: Any, input: Tensor, p: float = 0.5, *rest: Any, **named: Any) -> Any:
        training = rest[0] if rest else named.get("training", named.get("train", True))
        if not training or not 0 < p < 1:
            return func(input, p, *rest, **named)
        self.met_dropout = True
        return func(input, p, *rest, **named) if self._on_cpu else torch.native_dropout(input, p, True)[0]

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        self.met_dropout = self.met_dropout or dropout_p > 0
        one_width = query.shape[-1] == key.shape[-1] == value.shape[-1]
        if not one_width or (dropout_p and self._on_cpu):
            result: Tensor = torch._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
            return result
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            minus_infinity = torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=query.device)
            attn_mask = torch.where(attn_mask, 0.0, minus_infinity)
        # Fused with dropout, attention keeps what it keeps without, and two numbers.
        fused: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return fused


# From two sizes to any


def fit(short: float, long: float, *, tokens: int) -> Curve:
    """Return the amount that is `short` for `SEQUENCES` of `tokens`, and `long` for as many of twice the tokens.

    More than twice as much grows with pairs of tokens, too; less has a fixed part.
    """
    size = SEQUENCES * tokens
    more = long - 2 * short
    if more >= 0:
        pair = min(more / (2 * size * tokens), long / (4 * size * tokens))
        each = long / (2 * size) - 2 * tokens * pair
        return Curve(per_token=round(each, 6), per_token_pair=round(pair, 6))
    each = max(0.0, (long - short) / size)
    return Curve(per_token=round(each, 6), fixed=round(long - 2 * size * each, 6))


def peak(runs: Sequence[Recording], phase: int, tokens: int) -> Curve:
    """Return the most bytes that are alive at a time within `phase`, for any size.

    Each storage is followed from one size to the other, so that the amount of every moment is known, and which moment
    is the highest may change with the size.
    """
    short, long = runs
    if short.events != long.events or short.marks != long.marks:
        highest = (max(sum(moment) for moment in _moments(r, phase, [(s,) for s in r.sizes])) for r in runs)
        return fit(*highest, tokens=tokens)
    curves = [fit(a, b, tokens=tokens) for a, b in zip(short.sizes, long.sizes, strict=True)]
    amounts = [(curve.per_token, curve.per_token_pair, curve.fixed) for curve in curves]
    moments = set(_moments(short, phase, amounts))

    def highest_at(sequences: int, length: int) -> tuple[float, ...]:
        size = sequences * length
        return max(moments, key=lambda m: (size * (m[0] + length * m[1]) + m[2], m))

    found = dict.fromkeys(highest_at(sequences, 1 << power) for power in range(21) for sequences in (1, 64))
    main, *others = (Curve(per_token=m[0], per_token_pair=m[1], fixed=m[2]) for m in found)
    return main.model_copy(update={"beside": tuple(others)})


def _moments(run: Recording, phase: int, sizes: Sequence[Sequence[float]]) -> Iterator[tuple[float, ...]]:
    """Yield the sum of the `sizes` alive at the beginning of a phase and after each birth in it."""
    start, stop = run.span(phase)
    live = [0.0] * len(sizes[0])
    for number in _alive(run.events[:start]):
        live = [a + b for a, b in zip(live, sizes[number], strict=True)]
    yield tuple(live)
    for event in run.events[start:stop]:
        sign = 1 if event > 0 else -1
        live = [a + sign * b for a, b in zip(live, sizes[abs(event) - 1], strict=True)]
        if event > 0:
            yield tuple(live)


def _alive(events: Iterable[int]) -> set[int]:
    alive: set[int] = set()
    for event in events:
        if event > 0:
            alive.add(event - 1)
        else:
            alive.remove(-event - 1)
    return alive


def _alive_bytes(run: Recording, phase: int) -> int:
    """Return the bytes that are alive when `phase` ends."""
    return sum(run.sizes[number] for number in _alive(run.events[: run.span(phase)[1]]))


def _passing_bytes(run: Recording) -> int:
    """Return the bytes, all together, that are born in the forward and do not outlive it."""
    start, stop = run.span(FORWARD)
    events = set(run.events[start:stop])
    return sum(run.sizes[event - 1] for event in events if event > 0 and -event in events)
