"""Operations as another device or dtype has them, where a CPU in float64 would do otherwise.

An accelerator has dropout as one operation that keeps a byte an element, within attention too; a CPU takes it apart,
keeps its mask in the dtype of the values, and falls back to attention without fusion. Such attention is computed in
fp32 where the values have 16 bits, which float64 stands for here.

Invariant: only what is kept changes; where there is nothing to change these modes change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

DROPOUTS = (functional.dropout, torch.dropout)


class FusedDropout(TorchFunctionMode):
    """`met`: whether there was any dropout while this was on."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            values, share, training = _arguments(*args, **kwargs)
            if training and 0 < share < 1:
                self.met = True
                return torch.native_dropout(values, share, True)[0]
        elif func is functional.scaled_dot_product_attention:
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            if share:
                # Fused with dropout it keeps what it keeps without, and two numbers.
                self.met = True
                args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
                kwargs = {k: v for k, v in kwargs.items() if k != "dropout_p"}
        return func(*args, **kwargs)


def _arguments(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **rest: Any
) -> tuple[torch.Tensor, float, bool]:
    return input, p, bool(rest.get("train", training))


class AttentionOf16Bits(TorchFunctionMode):
    """Attention that is not fused goes by fp32, as torch has it for 16 bits; float64 stands for those."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention and _is_unfused(*args, **kwargs):
            query, key, value = (tensor.float() for tensor in args[:3])
            result, weights = torch._scaled_dot_product_attention_math(query, key, value, *args[3:], **kwargs)
            weights.to(args[0].dtype)  # as torch does, whether anybody asks for them or not
            return result.to(args[0].dtype)
        return func(*args, **kwargs)


def _is_unfused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **named: Any
) -> bool:
    if query.dtype != torch.float64:
        return False
    return int(torch._fused_sdp_choice(query, key, value, *rest, **named)) == int(SDPBackend.MATH.value)
