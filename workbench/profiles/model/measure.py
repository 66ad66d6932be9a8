"""How long the pieces of a model take here: each kind of block, and all that is not a block, at a run's own sizes.

Invariant: each piece is timed by itself, never by a difference of two others, with its own code and its full width;
what a mask costs is the difference of an attention with and without it, each timed by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.arithmetic.precision import DTYPES
from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.errors import WorkbenchError
from workbench.formatting import GIB
from workbench.plan.memory.free import free_host_bytes
from workbench.plan.model_profile import ModelProfile
from workbench.plan.time.times import KindTimes, ModelTimes
from workbench.profiles.machine.others import Others
from workbench.profiles.model.building import meta_model
from workbench.profiles.model.cut_model import (
    Call,
    capture,
    hidden_of,
    pass_blocks,
    real_model,
    seeded,
)
from workbench.profiles.model.masked_attention import attentions, time_attention
from workbench.profiles.model.stopwatch import MatrixSpeed, Stopwatch
from workbench.profiles.model.take import first_blocks, quiet_transformers, room_needed

FEWEST_TOKENS = 16
LEAST_ROUNDS, MOST_ROUNDS = 3, 7
WORK_OF_A_ROUND = 4
"""Forwards that a round comes to: one without a graph, one with, and a backward of two."""


def measure_times(
    model_table: Mapping[str, Any],
    model_profile: ModelProfile,
    *,
    sequences: int,
    tokens: int,
    dtype: str,
    device: str = "cpu",
    budget_s: float = 30.0,
    fingerprint: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> ModelTimes:
    """Seconds of each kind of block and of the rest for a micro-batch of `sequences` x `tokens` computed in `dtype`.

    Where the fewest rounds of that would take more than `budget_s`, fewer sequences are taken, then fewer tokens; the
    times say how many. `dtype`: "float32", "bfloat16" or "float16". `fingerprint`: of this machine. Medians of several
    rounds; the matrix speed is measured between them.

    Raises:
        ConfigurationError: the table names no model that can be built.
        WorkbenchError: one block of each kind does not fit in memory.
    """
    quiet_transformers()
    where, computed_in = torch.device(device), DTYPES[dtype]
    needed, free = room_needed(model_profile, small=False), free_host_bytes()
    if needed > free:
        raise WorkbenchError(
            f"the blocks of {model_profile.model} cannot be timed: that takes {needed / GIB:,.1f} GiB of host memory, "
            f"and {free / GIB:,.1f} GiB are free"
        )
    others = Others()
    matrix = MatrixSpeed(computed_in, where)
    for _ in range(LEAST_ROUNDS):
        matrix.measure()
    affords = matrix.median() * budget_s / (LEAST_ROUNDS + 1)
    sequences, tokens = affordable(model_profile, sequences, tokens, affords)
    tell(f"timing {sequences} x {tokens} tokens")
    names = first_blocks(model_profile)
    model = real_model(partial(meta_model, model_table), names, small=False)
    for parameter in model.parameters():
        kept = model_profile.adapter and parameter.requires_grad
        parameter.data = parameter.data.to(device=where, dtype=parameter.dtype if kept else computed_in)
    for module in model.modules():
        module._buffers.update({n: b.to(where) for n, b in module._buffers.items() if b is not None})
    with seeded():
        ids = torch.randint(0, model_profile.vocab_size, (sequences, tokens)).to(where)
        calls = capture(model, names, ids)
        found = {name: attentions(model.get_submodule(name), calls[name], computed_in) for name in names}
        stopwatch = Stopwatch(where)
        loss = ChunkedLoss(model)
        if not model_profile.loss_in_chunks:
            loss.refusal = "the model profile says so"
        began = time.perf_counter()
        for number in range(MOST_ROUNDS + 1):
            for name in names:
                _time_block(model.get_submodule(name), calls[name], computed_in, name, stopwatch)
                for place, attention in enumerate(found[name]):
                    time_attention(attention, stopwatch, f"{name} attention {place}")
                matrix.measure()
            _time_outer(model, loss, ids, stopwatch)
            matrix.measure()
            if number == 0:
                stopwatch.forget()
            elif number >= LEAST_ROUNDS and time.perf_counter() - began > budget_s / 2:
                break
    return ModelTimes(
        fingerprint=fingerprint,
        sequences=sequences,
        tokens=tokens,
        dtype=dtype,
        kinds=tuple(
            KindTimes(
                forward_s=stopwatch.median(f"{name} forward"),
                graph_s=stopwatch.median(f"{name} graph"),
                backward_s=stopwatch.median(f"{name} backward"),
                mask_forward_s=_of_masks(stopwatch, name, len(found[name]), "forward"),
                mask_backward_s=_of_masks(stopwatch, name, len(found[name]), "backward"),
            )
            for name in names
        ),
        outer_forward_s=stopwatch.median("outer forward"),
        outer_backward_s=stopwatch.median("outer backward"),
        matrix_flops_per_s=matrix.median(),
        busy=others.note(),
    )


def affordable(
    model_profile: ModelProfile, sequences: int, tokens: int, most_flops: float
) -> tuple[int, int]:
    """(sequences, tokens) of a round of at most `most_flops`, where that can be: first fewer sequences."""
    while work_of(model_profile, sequences, tokens) > most_flops and sequences > 1:
        sequences -= max(1, sequences // 4)
    while work_of(model_profile, sequences, tokens) > most_flops and tokens > FEWEST_TOKENS:
        tokens = max(FEWEST_TOKENS, tokens // 2)
    return sequences, tokens


def work_of(model_profile: ModelProfile, sequences: int, tokens: int) -> float:
    """Floating-point operations of one round: every kind of block once, and the head."""
    blocks = sum(kind.flops.at(sequences, tokens) for kind in model_profile.kinds)
    head = 2.0 * sequences * tokens * model_profile.head_width * model_profile.vocab_size
    return WORK_OF_A_ROUND * (blocks + head)


def _time_block(block: nn.Module, call: Call, dtype: torch.dtype, name: str, stopwatch: Stopwatch) -> None:
    hidden, args, kwargs = call.fresh(dtype)
    with torch.no_grad(), stopwatch.timed(f"{name} forward"):
        result = block(*args, **kwargs)
    del result
    hidden.requires_grad_()
    with stopwatch.timed(f"{name} graph"):
        result = block(*args, **kwargs)
    result = hidden_of(result, hidden)
    gradient = torch.ones_like(hidden)
    # In training too a backward comes right after what it reads has been computed, mostly anew.
    with stopwatch.timed(f"{name} backward", cold=False):
        result.backward(gradient)
    # As in training: gradients have been taken away when the next ones come.
    block.zero_grad(set_to_none=True)


def _of_masks(stopwatch: Stopwatch, name: str, attentions: int, phase: str) -> float:
    """What masks make a block's attentions slower by; nothing where noise would have them faster."""
    names = [f"{name} attention {place}" for place in range(attentions)]
    masked, plain = (
        sum(stopwatch.median(f"{each} {way} {phase}") for each in names) for way in ("masked", "plain")
    )
    return max(0.0, masked - plain)


def _time_outer(model: nn.Module, loss: ChunkedLoss, ids: Tensor, stopwatch: Stopwatch) -> None:
    """All but the blocks, which pass on what they are given."""
    with pass_blocks(model, ids[:1, :FEWEST_TOKENS]):
        with stopwatch.timed("outer forward"):
            value = loss(ids, ids, use_cache=False)
        with stopwatch.timed("outer backward", cold=False):
            value.backward()
    model.zero_grad(set_to_none=True)
