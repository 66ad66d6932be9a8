"""What attention takes with a mask that keeps documents apart, beside what it takes without one.

Without a mask kernels pass over the pairs in which a token would look ahead; with one they go through all of them.

Invariant: both are timed on the very shapes that a block's own attention has, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from workbench.profiles.model.cut_model import Call, seeded
from workbench.profiles.model.stopwatch import Stopwatch

DOCUMENTS = 4
"""In a row; how many they are changes nothing, for a mask is dense."""


@dataclass(frozen=True)
class Attention:
    """One call without a mask: shapes of query, key and value [sequences, heads, tokens, width], and what else it was
    given."""

    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device
    others: Mapping[str, Any]


def attentions(block: nn.Module, call: Call, dtype: torch.dtype) -> list[Attention]:
    """Those of a block, which runs once; one that has a mask of its own anyway is left out."""
    _, args, kwargs = call.fresh(dtype)
    watching = _Watching()
    with seeded(), torch.no_grad(), watching:
        block(*args, **kwargs)
    return watching.found


def time_attention(attention: Attention, stopwatch: Stopwatch, name: str) -> None:
    """One round: "NAME plain forward", "NAME plain backward", and the same "masked"."""
    tensors = [
        torch.randn(shape, dtype=attention.dtype, device=attention.device, requires_grad=True)
        for shape in attention.shapes
    ]
    mask = _own_document(attention.shapes[0], attention.device)
    ways: dict[str, dict[str, Any]] = {"plain": {"is_causal": True}, "masked": {"attn_mask": mask}}
    query, key, value = tensors
    for way, given in ways.items():
        with stopwatch.timed(f"{name} {way} forward"):
            result = functional.scaled_dot_product_attention(query, key, value, **given, **attention.others)
        with stopwatch.timed(f"{name} {way} backward", cold=False):
            result.backward(torch.ones_like(result))


class _Watching(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Attention] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._look(*args, **kwargs)
        return func(*args, **kwargs)

    def _look(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> None:
        if attn_mask is None and is_causal and query.shape[-2] == key.shape[-2]:
            shapes = query.shape, key.shape, value.shape
            self.found.append(Attention(shapes, query.dtype, query.device, others))


def _own_document(shape: torch.Size, device: torch.device) -> Tensor:
    """Whether a token may see another: bool [sequences, 1, tokens, tokens]."""
    tokens = torch.arange(shape[-2], device=device)
    document = tokens * DOCUMENTS // shape[-2]
    allowed = (document[:, None] == document) & (tokens[:, None] >= tokens)
    return allowed.expand(shape[0], 1, -1, -1)
