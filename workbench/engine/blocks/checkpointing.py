"""Activation checkpointing of the engine's own: each block recomputes its forward during backward.

transformers' own wraps `forward` without the block's hooks and without anything that an engine could bind weights in;
it is turned off and each block's `forward` is wrapped in a non-reentrant checkpoint here. Hooks of the block stay
outside: they run once a forward, not again on recompute.

Invariant: a streamed block's weights are bound whenever its forward or its recompute runs, because both go through
the function that binds them first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from workbench.engine.blocks.weight_prefetcher import WeightPrefetcher

CACHES = ("past_key_values", "past_key_value", "layer_past")


class BlockCheckpointing:
    """Wraps the blocks' `forward`; `remove` puts the originals back.

    `blocks`: by unit. `recomputes`: whether they are checkpointed at all. `prefetcher` brings the weights of the
    `streamed` ones. `around` is entered around each checkpointed call, with the block's unit.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Iterable[tuple[int, nn.Module]],
        *,
        recomputes: bool,
        prefetcher: WeightPrefetcher | None = None,
        streamed: frozenset[int] = frozenset(),
        around: Callable[[int], AbstractContextManager[object]] | None = None,
    ) -> None:
        self._wrapped: list[nn.Module] = []
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                setattr(module, "gradient_checkpointing", False)  # noqa: B010
        for unit, block in blocks:
            inner = block.forward
            if prefetcher is not None and unit in streamed:
                inner = functools.partial(_Binding, prefetcher, unit, inner)
            elif recomputes:
                inner = functools.partial(_plain, inner)
            else:
                continue
            context = nullcontext if around is None else functools.partial(around, unit)
            block.forward = functools.partial(_forward, inner, recomputes, context)
            self._wrapped.append(block)

    def remove(self) -> None:
        for block in self._wrapped:
            block.__dict__.pop("forward", None)
        self._wrapped.clear()


def _plain(forward: Any) -> Any:
    return forward


class _Binding:
    """One call of a streamed block: its first run is the forward, every further one a recompute."""

    def __init__(self, prefetcher: WeightPrefetcher, unit: int, forward: Any) -> None:
        self._prefetcher = prefetcher
        self._unit = unit
        self._forward = forward
        self._has_run = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recompute, self._has_run = self._has_run, True
        self._prefetcher.acquire(self._unit, recompute=recompute)
        if recompute:
            # The block's backward comes next and reads the slot: the prefetcher knows when that is over.
            return self._forward(*args, **kwargs)
        try:
            return self._forward(*args, **kwargs)
        finally:
            self._prefetcher.release(self._unit)


def _forward(
    open_call: Callable[[], Any],
    recomputes: bool,
    around: Callable[[], AbstractContextManager[object]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    run = open_call()
    if not torch.is_grad_enabled() or not recomputes:
        return run(*args, **kwargs)
    # A key-value cache would be written a second time on recompute; training never reads it.
    args = tuple(None if _is_cache(value) else value for value in args)
    kwargs = {name: None if name in CACHES or _is_cache(value) else value for name, value in kwargs.items()}
    if kwargs.get("use_cache"):
        kwargs["use_cache"] = False
    # Only what a checkpoint is given by position passes through the hooks around it, watched for changes in place.
    call = functools.partial(_by_name, run, len(args), tuple(kwargs))
    with around():
        return checkpoint(call, *args, *kwargs.values(), use_reentrant=False)


def _is_cache(value: object) -> bool:
    """Return True for transformers' caches, which no import here names."""
    return hasattr(value, "get_seq_length") and hasattr(value, "reorder_cache")


def _by_name(run: Callable[..., Any], positional: int, names: tuple[str, ...], *values: Any) -> Any:
    """Call `run` with the values after the first `positional` by their names."""
    return run(*values[:positional], **dict(zip(names, values[positional:], strict=True)))
