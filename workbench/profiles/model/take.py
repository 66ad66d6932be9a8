"""Takes the model profile of a [model] table: counts on the meta device, then runs one real block of each kind.

Invariant: a model profile never fails because a block could not be run: its kind then has no costs, and a
problem that says why. The same table gives the same model profile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from workbench.engine.loss.chunked_loss import ChunkedLoss
from workbench.formatting import GIB
from workbench.plan.memory.free import free_host_bytes
from workbench.plan.model_profile import BlockCost, BlockKind, ComputeWidth, Curve, ModelProfile
from workbench.profiles.model.amounts import four_sizes
from workbench.profiles.model.block_costs import DTYPES, BlockRuns, set_dtype
from workbench.profiles.model.building import meta_model, model_name
from workbench.profiles.model.cut_model import Call, capture, real_model, tokens
from workbench.profiles.model.parts import count_parts

SHORT, SHORTER = 32, 12
LARGE_BLOCK = 50_000_000
"""Parameters from which on a block is run on shorter sequences."""
SHARE_OF_FREE = 1 / 3
"""Of free host memory this much may be taken, where others may need the rest."""

Tell = Callable[[str], None]
Room = Callable[[int], str | None]
"""Why so many bytes may not be taken; None where they may."""


def take_model_profile(
    model_table: Mapping[str, Any], tell: Tell = lambda _: None, *, share_of_free: float = SHARE_OF_FREE
) -> ModelProfile:
    """The model profile of the model that a [model] table asks for; `tell` is given a sentence before each long piece.

    `share_of_free`: of the host's free memory, what running a block may take. Where that is too little, amounts are
    missing or estimated, and the kind's `problem` says so.

    Raises:
        ConfigurationError: the table names no model that can be built.
    """
    quiet_transformers()
    model_profile = count_parts(meta_model(model_table), model_name(model_table))
    length = run_length(model_profile)
    build = partial(meta_model, model_table, windows_below=length)
    return _with_costs(model_profile, build, length, tell, partial(_no_room, share_of_free))


def run_length(model_profile: ModelProfile) -> int:
    """The shorter of the two lengths that blocks are run at."""
    large = max((_parameters(kind) for kind in model_profile.kinds), default=0) >= LARGE_BLOCK
    longest = model_profile.positions or 2 * SHORT
    return max(1, min(SHORTER if large else SHORT, longest // 2))


def first_blocks(model_profile: ModelProfile) -> list[str]:
    """The first block of each kind, in the order of the kinds."""
    names: dict[int, str] = {}
    for name, kind in model_profile.blocks:
        names.setdefault(kind, name)
    return [names[kind] for kind in sorted(names)]


def room_needed(model_profile: ModelProfile, *, itemsize: int = 4, small: bool = True) -> int:
    """Bytes that running one block of each kind takes: all blocks up to the last of them, and the largest thrice."""
    names = [name for name, _ in model_profile.blocks]
    last = max((names.index(name) for name in first_blocks(model_profile)), default=-1)
    kept = sum(_parameters(model_profile.kinds[kind]) for _, kind in model_profile.blocks[: last + 1])
    largest = max((_parameters(kind) for kind in model_profile.kinds), default=0)
    outer = 0 if small else sum(p.numel for p in (*model_profile.before, *model_profile.after))
    return 4 * (kept + outer - largest) + 3 * itemsize * largest


def quiet_transformers() -> None:
    """transformers' remarks are no part of a model profile."""
    from transformers.utils import logging as remarks

    remarks.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)


def _with_costs(
    model_profile: ModelProfile, build: Callable[[], nn.Module], length: int, tell: Tell, no_room: Room
) -> ModelProfile:
    if not model_profile.kinds:
        return model_profile
    refusal = no_room(room_needed(model_profile))
    if refusal is not None:
        return _without(model_profile, refusal)
    tell("making a cut model")
    try:
        model, calls, model_profile = _captured(model_profile, build, length, no_room)
    except Exception as error:
        return _without(model_profile, f"its blocks could not be run: {_sentence(error)}")
    kinds = []
    for number, (kind, name) in enumerate(
        zip(model_profile.kinds, first_blocks(model_profile), strict=True), 1
    ):
        tell(f"running a block of kind {number} of {len(model_profile.kinds)}")
        kinds.append(_measured(kind, model.get_submodule(name), calls[name], length, no_room))
    return model_profile.model_copy(update={"kinds": tuple(kinds)})


def _captured(
    model_profile: ModelProfile, build: Callable[[], nn.Module], length: int, no_room: Room
) -> tuple[nn.Module, dict[str, list[Call]], ModelProfile]:
    """A real cut model, what its blocks are called with at the four sizes, and whether its loss goes in chunks."""
    try:
        return _captured_with(model_profile, build, length, small=True)
    except Exception:
        if no_room(room_needed(model_profile, small=False)) is not None:
            raise
        return _captured_with(model_profile, build, length, small=False)


def _captured_with(
    model_profile: ModelProfile, build: Callable[[], nn.Module], length: int, *, small: bool
) -> tuple[nn.Module, dict[str, list[Call]], ModelProfile]:
    names = first_blocks(model_profile)
    model = real_model(build, names, small=small)
    calls: dict[str, list[Call]] = {name: [] for name in names}
    for sequences, tokens_each in four_sizes(length):
        found = capture(model, names, tokens(sequences, tokens_each, model_profile.vocab_size))
        for name in names:
            calls[name].append(found[name])
    loss = ChunkedLoss(model)
    loss.check(tokens(2, length, model_profile.vocab_size), use_cache=False)
    return model, calls, model_profile.model_copy(update={"loss_in_chunks": loss.refusal is None})


def _measured(kind: BlockKind, block: nn.Module, calls: list[Call], length: int, no_room: Room) -> BlockKind:
    costs: dict[ComputeWidth, BlockCost] = {}
    accelerator: dict[ComputeWidth, BlockCost] = {}
    flops = kind.flops
    try:
        runs = BlockRuns(block, calls, length)
        has_dropout = runs.has_dropout()
        flops = runs.flops()
        costs["32"] = runs.cost()
        if has_dropout:
            accelerator["32"] = runs.cost(fused_dropout=True)
        problem = no_room(3 * 8 * _parameters(kind)) or ""
        if not problem:
            set_dtype(block, DTYPES["16"])
            try:
                costs["16"] = runs.cost()
                if has_dropout:
                    accelerator["16"] = runs.cost(fused_dropout=True)
            except Exception as error:
                problem = f"it could not be run in float64: {_sentence(error)}"
    except Exception as error:
        return kind.model_copy(update={"problem": f"a block could not be run: {_sentence(error)}"})
    finally:
        for parameter in block.parameters():
            parameter.data = parameter.data.new_empty(0)
    if problem:
        problem = f"its costs in 16 bits are half of those in 32, for {problem}"
        costs["16"] = halved(costs["32"])
        if accelerator:
            accelerator["16"] = halved(accelerator["32"])
    return kind.model_copy(
        update={"costs": costs, "accelerator": accelerator, "flops": flops, "problem": problem}
    )


def halved(cost: BlockCost) -> BlockCost:
    """A block's costs in 16 bits where only those in 32 are known: half the bytes, as many operations."""
    return cost.model_copy(
        update={
            name: _half(value)
            for name in BlockCost.model_fields
            if isinstance(value := getattr(cost, name), Curve)
        }
    )


def _half(curve: Curve) -> Curve:
    halves = {
        name: value / 2 for name in Curve.model_fields if isinstance(value := getattr(curve, name), float)
    }
    return curve.model_copy(update={**halves, "beside": tuple(map(_half, curve.beside))})


def _without(model_profile: ModelProfile, problem: str) -> ModelProfile:
    kinds = tuple(kind.model_copy(update={"problem": problem}) for kind in model_profile.kinds)
    return model_profile.model_copy(update={"kinds": kinds})


def _no_room(share: float, needed: int) -> str | None:
    """Why `needed` bytes are more than may be taken; None where they are not."""
    free = free_host_bytes()
    if needed <= share * free:
        return None
    return (
        f"running a block of it takes {needed / GIB:,.1f} GiB, which is more than {share:.0%} of the "
        f"{free / GIB:,.1f} GiB of host memory that are free"
    )


def _parameters(kind: BlockKind) -> int:
    return sum(p.numel for p in kind.parameters)


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
