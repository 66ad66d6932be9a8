"""Activation checkpointing of the engine's own: each block recomputes its forward during backward.

transformers' own wraps `forward` without the block's hooks and without anything that an engine could bind weights in;
it is turned off and each block's `forward` is wrapped in a non-reentrant checkpoint here. Hooks of the block stay
outside: they run once a forward, not again on recompute.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CACHES = ("past_key_values", "past_key_value", "layer_past")


class BlockCheckpointing:
    """Wraps the blocks' `forward`; `remove` puts the originals back."""

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        self._blocks = list(blocks)
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                setattr(module, "gradient_checkpointing", False)  # noqa: B010
        for block in self._blocks:
            block.forward = functools.partial(_forward, block.forward)

    def remove(self) -> None:
        for block in self._blocks:
            block.__dict__.pop("forward", None)
        self._blocks.clear()


def _forward(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # A key-value cache would be written a second time on recompute; training never reads it.
    for name in CACHES:
        if kwargs.get(name) is not None:
            kwargs[name] = None
    if kwargs.get("use_cache"):
        kwargs["use_cache"] = False
    return checkpoint(functools.partial(forward, **kwargs), *args, use_reentrant=False)
